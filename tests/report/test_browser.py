"""The pages in a real Chromium: from disk, without network, on a phone, a desk and paper, in the light and in the dark."""

from __future__ import annotations

import pytest

from noiseproof.report import evidence, render, render_release
from tests.browsers import chromium, violations
from tests.report.test_release_page import keys, trained  # noqa: F401 (fixtures)

WAYS = [(360, "light"), (360, "dark"), (1440, "light"), (1440, "dark"), (794, "print")]

# Where an officer finds the answer to each of five questions: which page, which place, which words.
SCRIPT = [
    ("Is it safe to publish?", "release", "#safe", "Yes."),
    ("For whom does it hold?", "release", "#whom", "For each single record."),
    ("What could break it?", "release", "#break", "assumptions"),
    ("Which method should we take and what do we lose?", "comparison", "#run0 .verdict", "dp-sgd keeps 95%"),
    ("Has anyone changed this file?", "release", "#changed", "Nobody has changed it"),
]


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def files(comparison, swept, trained, keys, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("pages")
    pages = {
        "comparison": render([comparison, swept]),
        "release": render_release(evidence.of_bundle(trained, keys[1])),
    }
    for name, page in pages.items():
        (folder / f"{name}.html").write_text(page, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in pages}


@pytest.fixture
def opened(browser, files):
    """`opened(name, width, way)` gives a page, which must say nothing on the console and ask for nothing but itself."""
    contexts, said, asked = [], [], set()

    def open_page(name, width=1440, way="light", *, checked=False):
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if way == "dark" else "light",
            offline=True,
            reduced_motion="reduce",
            bypass_csp=checked,  # a checker's script is none of the page's own
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.add(request.url))
        page.goto(files[name].as_uri())
        if way == "print":
            page.emulate_media(media="print")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert said == []
    assert asked <= {file.as_uri() for file in files.values()}


@pytest.mark.parametrize(("width", "way"), WAYS)
def test_the_officers_page_fits_and_breaks_no_rule_of_accessibility(opened, width, way):
    page = opened("release", width, way, checked=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page) == []


@pytest.mark.parametrize(("width", "way"), WAYS)
def test_a_comparison_fits(opened, width, way):
    page = opened("comparison", width, way)
    page.evaluate("for (const folded of document.querySelectorAll('details')) folded.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow  # every card unfolded is a page of some thousand elements
@pytest.mark.parametrize(("width", "way"), WAYS)
def test_a_comparison_breaks_no_rule_of_accessibility(opened, width, way):
    page = opened("comparison", width, way, checked=True)
    page.evaluate("for (const folded of document.querySelectorAll('details')) folded.open = true")
    assert violations(page) == []


@pytest.mark.parametrize(("question", "name", "place", "words"), SCRIPT)
@pytest.mark.parametrize("width", [360, 1440])
def test_an_officers_five_questions_are_answered_near_the_top(opened, width, question, name, place, words):
    page = opened(name, width)
    found = page.locator(place)
    assert found.is_visible()
    assert words in found.inner_text()
    # Within two screens of a phone, the first of a desk: seconds, not minutes.
    assert found.bounding_box()["y"] < (1800 if width == 360 else 900)


def test_dark_is_dark_and_light_is_light_and_paper_is_white(opened):
    shade = "getComputedStyle(document.documentElement).backgroundColor.match(/\\d+/g).map(Number)"
    assert min(opened("release", 1440, "light").evaluate(shade)) > 200
    assert max(opened("release", 1440, "dark").evaluate(shade)) < 60
    dark = opened("release", 1440, "dark")
    dark.emulate_media(media="print")
    assert dark.evaluate(shade) == [255, 255, 255]


@pytest.mark.parametrize(("width", "chart"), [(360, "svg.narrow"), (1440, "svg.wide")])
def test_no_label_covers_another_or_leaves_its_chart(opened, width, chart):
    page = opened("comparison", width)
    for drawn in page.locator(chart).all():
        whole = drawn.bounding_box()
        boxes = [label.bounding_box() for label in drawn.locator("text.label").all()]
        assert boxes
        for i, one in enumerate(boxes):
            assert one["x"] + one["width"] <= whole["x"] + whole["width"] + 0.5
            for other in boxes[i + 1 :]:
                apart = one["y"] + one["height"] <= other["y"] + 1 or other["y"] + other["height"] <= one["y"] + 1
                assert apart, (one, other)


def test_what_is_folded_opens_by_keyboard(opened):
    page = opened("comparison")
    fold = page.locator("details.fold").first
    assert not fold.locator("table").is_visible()
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    assert fold.locator("table").is_visible()


def test_all_controls_are_reached_by_the_tab_key_in_reading_order(opened):
    page = opened("comparison")
    page.keyboard.press("Tab")  # to the link that skips to the content
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.getBoundingClientRect().top + window.scrollY"))
    assert reached == sorted(reached)


@pytest.mark.parametrize("name", ["comparison", "release"])
def test_on_paper_everything_is_unfolded(opened, name):
    page = opened(name, 794, "print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    assert len(page.pdf()) > 10_000
