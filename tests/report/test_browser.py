"""The page in a real Chromium: from disk, without network, on a phone and on a desk, in the light and in the dark."""

from __future__ import annotations

import shutil

import pytest

from noiseproof.report import render

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("chromium is not installed", allow_module_level=True)

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
FLAGS += ("--disable-background-networking", "--disable-component-update", "--disable-sync")

# What an accessibility checker looks for first: names, roles, contrast, headings, ids, table heads.
CHECK = """() => {
  const problems = [];
  const say = (rule, node) => problems.push(`${rule}: ${node.outerHTML.slice(0, 120)}`);
  const shown = (node) => node.checkVisibility ? node.checkVisibility() : node.getClientRects().length > 0;
  if (!document.documentElement.lang) problems.push("the page has no language");
  if (!document.title) problems.push("the page has no title");
  if (document.querySelectorAll("main").length !== 1) problems.push("there is not exactly one main part");
  const ids = [...document.querySelectorAll("[id]")].map((node) => node.id);
  if (new Set(ids).size !== ids.length) problems.push("an id occurs twice");
  for (const node of document.querySelectorAll("[aria-labelledby]"))
    if (!document.getElementById(node.getAttribute("aria-labelledby"))) say("labelled by nothing", node);
  let level = 0;
  for (const node of document.querySelectorAll("h1,h2,h3,h4,h5,h6")) {
    const here = Number(node.tagName[1]);
    if (here > level + 1) say("a heading level is skipped", node);
    level = here;
  }
  for (const node of document.querySelectorAll("button, a, summary, [tabindex]"))
    if (!(node.getAttribute("aria-label") || node.textContent).trim()) say("no name", node);
  for (const node of document.querySelectorAll("[tabindex]"))
    if (!node.getAttribute("role")) say("focusable without a role", node);
  for (const node of document.querySelectorAll("svg"))
    if (!node.closest("[aria-hidden=true]") && !(node.getAttribute("role") && node.getAttribute("aria-label")))
      say("a picture without a role and a name", node);
  for (const node of document.querySelectorAll("[aria-hidden=true] [tabindex], [aria-hidden=true][tabindex]"))
    say("hidden but focusable", node);
  for (const node of document.querySelectorAll("table")) {
    if (!node.caption) say("a table without a caption", node);
    for (const cell of node.querySelectorAll("th")) if (!cell.scope) say("a head without a scope", cell);
  }
  for (const node of document.querySelectorAll("dl > *"))
    if (node.tagName !== "DIV" || !node.querySelector("dt") || !node.querySelector("dd")) say("a loose list item", node);
  for (const node of document.querySelectorAll("button")) {
    const box = node.getBoundingClientRect();
    if (shown(node) && (box.width < 24 || box.height < 24)) say("a target under 24 pixels", node);
  }
  const numbers = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const light = (colour) => {
    const [r, g, b] = numbers(colour).map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (let up = node; up; up = up.parentElement) {
      const colour = getComputedStyle(up).backgroundColor;
      if (numbers(colour).length === 3) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !shown(node) || ["STYLE", "SCRIPT"].includes(node.tagName)) continue;
    const style = getComputedStyle(node);
    const ink = node instanceof SVGElement ? style.fill : style.color;
    const found = ratio(ink, ground(node));
    if (found < 4.5) say(`contrast ${found.toFixed(2)}`, node);
  }
  for (const node of document.querySelectorAll(".mark, .line")) {
    if (!shown(node)) continue;
    const found = ratio(getComputedStyle(node).stroke, ground(node));
    if (found < 3) say(`contrast of a mark ${found.toFixed(2)}`, node);
  }
  return problems;
}"""


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture(scope="module")
def file(comparison, swept, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(render([comparison, swept]), encoding="utf-8")
    return path


@pytest.fixture
def opened(browser, file):
    """`opened(width, scheme)` gives the page, which must say nothing on the console and ask for nothing but itself."""
    contexts, said, asked = [], [], []

    def open_page(width=1440, scheme="light"):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert set(asked) == {file.as_uri()}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_it_fits_and_passes_the_accessibility_check(opened, width, scheme):
    page = opened(width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for folded in page.locator("details").all():
        folded.evaluate("node => { node.open = true; }")
    assert page.evaluate(CHECK) == []


def test_dark_is_dark_and_light_is_light(opened):
    shade = "getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g).map(Number)"
    assert min(opened(1440, "light").evaluate(shade)) > 200
    assert max(opened(1440, "dark").evaluate(shade)) < 60


@pytest.mark.parametrize(("width", "chart"), [(360, "svg.narrow"), (1440, "svg.wide")])
def test_a_point_says_what_it_is_under_the_pointer_and_under_the_keyboard(opened, width, chart):
    page = opened(width)
    point = page.locator(
        f"#run0-accuracy-by-kind-of-epsilon {chart} [data-series='neuron-gaussian'][data-kind='audited']"
    )
    tip = page.locator("#tip")
    assert tip.is_hidden()
    point.hover()
    assert tip.inner_text() == "neuron-gaussian: audited epsilon at least 7.9, accuracy 93.0%"
    box = tip.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    page.mouse.move(0, 0)
    assert tip.is_hidden()
    point.focus()
    assert tip.is_visible()
    page.keyboard.press("Escape")
    assert tip.is_hidden()


def test_the_legend_hides_a_method_and_brings_it_back(opened):
    page = opened()
    figure = page.locator("#run0-accuracy-by-kind-of-epsilon")
    button = figure.get_by_role("button", name="dp-sgd", exact=False).first
    points = figure.locator("svg.wide .point[data-series='dp-sgd']")
    others = figure.locator("svg.wide .point[data-series='logits']")
    elsewhere = page.locator("#run0-roc svg.wide [data-series='dp-sgd']")
    assert points.count() == 3
    button.focus()
    page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "false"
    assert not any(point.is_visible() for point in points.all())
    assert all(point.is_visible() for point in [*others.all(), *elsewhere.all()])
    button.click()
    assert all(point.is_visible() for point in points.all())


def test_a_kind_of_epsilon_can_be_hidden_and_stays_hidden_while_methods_are_switched(opened):
    page = opened()
    figure = page.locator("#run0-accuracy-by-kind-of-epsilon")
    audited = figure.locator("svg.wide .point.audited")
    figure.get_by_role("button", name="audited").click()
    figure.locator("button[data-toggle-series='dp-sgd']").click()
    figure.locator("button[data-toggle-series='dp-sgd']").click()
    assert audited.count() > 3
    assert not any(point.is_visible() for point in audited.all())
    assert all(point.is_visible() for point in figure.locator("svg.wide .point.proven").all())


def test_all_controls_are_reached_by_the_tab_key_in_reading_order(opened):
    page = opened()
    reached = []
    for _ in range(14):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.getBoundingClientRect().top + window.scrollY"))
    assert reached == sorted(reached)


def test_on_paper_every_card_is_unfolded(opened):
    page = opened()
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert len(page.pdf()) > 10_000
