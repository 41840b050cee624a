"""The console in a real Chromium: by keyboard alone, in light and dark, wide and narrow, without an error."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from playwright.sync_api import expect

from tests.browsers import chromium, violations


@pytest.fixture(scope="module")
def browser():
    with chromium() as opened:
        yield opened


@pytest.fixture
def page(browser):
    """A page that must not complain."""
    complaints = []
    opened = browser.new_page(color_scheme="light", viewport={"width": 1200, "height": 900})
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    opened.on("requestfailed", lambda request: complaints.append(request.url))
    opened.complaints = complaints
    yield opened
    opened.close()


def enter(page, service, key):
    page.goto(service.address)
    page.get_by_label("API key").fill(key)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="paid", exact=True)).to_be_visible()


def test_an_operator_sees_models_budgets_clients_and_can_try_a_query_by_keyboard_alone(page, service, rows):
    service.ask(rows(3), service.bob)
    page.goto(service.address)
    expect(page.locator("#key")).to_be_focused()
    page.keyboard.type(service.operator)
    page.keyboard.press("Enter")
    expect(page.get_by_text("3 of 20 answers")).to_be_visible()
    expect(page.get_by_text("ops (operator)")).to_be_visible()
    row = page.get_by_role("table", name="by client").get_by_role("row").filter(has_text="bob")
    expect(row).to_contain_text("15%")
    assert page.locator(".chart rect.answers").count() == 1
    assert page.get_by_role("progressbar").first.get_attribute("aria-valuenow") == "15"
    # From the list of models by arrow keys to the other model and back, then by Tab to the form.
    page.get_by_role("button", name="paid").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_text("has no budget")).to_be_visible()
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page.get_by_text("3 of 20 answers")).to_be_visible()
    page.locator("#query").focus()
    page.keyboard.type("[0.1, 0.2, 0.3, 0.4]")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Ask (spends one answer)")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_text("Receipt")).to_be_visible()
    expect(page.get_by_text("4 of 20 answers")).to_be_visible()
    assert service.spent == 4
    assert page.complaints == []


def test_an_operator_closes_a_budget_and_retires_a_model_after_typing_its_name(page, service, rows):
    service.ask(rows(2))
    enter(page, service, service.operator)
    page.get_by_role("button", name="Close the budget").click()
    expect(page.get_by_text("Type the name of this model first.")).to_be_visible()
    assert service.ledger.balance("paid").left.units != (0,)
    page.get_by_label("Name of this model, to confirm").fill("paid")
    page.get_by_role("button", name="Close the budget").click()
    expect(page.get_by_text("The budget is closed.")).to_be_visible()
    expect(page.get_by_text("2 of 2 answers")).to_have_count(1)
    assert service.ask(rows(1)).status_code == 403
    page.get_by_role("button", name="Retire the model").click()
    expect(page.get_by_text("The model is retired.")).to_be_visible()
    assert service.ask(rows(1)).status_code == 410
    page.get_by_role("button", name="free").click()
    expect(page.get_by_role("button", name="Close the budget")).to_be_hidden()
    assert page.complaints == []


def test_a_client_sees_its_own_share_and_no_other_clients(page, service, rows):
    service.ask(rows(2), service.ann)
    enter(page, service, service.bob)
    expect(page.get_by_role("heading", name="Management")).to_be_hidden()
    expect(page.get_by_text("2 of 20 answers")).to_be_visible()
    expect(page.get_by_text("0 of 3 answers")).to_be_visible()
    assert page.locator(".clients").is_hidden()
    assert "ann" not in page.locator("main").inner_text().replace("cannot", "")
    page.get_by_role("button", name="Fill with an example").click()
    page.get_by_role("button", name="Ask (spends one answer)").click()
    expect(page.locator(".says")).to_contain_text("made-up example")
    expect(page.get_by_text("0 of 3 answers")).to_be_visible()
    page.locator("#query").fill("[0.1, 0.2, 0.3, 0.4]")
    page.get_by_role("button", name="Ask (spends one answer)").click()
    expect(page.get_by_text("1 of 3 answers")).to_be_visible()
    page.reload()
    expect(page.get_by_text("1 of 3 answers")).to_be_visible()  # the tab remembers the key
    page.get_by_role("button", name="Sign out").click()
    page.reload()
    expect(page.locator("#key")).to_be_focused()
    assert page.complaints == []


def test_what_is_wrong_is_said_and_costs_nothing(page, service):
    page.goto(service.address)
    page.get_by_label("API key").fill("wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("This key is not valid here")
    expect(page.locator("#key")).to_be_focused()
    enter(page, service, service.ann)
    page.locator("#query").fill("[0.1, 0.2]")
    page.get_by_role("button", name="Ask (spends one answer)").click()
    expect(page.locator(".says")).to_contain_text("shape [4]")
    page.locator("#query").fill("nonsense")
    page.get_by_role("button", name="Ask (spends one answer)").click()
    expect(page.locator(".says")).to_contain_text("not JSON")
    assert service.spent == 0


def test_it_follows_the_systems_colours_and_can_be_told_otherwise(page, service):
    enter(page, service, service.ann)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    # Waited for, not read once: a busy machine paints late.
    page.wait_for_function(f"light => {ground} !== light", arg=light)
    page.get_by_role("button", name="Dark").click()
    page.wait_for_function(f"light => {ground} === light", arg=light)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(page, service, scheme):
    page.emulate_media(color_scheme=scheme)
    enter(page, service, service.operator)
    weakest = page.evaluate(
        """() => {
          const light = (c) => c.map((v) => v / 255).map((v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
          const parts = (text) => text.match(/[\\d.]+/g).map(Number);
          const ground = (node) => {
            for (; node; node = node.parentElement) {
              const colour = parts(getComputedStyle(node).backgroundColor);
              if (colour.length === 3 || colour[3] > 0) return colour.slice(0, 3);
            }
            return [255, 255, 255];
          };
          let worst = 99;
          for (const node of document.querySelectorAll("h1,h2,h3,p,small,span,strong,dt,dd,th,td,label,button,summary")) {
            if (!node.textContent.trim() || !node.offsetParent) continue;
            const [a, b] = [light(parts(getComputedStyle(node).color).slice(0, 3)), light(ground(node))].sort((x, y) => y - x);
            worst = Math.min(worst, (a + .05) / (b + .05));
          }
          return worst;
        }"""
    )
    assert weakest >= 4.5  # WCAG AA


@pytest.mark.parametrize("width", [360, 1440])
def test_it_fits_phones_and_desks(page, service, width, rows):
    service.ask(rows(3), service.ann)
    page.set_viewport_size({"width": width, "height": 800})
    enter(page, service, service.operator)
    expect(page.get_by_text("3 of 20 answers")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_everything_that_can_be_used_has_a_name(page, service):
    enter(page, service, service.operator)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button,input,select,textarea,[role=progressbar],[role=img]")]
          .filter((node) => node.offsetParent || node.ownerSVGElement !== undefined)
          .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim() || (node.labels && node.labels.length)))
          .map((node) => node.outerHTML)"""
    )
    assert nameless == []
    levels = page.evaluate(
        "[...document.querySelectorAll('h1,h2,h3')].filter((n) => n.offsetParent).map((n) => +n.tagName[1])"
    )
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_the_card_and_the_answers_over_time_can_be_taken_along(page, service, rows):
    service.ask(rows(3), service.ann)
    enter(page, service, service.operator)
    expect(page.get_by_text("now 15% of the budget")).to_be_visible()
    with page.expect_download() as card:
        page.get_by_role("button", name="Download the card").click()
    assert json.loads(card.value.path().read_text())["method"] == "test"
    with page.expect_download() as course:
        page.get_by_role("button", name="Download answers over time").click()
    lines = course.value.path().read_text().splitlines()
    assert lines[0] == "start,answers"
    assert sum(int(line.partition(",")[2]) for line in lines[1:]) == 3
    expect(page.locator(".commands")).to_contain_text("noiseproof ledger verify")


def test_an_operator_sees_who_asked_and_verifies_the_history_in_the_page(page, service, rows):
    service.ask(rows(3), service.ann)
    enter(page, service, service.operator)
    expect(page.locator(".entries tbody tr")).to_contain_text("ann")
    page.get_by_role("button", name="Verify the history now").click()
    expect(page.locator(".checked")).to_contain_text("The history holds: ")
    expect(page.locator(".checked")).to_contain_text("3 answers, never overdrawn")
    with page.expect_download() as history:
        page.get_by_role("button", name="Download the history").click()
    lines = history.value.path().read_text().splitlines()
    assert [line.split(",")[2:4] for line in lines[1:]] == [['"ann"', "3"]]
    assert page.complaints == []


def test_a_model_that_nobody_signed_is_shown_as_that(page, service):
    enter(page, service, service.ann)
    expect(page.locator("nav")).to_contain_text("not signed")
    expect(page.locator(".signature")).to_contain_text("anybody may have written or changed it")
    expect(page.locator(".check-ledger")).to_be_hidden()  # for operators


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1440, "light")])
def test_it_breaks_no_rule_of_accessibility(browser, service, width, scheme, rows):
    service.ask(rows(3), service.ann)
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True, reduced_motion="reduce"
    )
    page = context.new_page()
    page.goto(service.address)
    assert violations(page) == []
    enter(page, service, service.operator)
    expect(page.get_by_text("3 of 20 answers")).to_be_visible()
    assert violations(page) == []
    context.close()
