"""A training that is interrupted goes on as if it had not been, and forgets nothing that it spent."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noiseproof.data import load
from noiseproof.errors import NoiseproofError, SettingError, UnsupportedError
from noiseproof.methods.gradients import DpSgd, DpSgdAdaptive
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Reproducible, Secure, accountants
from noiseproof.privacy.events import (
    ComposedDpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    PureDpEvent,
    ReplaceOneDpEvent,
    SelfComposedDpEvent,
    event_from_json,
    event_to_json,
    sampled_gaussian,
)
from noiseproof.releases.release import ModelRelease
from noiseproof.run.checkpoints import Checkpoints, DamagedError, StoppedError, pack, unpack
from noiseproof.run.journal import Journal, JournaledLog
from noiseproof.run.training import train
from tests.run.launch import ROOT

BUDGET = Budget(3.0, 1e-5)
PLAIN = DpSgd(epochs=2, batch_size=64, noise_multiplier=1.5)
"""43 steps."""


class CrashError(Exception):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def digits():
    return load("digits").train


def fit(dataset, method=PLAIN, checkpoints=None, *, rng=None, crash=None, network="mlp", options=None):
    """Train; with `crash` until the update of that step was visible."""

    def watch(step, _):
        if step == crash:
            raise CrashError

    return method.fit(
        Network(network, dataset.public.shape, dataset.classes, options or {}),
        dataset,
        BUDGET,
        rng=rng or Reproducible(3),
        after_step=watch,
        checkpoints=checkpoints,
    )


def same(one: ModelRelease, other: ModelRelease) -> bool:
    others = other.tensors()
    return all(torch.equal(value, others[name]) for name, value in one.tensors().items())


@pytest.mark.parametrize(
    ("method", "network", "options"),
    [
        (PLAIN, "mlp", {}),
        (DpSgd(epochs=2, batch_size=64, noise_multiplier=1.5, optimizer="adam", lr=0.01), "mlp", {}),
        (DpSgdAdaptive(epochs=2, batch_size=64, noise_multiplier=1.5), "mlp", {}),
        (
            DpSgd(epochs=2, batch_size=16, noise_multiplier=1.5, averaging=0.5, lr_schedule="cosine"),
            "lin-cnn",
            {"dropout": 0.5},
        ),
        (
            DpSgd(epochs=2, batch_size=64, noise_multiplier=1.5, sigma_schedule="exponential", sigma_decay=0.01),
            "mlp",
            {},
        ),
    ],
    ids=["sgd", "adam", "adaptive", "dropout and averages", "schedule"],
)
def test_a_reproducible_training_goes_on_bit_for_bit(digits, tmp_path, method, network, options):
    how = {"method": method, "network": network, "options": options}
    if network == "lin-cnn":
        digits = digits.take(torch.arange(200))
    whole = fit(digits, **how)
    for crash in (3, 13):
        with pytest.raises(CrashError):
            fit(digits, checkpoints=Checkpoints(tmp_path / "c", every=5, resume=True), crash=crash, **how)
    resumed = fit(digits, checkpoints=Checkpoints(tmp_path / "c", every=5, resume=True), **how)
    assert same(whole, resumed)
    assert resumed.card.proven == whole.card.proven
    assert resumed.card.ran == whole.card.ran


def test_secure_steps_that_were_lost_are_charged_and_not_taken_again(digits, tmp_path):
    visible = 0
    for crash in (8, 13, 29):
        with pytest.raises(CrashError):
            fit(digits, checkpoints=Checkpoints(tmp_path / "c", every=10, resume=True), rng=Secure(), crash=crash)
    # Steps 1-8; again 1-13, checkpoint at 10; 11-29, checkpoint at 20: then 21-29 were lost, too.
    visible = 8 + 13 + 19
    release = fit(digits, checkpoints=Checkpoints(tmp_path / "c", every=10, resume=True), rng=Secure())
    planned, taken = PLAIN.steps(len(digits)), release.card.ran["steps"]
    assert release.card.ran["lost steps"] == 8 + 3 + 9
    assert taken == planned - 20
    assert planned >= visible
    event = sampled_gaussian(PLAIN.rate(len(digits)), 1.5, planned)
    assert release.card.proven.epsilon == accountants.epsilon(event, 1e-5).epsilon


def test_a_training_that_is_lost_whole_again_and_again_ends_with_what_it_may_spend(digits, tmp_path):
    planned = PLAIN.steps(len(digits))
    for crash in (20, 20, planned):
        try:
            fit(digits, checkpoints=Checkpoints(tmp_path / "c", every=1000, resume=True), rng=Secure(), crash=crash)
        except CrashError:
            continue
    release = fit(digits, checkpoints=Checkpoints(tmp_path / "c", every=1000, resume=True), rng=Secure())
    assert release.card.ran["steps"] + release.card.ran["lost steps"] == planned


def test_spends_ahead_over_count_at_a_crash_and_not_otherwise(digits, tmp_path):
    with pytest.raises(CrashError):
        fit(digits, checkpoints=Checkpoints(tmp_path / "c", every=10, ahead=8), rng=Secure(), crash=12)
    release = fit(digits, checkpoints=Checkpoints(tmp_path / "c", every=10, ahead=8, resume=True), rng=Secure())
    assert release.card.ran["lost steps"] == 8
    quiet = fit(digits, checkpoints=Checkpoints(tmp_path / "d", every=10, ahead=8), rng=Secure())
    assert "lost steps" not in quiet.card.ran


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_used(digits, tmp_path, damage):
    with pytest.raises(CrashError):
        fit(digits, checkpoints=Checkpoints(tmp_path / "c", every=5), rng=Secure(), crash=17)
    newest, before = sorted((tmp_path / "c").glob("step-*"), reverse=True)
    content = bytearray(newest.read_bytes())
    content[-20] ^= 4
    newest.write_bytes({"flip": bytes(content), "truncate": bytes(content[:-7]), "empty": b""}[damage])
    again = Checkpoints(tmp_path / "c", every=5, resume=True)
    release = fit(digits, checkpoints=again, rng=Secure())
    assert before.name == "step-000000010.safetensors"
    assert len(again.damaged) == 1
    assert newest.name in again.damaged[0]
    assert release.card.ran["lost steps"] == 7, "steps 11 to 17 were spent, whether or not their checkpoint can be read"


def test_a_folder_of_nothing_but_damaged_checkpoints_is_refused(digits, tmp_path):
    with pytest.raises(CrashError):
        fit(digits, checkpoints=Checkpoints(tmp_path / "c", every=5), crash=12)
    for path in (tmp_path / "c").glob("step-*"):
        path.write_bytes(b"nothing")
    with pytest.raises(DamagedError, match="every checkpoint"):
        fit(digits, checkpoints=Checkpoints(tmp_path / "c", resume=True))


def test_a_journal_that_was_cut_short_is_refused(digits, tmp_path):
    with pytest.raises(CrashError):
        fit(digits, checkpoints=Checkpoints(tmp_path / "c", every=5), crash=12)
    journal = tmp_path / "c" / "spent.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:4]))
    with pytest.raises(NoiseproofError, match="9 of its lines were cut off"):
        fit(digits, checkpoints=Checkpoints(tmp_path / "c", resume=True))
    journal.write_bytes(b"".join(lines[1:4]))  # as if an older version had written it, which did not count
    with pytest.raises(NoiseproofError, match="shorter than its checkpoint says"):
        fit(digits, checkpoints=Checkpoints(tmp_path / "c", resume=True))


def test_lines_cut_off_after_the_newest_checkpoint_are_missed_and_so_is_the_whole_journal(digits, tmp_path):
    with pytest.raises(CrashError):
        fit(digits, checkpoints=Checkpoints(tmp_path / "c", every=100), crash=12)
    assert [path.name for path in (tmp_path / "c").glob("step-*")] == ["step-000000000.safetensors"]
    journal = tmp_path / "c" / "spent.jsonl"
    content = journal.read_bytes()
    journal.write_bytes(b"".join(content.splitlines(keepends=True)[:-1]))
    with pytest.raises(NoiseproofError, match="1 of its lines were cut off") as caught:
        fit(digits, checkpoints=Checkpoints(tmp_path / "c", resume=True))
    assert "backup" not in str(caught.value)
    journal.unlink()
    with pytest.raises(NoiseproofError, match="or is gone"):
        fit(digits, checkpoints=Checkpoints(tmp_path / "c", resume=True))


def test_checkpoints_are_their_owners_alone(digits, tmp_path):
    with pytest.raises(CrashError):
        fit(digits, checkpoints=Checkpoints(tmp_path / "c", every=5), crash=7)
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "c").iterdir()} == {0o600}


def test_only_so_many_checkpoints_are_kept_and_the_last_is_of_the_end(digits, tmp_path):
    fit(digits, checkpoints=Checkpoints(tmp_path / "c", every=10, keep=3))
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == [
        "spent.jsonl",
        "step-000000030.safetensors",
        "step-000000040.safetensors",
        "step-000000043.safetensors",
    ]


def test_a_folder_that_is_not_empty_is_refused_unless_it_is_resumed(digits, tmp_path):
    (tmp_path / "other").touch()
    with pytest.raises(SettingError, match="is not empty"):
        Checkpoints(tmp_path)
    with pytest.raises(SettingError, match="1 step or more"):
        Checkpoints(tmp_path / "new", every=0)


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"seed": None}, {"epsilon": 2.0}, {"noise_multiplier": 1.6}, {"network": "linear"}, {"data": 1}],
)
def test_the_checkpoints_of_another_training_are_refused(digits, tmp_path, change):
    settings = {"epsilon": 3.0, "seed": 0, "noise_multiplier": 1.5, "epochs": 0.1, "network": "mlp"}
    train("dp-sgd", digits, checkpoints=Checkpoints(tmp_path / "c"), **settings)
    other = digits.take(torch.arange(len(digits) - 1)) if "data" in change else digits
    settings.update({key: value for key, value in change.items() if key != "data"})
    with pytest.raises(SettingError, match="another training"):
        train("dp-sgd", other, checkpoints=Checkpoints(tmp_path / "c", resume=True), **settings)


def test_methods_that_do_not_descend_are_refused(digits, tmp_path):
    with pytest.raises(UnsupportedError, match="teachers is not trained by descent"):
        train("teachers", digits, checkpoints=Checkpoints(tmp_path / "c"))


def test_sigterm_leaves_a_checkpoint_of_the_step_it_came_in(digits, tmp_path):
    def watch(step, _):
        if step == 13:
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    network = Network("mlp", digits.public.shape, digits.classes)
    with pytest.raises(StoppedError, match="after 13 steps"):
        PLAIN.fit(
            network,
            digits,
            BUDGET,
            rng=Reproducible(3),
            after_step=watch,
            checkpoints=Checkpoints(tmp_path / "c", every=100),
        )
    assert signal.getsignal(signal.SIGTERM) is before
    assert (tmp_path / "c" / "step-000000013.safetensors").exists()
    resumed = fit(digits, checkpoints=Checkpoints(tmp_path / "c", resume=True))
    assert same(resumed, fit(digits))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["secure", "reproducible"])
def test_twenty_kills_at_random_moments_lose_nothing_that_was_spent(tmp_path, kind):
    from tests.run import victim

    def killed(kills: int, folder):
        folder.mkdir()
        ended = subprocess.run(
            [sys.executable, "-m", "tests.run.victim", str(folder), "11", str(kills), kind],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=1500,
            check=True,
        )
        assert json.loads(ended.stdout)["ends"] == [-9] * kills + [0], ended.stderr
        visible = [int(line) for line in (folder / "visible").read_text().split()]
        return visible, json.loads((folder / "bundle" / "card.json").read_text())

    visible, card = killed(20, tmp_path / "killed")
    rate = card["ran"]["sample_rate"]
    # With secure randomness every visible update is a release of its own; seeded ones are repeated as they were.
    releases = len(visible) if kind == "secure" else len(set(visible))
    at_least = accountants.epsilon(sampled_gaussian(rate, victim.METHOD.noise_multiplier, releases), 1e-5).epsilon
    assert card["proven"]["epsilon"] >= at_least
    assert card["ran"]["steps"] > 0.6 * victim.METHOD.steps(card["ran"]["records"])
    assert float((tmp_path / "killed" / "accuracy").read_text()) > 0.8
    if kind == "reproducible":
        killed(0, tmp_path / "whole")
        weights = [(tmp_path / run / "bundle" / "weights.safetensors").read_bytes() for run in ("killed", "whole")]
        assert weights[0] == weights[1]
    else:
        assert card["ran"]["lost steps"] > 0


# A checkpoint file is whole or refused.

TENSORS = {
    "weights": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "step": torch.tensor(3.0),
    "bits": torch.tensor([True, False]),
    "none": torch.empty(0, 2),
}
VALUES = {"steps": 3, "rate": 0.1, "list": [1, {"a": None}]}
CONTENT = pack(TENSORS, VALUES)


def test_tensors_and_values_come_back_as_they_were():
    tensors, values = unpack(CONTENT, "it")
    assert values == VALUES
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.integers(0, len(CONTENT) - 1), st.integers(0, 7))
def test_a_single_flipped_bit_is_noticed(place, bit):
    changed = bytearray(CONTENT)
    changed[place] ^= 1 << bit
    try:
        tensors, values = unpack(bytes(changed), "it")
    except DamagedError:
        return
    # Some bits of the header carry nothing (a space for a tab): what is read must then be what was written.
    assert values == VALUES
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)
    assert tensors.keys() == TENSORS.keys()


@pytest.mark.parametrize("length", [0, 5, 8, 100, len(CONTENT) - 1])
def test_a_truncated_file_is_refused(length):
    with pytest.raises(DamagedError):
        unpack(CONTENT[:length], "it")


def test_nothing_is_a_pickle(tmp_path):
    import pickle

    with pytest.raises(DamagedError):
        unpack(pickle.dumps({"weights": [1.0]}), "it")


# A journal holds every spend that was acknowledged, whatever happens to its last line.

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
    place = journal.checkpointed()
    journal.spend(STEP)
    assert sum(count for _, count in journal.spends(place)) == 4, "what was ahead of a checkpoint does not pay after it"
    journal.spend(OTHER)
    assert journal.spends()[-1] == (OTHER, 4), "what was reserved for one event does not pay for another"
    journal.close()


@pytest.mark.parametrize("part", [1, 5, 40])
def test_a_last_line_that_was_not_written_to_its_end_is_dropped(tmp_path, part):
    path = tmp_path / "spent"
    journal = Journal(path)
    journal.spend(STEP)
    journal.close()
    before = path.read_bytes()
    journal = Journal(path)
    journal.spend(OTHER)
    journal.close()
    path.write_bytes(before + path.read_bytes()[len(before) :][:-part])  # killed before the line was whole
    again = Journal(path)
    assert list(again.spends()) == [(STEP, 1)]
    again.spend(OTHER)
    again.close()
    last = Journal(path)
    assert list(last.spends()) == [(STEP, 1), (OTHER, 1)]
    last.close()


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small disk can be mounted by root only")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_on_a_full_disk_no_step_happens_that_is_not_charged(small_disk):
    journal = Journal(small_disk / "spent")
    computed = 0

    def train():
        nonlocal computed
        while True:
            journal.spend(STEP)
            computed += 1

    with pytest.raises(NoiseproofError, match="No space left"):
        train()
    for _ in range(20):  # whoever goes on regardless computes nothing either
        with pytest.raises(NoiseproofError, match="the step was not taken"):
            journal.spend(OTHER)
    journal.close()
    again = Journal(small_disk / "spent")
    assert sum(count for _, count in again.spends()) == computed > 100
    again.close()


def test_a_journal_that_is_removed_while_it_is_written_stops_the_training(tmp_path):
    journal = Journal(tmp_path / "spent")
    journal.spend(STEP)
    (tmp_path / "spent").unlink()
    with pytest.raises(NoiseproofError, match="was removed"):
        journal.spend(STEP)
    journal.close()


@settings(deadline=None, derandomize=True, max_examples=100, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_journal_that_was_changed_anywhere_is_refused_or_says_no_less(tmp_path, data):
    path = tmp_path / "spent"
    path.unlink(missing_ok=True)
    journal = Journal(path)
    for event in (STEP, OTHER, STEP):
        journal.spend(event)
    journal.close()
    content = path.read_bytes()
    place, size = data.draw(st.integers(0, len(content))), data.draw(st.integers(0, 9))
    path.write_bytes(content[:place] + data.draw(st.binary(max_size=9)) + content[place + size :])
    with suppress(NoiseproofError):
        again = Journal(path)
        assert list(again.spends())[:3] == [(STEP, 1), (OTHER, 1), (STEP, 1)]
        again.close()


@settings(deadline=None, derandomize=True, max_examples=100, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=300))
def test_what_is_no_journal_or_checkpoint_is_refused_in_one_sentence(tmp_path, content):
    with pytest.raises(DamagedError):
        unpack(content, "c")
    path = tmp_path / "spent"
    path.write_bytes(content)
    with suppress(NoiseproofError):  # and nothing else
        Journal(path).close()


def test_damage_anywhere_else_is_refused(tmp_path):
    path = tmp_path / "spent"
    journal = Journal(path)
    for _ in range(3):
        journal.spend(STEP)
    journal.close()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(NoiseproofError, match=r"line [12] is damaged"):
        Journal(path)


def test_a_journaled_log_notes_an_event_before_it_takes_it_in(tmp_path):
    journal = Journal(tmp_path / "spent")
    log = JournaledLog(journal, [(STEP, 5)])
    assert (len(log), len(journal)) == (5, 0), "the past is not spent again"
    log.append(STEP)
    assert (len(log), list(journal.spends())) == (6, [(STEP, 1)])
    journal.close()
    with pytest.raises(NoiseproofError, match="Bad file descriptor"):
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
        assert event_from_json(event_to_json(event)) == event


def test_what_cannot_be_noted_is_refused(tmp_path):
    class Unknown:
        pass

    with pytest.raises(SettingError, match="Unknown cannot be written"):
        event_to_json(Unknown())
    with pytest.raises(SettingError, match="1 step or more"):
        Journal(tmp_path / "spent", ahead=0)
