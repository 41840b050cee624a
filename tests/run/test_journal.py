"""A journal holds every spend that was acknowledged, whatever happens to its last line."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.privacy.events import (
    ComposedDpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    PureDpEvent,
    ReplaceOneDpEvent,
    SelfComposedDpEvent,
    sampled_gaussian,
)
from noiseproof.run.journal import Journal, JournalledLog, decode, encode

STEP = sampled_gaussian(0.1, 1.5)
OTHER = sampled_gaussian(0.1, 1.4)


def test_what_is_spent_is_read_again(tmp_path):
    journal = Journal(tmp_path / "spent")
    for event in (STEP, STEP, OTHER):
        journal.spend(event)
    journal.close()
    again = Journal(tmp_path / "spent")
    assert list(again.spends()) == [(STEP, 1), (STEP, 1), (OTHER, 1)]
    assert list(again.spends(2)) == [(OTHER, 1)]
    again.close()


def test_a_journal_written_when_events_were_dp_accountings_is_read(tmp_path):
    # Written by 0.1.
    (tmp_path / "spent").write_text(
        'f1e8fff0 {"count": 3, "event": {"events": [{"event": {"kind": "GaussianDpEvent", "noise_mu'
        'ltiplier": 1.5}, "kind": "PoissonSampledDpEvent", "sampling_probability": 0.1}, {"bounded_range": false, "epsi'
        'lon": 0.1, "kind": "PureDpEvent", "neighbours": "add-or-remove"}], "kind": "ComposedDpEvent"}}\n'
    )
    journal = Journal(tmp_path / "spent")
    assert list(journal.spends()) == [(ComposedDpEvent([STEP, PureDpEvent(0.1)]), 3)]
    journal.close()


def test_a_spend_is_on_disk_when_spend_returns(tmp_path):
    journal = Journal(tmp_path / "spent")
    journal.spend(STEP)
    (tmp_path / "copy").write_bytes((tmp_path / "spent").read_bytes())  # what a crash would leave
    other = Journal(tmp_path / "copy")
    assert list(other.spends()) == [(STEP, 1)]
    journal.close()
    other.close()


def test_two_trainings_cannot_spend_in_one_journal(tmp_path):
    journal = Journal(tmp_path / "spent")
    with pytest.raises(NoiseproofError, match="another process is training"):
        Journal(tmp_path / "spent")
    journal.close()
    Journal(tmp_path / "spent").close()


def test_spends_ahead_cover_more_steps_never_fewer(tmp_path):
    journal = Journal(tmp_path / "spent", ahead=4)
    for happened in range(1, 10):
        journal.spend(STEP)
        assert happened <= sum(count for _, count in journal.spends()) < happened + 4
    place = journal.settle()
    journal.spend(STEP)
    assert sum(count for _, count in journal.spends(place)) == 4, "what was ahead of a checkpoint does not pay after it"
    journal.spend(OTHER)
    assert journal.spends()[-1] == (OTHER, 4), "what was reserved for one event does not pay for another"
    journal.close()


@pytest.mark.parametrize("cut", [1, 5, 40])
def test_a_last_line_that_was_cut_off_is_dropped(tmp_path, cut):
    path = tmp_path / "spent"
    journal = Journal(path)
    journal.spend(STEP)
    journal.spend(OTHER)
    journal.close()
    path.write_bytes(path.read_bytes()[:-cut])
    again = Journal(path)
    assert list(again.spends()) == [(STEP, 1)]
    again.spend(OTHER)
    again.close()
    last = Journal(path)
    assert list(last.spends()) == [(STEP, 1), (OTHER, 1)]
    last.close()


def test_damage_anywhere_else_is_refused(tmp_path):
    path = tmp_path / "spent"
    journal = Journal(path)
    for _ in range(3):
        journal.spend(STEP)
    journal.close()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(NoiseproofError, match=r"line 2 of .* is damaged"):
        Journal(path)


def test_a_journalled_log_notes_an_event_before_it_takes_it_in(tmp_path):
    journal = Journal(tmp_path / "spent")
    log = JournalledLog(journal, [(STEP, 5)])
    assert (len(log), len(journal)) == (5, 0), "the past is not spent again"
    log.append(STEP)
    assert (len(log), list(journal.spends())) == (6, [(STEP, 1)])
    journal.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        log.append(OTHER)
    assert len(log) == 6, "an event that cannot be noted does not happen"


@settings(deadline=None, derandomize=True, max_examples=50)
@given(st.floats(0.001, 1.0), st.floats(0.01, 100.0), st.integers(2, 1000))
def test_events_come_back_as_they_were(rate, sigma, count):
    events = (
        sampled_gaussian(rate, sigma),
        SelfComposedDpEvent(sampled_gaussian(rate, sigma), count),
        ComposedDpEvent([GaussianDpEvent(sigma), NonPrivateDpEvent()]),
        PureDpEvent(sigma, "replace-one", True),
        ReplaceOneDpEvent(GaussianDpEvent(sigma)),
    )
    for event in events:
        assert decode(encode(event)) == event


def test_what_cannot_be_noted_is_refused(tmp_path):
    class Unknown:
        pass

    with pytest.raises(SettingError, match="Unknown cannot be written"):
        encode(Unknown())
    with pytest.raises(SettingError, match="1 step or more"):
        Journal(tmp_path / "spent", ahead=0)
