"""One file with everything in it: the verdict, the charts, every card; nothing of it from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from noiseproof.releases.measures import Measures
from noiseproof.report import render, save_pictures
from noiseproof.report.page import groups

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Tree(HTMLParser):
    """Checks that every tag is closed where it should be, and gathers text, ids, headings and addresses."""

    def __init__(self, page):
        super().__init__()
        self.open, self.text, self.ids, self.headings, self.tags = [], [], [], [], set()
        self.addresses = []
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.add(tag)
        if "id" in given:
            self.ids.append(given["id"])
        self.addresses += [given[name] for name in ("src", "href", "action") if name in given]
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("style", "script"):
            self.text.append(data)


@pytest.fixture(scope="module")
def page(comparison):
    return render([comparison])


@pytest.fixture(scope="module")
def text(page):
    return said(Tree(page))


def said(tree):
    """The words of a page; a semicolon that ends a line is not shown."""
    return " ".join(" ".join(tree.text).split()).replace(" ; ", "; ")


def test_the_page_is_well_formed_and_ids_are_unique(page):
    tree = Tree(page)
    assert len(tree.ids) == len(set(tree.ids))


def test_headings_go_down_one_level_at_a_time(page):
    levels = Tree(page).headings
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))


def test_nothing_is_fetched_from_anywhere(page):
    tree = Tree(page)
    assert all(address.startswith("#") for address in tree.addresses)
    assert "default-src 'none'" in page
    assert not re.search(r"(https?:)?//[a-z]", page.replace("http://www.w3.org/2000/svg", ""))
    assert "@import" not in page
    assert "url(" not in page


def test_the_verdict_stands_before_everything_else(comparison, text):
    assert comparison.sentence in text
    assert text.index(comparison.sentence) < text.index("Recommended") < text.index("Every method")


def test_it_says_that_it_is_a_rehearsal_and_how_to_make_the_real_release(comparison, text):
    assert "A comparison is a rehearsal" in text
    assert "no guarantee accounts for" in text
    commands = {found.command for found in comparison.recommendations if found.method is not None}
    assert commands
    assert all(command in text and "--seed" not in command for command in commands)


def test_every_row_is_there_with_its_numbers_or_with_what_happened(comparison, text):
    for row in comparison.rows:
        assert row.method in text
    assert "≥ 7.9" in text
    assert "97.3%" in text
    assert "ran out of memory" in text


def test_every_card_is_there_in_full(comparison, text):
    for row in comparison.rows:
        if row.done:
            for name in (*row.card.model_dump().keys() - {"notes"}, *row.card.ran):
                assert name in text
            assert all(note in text for note in row.card.notes)
            assert row.card.audited.game in text
    assert "batches are Poisson samples, sums are exact" in text
    assert "a theorem <5>" in text
    assert "infinite" in text


def test_names_and_notes_are_escaped(page):
    assert "<b>ours" not in page
    assert "&lt;b&gt;ours&lt;/b&gt;" in page
    assert "a stand-in &amp; nothing more" in page


def test_every_chart_has_a_name_and_every_point_says_what_it_is(page):
    pictures = re.findall(r'<svg [^>]*role="img"[^>]*>', page)
    assert len(pictures) > 10
    assert all(re.search(r'aria-label="[^"]+"', picture) for picture in pictures)
    points = re.findall(r'<g class="point"[^>]*><title>([^<]+)</title>', page)
    assert len(points) > 10
    assert all(": " in point for point in points)


def test_rows_stand_by_need_the_best_first_and_what_fell_is_folded(comparison):
    found = groups(comparison)
    assert [group.title.partition(":")[0] for group in found] == [
        "To publish a model",
        "To answer queries",
        "For comparison",
        "Not to be relied on",
    ]
    models, queries, _, others = found
    assert [line.row.method for line in models.lines] == ["dp-sgd", "dp-sgd-adaptive"]
    assert [line.recommended for line in models.lines] == [True, False]
    assert [line.row.method for line in queries.lines] == ["logits"]
    assert others.folded
    assert {line.row.method for line in others.lines} == {
        *("<b>ours</b>", "quantile-flat", "neuron-gaussian", "dp-pg", "teachers")
    }
    assert "1 refuted" in others.title
    assert sum(len(group.lines) for group in found) == len(comparison.rows)


def test_the_true_epsilon_lies_between_audit_and_proof_or_has_no_upper_end(comparison):
    lines = {line.row.method: line for group in groups(comparison) for line in group.lines}
    proven, refuted = lines["dp-sgd"].interval, lines["neuron-gaussian"].interval
    assert proven.span == (proven.marks["audited"], proven.marks["proven"])
    assert not proven.unbounded
    assert refuted.span == (refuted.marks["audited"], 1.0)
    assert refuted.unbounded
    assert refuted.marks["audited"] > refuted.marks["claimed"]
    assert lines["<b>ours</b>"].interval.marks["claimed"] == 1.0  # an infinite claim is drawn at the end
    assert proven.text == "Epsilon: claimed 3, proven 3, audited at least 2.7."
    assert lines["teachers"].interval is None


def test_a_bar_shows_the_measure_with_its_error_beside_training_without_privacy(comparison):
    row = next(row for row in comparison.rows if row.method == "dp-sgd")
    measured = Measures(ranked_by="accuracy", standard_error=0.01, records=449, accuracy=row.accuracy)
    rows = tuple(one.model_copy(update={"measures": measured}) if one is row else one for one in comparison.rows)
    bar = groups(comparison.model_copy(update={"rows": rows}))[0].lines[0].bar
    assert (bar.low, bar.share, bar.high) == pytest.approx((row.accuracy - 0.01, row.accuracy, row.accuracy + 0.01))
    assert bar.baseline == 0.973


def test_commands_in_sentences_are_set_as_code(page):
    assert "<code>noiseproof choose</code>" in page
    assert "`" not in " ".join(Tree(page).text)


def test_it_says_how_it_was_run_and_that_it_is_for_the_owner(text):
    for words in ("0123456789abcdef", "seed", "torch", "1348", "For the data’s owner only"):
        assert words in text


def test_a_sweep_has_a_chart_of_its_own_and_one_epsilon_has_none(page, swept):
    assert "Accuracy by epsilon</h3>" not in page
    assert "Accuracy by epsilon</h3>" in render([swept])


def test_several_runs_are_joined_with_a_list_of_links(comparison, swept):
    joined = render([comparison, swept])
    tree = Tree(joined)
    assert tree.addresses == ["#main", "#run0", "#run1"]
    assert len(tree.ids) == len(set(tree.ids))
    text = said(tree)
    assert text.count(comparison.sentence) == 2
    assert text.count(swept.sentence) == 2


def test_where_everything_failed_there_is_still_a_page(comparison):
    failed = comparison.rows[-1]
    rows = (failed.model_copy(update={"method": "none"}), failed)
    none = {"rows": rows, "baseline": None, "recommendations": (), "sentence": "Nothing."}
    page = render([comparison.model_copy(update=none)])
    assert "ran out of memory" in " ".join(Tree(page).text)


def test_pictures_are_written_as_png_and_svg(swept, tmp_path):
    written = save_pictures(swept, tmp_path)
    assert {path.name for path in written} == {
        f"{stem}.{kind}"
        for stem in ("accuracy-by-kind-of-epsilon", "roc", "accuracy-by-epsilon", "budget")
        for kind in ("png", "svg")
    }
    assert all(path.read_bytes()[:4] in (b"\x89PNG", b"<?xm") for path in written)
