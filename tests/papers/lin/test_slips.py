"""The slips that the paper's own numbers give away are found, and nothing else is."""

from __future__ import annotations

import pytest

from papers.lin import published
from papers.lin.slips import slips


@pytest.fixture(scope="module")
def found():
    return {slip.where: slip for slip in slips()}


def test_exactly_six_printed_statistics_do_not_follow_from_the_cells(found):
    statistics = [where for where in found if where.startswith(("Table 8,", "Table 9,", "Table 10,", "Table 11,"))]
    assert statistics == [
        "Table 9, model lstm, statistic",
        "Table 11, clip, p",
        "Table 11, sequence, U",
        "Table 11, sequence, W",
        "Table 11, sequence, Z",
        "Table 11, sequence, p",
    ]


@pytest.mark.parametrize(
    ("where", "printed", "true", "remark"),
    [
        ("Table 9, model lstm, statistic", ".834", "0.829", "repeats Table 8's"),
        ("Table 11, sequence, U", "678", "1568.5 (the other level's: 735.5)", "repeats Table 10's"),
        ("Table 11, sequence, p", "0.783", "0.0023", "belongs to the row clip"),
        ("Table 11, clip, p", "0.580", "0.7835", "repeats Table 10's"),
        ("abstract, lstm on mnist, accuracy", "18%", "15.43 points", "the mean over Tables 3-5 is another"),
    ],
)
def test_a_slip_says_what_is_printed_what_is_true_and_where_it_came_from(found, where, printed, true, remark):
    slip = found[where]
    assert (slip.printed, slip.found, slip.remark) == (printed, true, remark)


def test_the_cnn_and_the_lstm_share_their_numbers_on_svhn():
    copies = [slip for slip in slips() if "same loss to the last digit" in slip.remark]
    assert len(copies) == 8
    assert sum("cnn" in slip.found and "lstm" in slip.found for slip in copies) == 5


def test_every_lstm_accuracy_is_a_multiple_of_one_over_a_batch(found):
    groups = [where for where, slip in found.items() if slip.found.startswith("all multiples")]
    assert len(groups) == 7
    assert sum("lstm" in where for where in groups) == 6


def test_numbers_that_agree_are_no_slips(monkeypatch):
    repaired = published.significance()
    wrong = (repaired["table"] == "11") & (repaired["factor"] == "sequence")
    repaired.loc[wrong, ["U", "W", "Z", "p"]] = ["1568.5", "2744.5", "3.052", "0.002"]
    monkeypatch.setattr(published, "significance", lambda: repaired)
    assert not any(slip.where.startswith("Table 11, sequence") for slip in slips())
