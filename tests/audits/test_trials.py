"""Trials: all scores or none, the same for any number of workers, and every failure told as what it is."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import sys
import threading

import numpy as np
import pytest
import torch

from noiseproof.audits import AuditError, play
from noiseproof.errors import DataError, SettingError, UnsupportedError
from noiseproof.privacy import Game
from noiseproof.progress import Progress, Task
from tests.audits.mechanisms import gaussian_game, laplace_game

SECRET = "the patient is 47"


def game(play):
    return Game("broken", play, "add-or-remove", 1e-5)


def normal(world, trials, generator):
    return torch.randn(trials, generator=generator, dtype=torch.float64)


def in_world_1(act):
    """A game that does as it should in world 0 and as `act` says in world 1."""
    return game(lambda world, trials, generator: act(trials) if world else normal(world, trials, generator))


def fail(error):
    raise error


# How trials are run: in this process, or in a worker with a timeout.
HERE, WORKER = {}, {"timeout": 60.0}
both = pytest.mark.parametrize("how", [HERE, WORKER], ids=["here", "worker"])


def caught(act, how=HERE, **options):
    with pytest.raises(AuditError) as caught:
        play(in_world_1(act), **{"trials": 20, **how, **options})
    assert multiprocessing.active_children() == []
    assert caught.value.world == 1
    assert "no bound was computed" in str(caught.value)
    return caught.value


@both
def test_a_crash_is_reported_with_its_type_and_place_and_without_its_message(how):
    error = caught(lambda trials: fail(ValueError(SECRET)), how)
    assert (error.failure, error.exception, error.trials) == ("crash", "ValueError", range(20))
    assert "ValueError at test_trials.py:" in str(error)
    assert SECRET not in str(error)
    assert error.__cause__ is None
    assert error.__context__ is None


@both
def test_the_houses_own_errors_keep_their_sentence(how):
    error = caught(lambda trials: fail(DataError("the column is missing.")), how)
    assert "DataError" in str(error)
    assert "(the column is missing)" in str(error)


@both
def test_a_mechanism_that_exits_is_a_crash(how):
    assert caught(lambda trials: sys.exit(0), how).exception == "SystemExit"


@both
def test_nan_is_reported_with_the_trial_where_it_came(how):
    def act(trials):
        scores = torch.zeros(trials, dtype=torch.float64)
        if trials < 500:  # the second chunk
            scores[7] = math.nan
        return scores

    error = caught(act, how, trials=520)
    assert (error.failure, error.trials) == ("nan", range(507, 508))
    assert "trial 507 of world 1" in str(error)


@both
@pytest.mark.parametrize("answer", [torch.zeros(19), torch.zeros(21), torch.zeros(20, 1), torch.tensor(1.0)])
def test_a_wrong_number_of_scores_is_reported(how, answer):
    assert caught(lambda trials: answer, how).failure == "count"


@both
@pytest.mark.parametrize("answer", [None, "high", [None] * 20])
def test_an_answer_that_is_no_number_is_reported(how, answer):
    assert caught(lambda trials: answer, how).failure == "kind"


def test_a_hang_is_reported_and_its_process_is_ended():
    error = caught(lambda trials: threading.Event().wait(), {"timeout": 1.5})
    assert (error.failure, error.trials) == ("hang", range(20))
    assert "within 1.5 seconds" in str(error)


def test_a_hang_among_several_workers_is_reported_too():
    error = caught(lambda trials: threading.Event().wait(), {"timeout": 1.5, "jobs": 2}, trials=1200)
    assert error.failure == "hang"


def test_a_process_that_dies_is_reported_with_how_it_died():
    error = caught(lambda trials: os.kill(os.getpid(), signal.SIGKILL), WORKER)
    assert error.failure == "death"
    assert "was killed" in str(error)
    assert "exit code 3" in str(caught(lambda trials: os._exit(3), WORKER))


def test_scores_do_not_depend_on_the_number_of_workers():
    alone, one, two = (play(laplace_game(1.0), trials=1700, seed=5, **how) for how in (HERE, WORKER, {"jobs": 2}))
    for world in (0, 1):
        assert len(alone[world]) == 1700
        np.testing.assert_array_equal(alone[world], one[world])
        np.testing.assert_array_equal(alone[world], two[world])


def test_worlds_chunks_and_seeds_draw_different_numbers():
    scores = play(game(normal), trials=1000, seed=0)
    others = play(game(normal), trials=1000, seed=1)
    assert len(np.unique(np.concatenate([*scores, *others]))) == 4000


def test_workers_do_not_share_torchs_global_random_numbers():
    careless = game(lambda world, trials, generator: torch.randn(trials, dtype=torch.float64))
    before = torch.get_rng_state()
    scores = np.concatenate(play(careless, trials=1000, jobs=2))
    assert len(np.unique(scores)) == 2000
    np.testing.assert_array_equal(scores, np.concatenate(play(careless, trials=1000)))
    assert torch.equal(before, torch.get_rng_state())


def test_a_worker_can_compute_where_its_parent_computed_on_several_threads():
    threads = torch.get_num_threads()
    matrix = torch.randn(600, 600)
    try:
        torch.set_num_threads(2)
        (matrix @ matrix).exp().sum()
        network = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 26 * 26, 1))
        network(torch.randn(64, 1, 28, 28)).sum().backward()

        def train(world, trials, generator):
            loss = (matrix @ matrix).mean() + network(torch.randn(trials, 1, 28, 28, generator=generator)).sum()
            loss.backward()
            return torch.zeros(trials)

        play(game(train), trials=20, timeout=60.0)
    finally:
        torch.set_num_threads(threads)


def test_infinite_and_integer_scores_are_scores():
    zeros, certain = play(in_world_1(lambda trials: torch.full((trials,), math.inf)), trials=10)
    assert np.isinf(certain).all()
    whole, _ = play(game(lambda world, trials, generator: torch.arange(trials)), trials=10)
    assert whole.dtype == zeros.dtype == np.float64


def test_progress_counts_every_trial():
    class Counted(Progress):
        total = done = 0

        def task(self, description, total):
            assert "Gaussian" in description
            self.total = total
            progress = self

            class Counting(Task):
                def advance(self, steps=1, **status):
                    progress.done += steps

            return Counting()

    progress = Counted()
    play(gaussian_game(1.0), trials=1200, progress=progress)
    assert progress.done == progress.total == 2400


def test_where_forking_is_impossible_a_closure_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(UnsupportedError, match="jobs=1 and no timeout"):
        play(in_world_1(normal), trials=10, timeout=60.0)


@pytest.mark.slow
def test_where_forking_is_impossible_a_picklable_game_runs_in_a_fresh_process(monkeypatch):
    forked = play(gaussian_game(1.0), trials=100, timeout=60.0)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    fresh = play(gaussian_game(1.0), trials=100, timeout=60.0)
    np.testing.assert_array_equal(np.concatenate(forked), np.concatenate(fresh))


@pytest.mark.parametrize(
    ("options", "words"), [({"trials": 4}, "5 trials"), ({"jobs": 0}, "jobs"), ({"timeout": 0.0}, "timeout")]
)
def test_impossible_settings_are_refused(options, words):
    with pytest.raises(SettingError, match=words):
        play(gaussian_game(1.0), **{"trials": 10, **options})
