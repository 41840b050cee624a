"""Audit: play a method's game in both worlds, many times, and say what it refutes.

Whoever counts only the trials that survived counts a different mechanism. So a mechanism that crashes, hangs or answers
nonsense in one trial ends the audit with an `AuditError`, and no bound is computed.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import traceback
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from noiseproof.audits.two_worlds import Bound, counting_bound, gaussian_bound
from noiseproof.errors import NoiseproofError, SettingError, UnsupportedError
from noiseproof.parallel import tasks
from noiseproof.privacy.budget import Neighbours
from noiseproof.privacy.card import Audit, Claim, Game, Proof, Unit, Verdict, verdict
from noiseproof.progress import SILENT, Progress

if TYPE_CHECKING:
    from noiseproof.audits.power import Power

_CHUNK = 500
"""Trials played in one call: few enough to bound memory, enough for a vectorised game to be quick. Seeds go by chunk,
so that scores do not depend on the number of workers."""

Failure = Literal["crash", "hang", "death", "nan", "count", "kind"]
"""What a mechanism did: raised, gave no answer in time, took its process down, or returned scores that are NaN, too
many or too few, or no numbers."""


class AuditError(NoiseproofError):
    """A mechanism failed in a trial, so no bound was computed. Holds which trials, in which world, and how."""

    failure: Failure
    world: int | None = None
    trials: range
    exception: str | None = None
    """The name of what was raised, if anything was."""

    @classmethod
    def of(cls, message: str, failure: Failure, trials: range, **more: Any) -> AuditError:
        """The error; what it holds beside its message survives a process border."""
        error = cls(message)
        vars(error).update(failure=failure, trials=trials, **more)
        return error


@dataclass(frozen=True)
class AuditResult:
    """A lower bound on a mechanism's epsilon beside what is claimed and proven for it.

    Examples:
        >>> from noiseproof.methods import get
        >>> from noiseproof.privacy import Budget
        >>> result = audit(get("dp-sgd")().game(Budget(3, 1e-5)), trials=200, timeout=None)
        >>> result.verdict, result.contradicts_proof
        ('proven', False)
    """

    game: str
    """What was played, in words."""
    neighbours: Neighbours
    """How the two worlds differ."""
    unit: Unit
    """In whose data they differ."""
    trials: int
    """Runs in each of the two worlds."""
    seed: int
    """What the audit was seeded with."""
    bound: Bound
    """The lower bound, and what was counted for it."""
    claimed: Claim | None = None
    """What is claimed for exactly what was played."""
    proven: Proof | None = None
    """What is proven for exactly what was played."""
    power: Power | None = None
    """What it could have found, where that was asked for (`with_power`)."""
    notes: tuple[str, ...] = ()
    """What a reader must know beside the numbers."""

    @property
    def epsilon(self) -> float:
        """The lower bound."""
        return self.bound.epsilon

    @property
    def audited(self) -> Audit:
        """The result as a card holds it."""
        return Audit(
            epsilon=self.epsilon,
            delta=self.bound.delta,
            confidence=self.bound.confidence,
            trials=self.trials,
            game=self.game,
        )

    @property
    def verdict(self) -> Verdict:
        """What claimed, proven and audited epsilon say together."""
        return verdict(self.claimed, self.proven, self.audited)

    @property
    def contradicts_proof(self) -> bool:
        """Whether the bound is above what is proven: a false alarm (1 in 20 at 95%), or a broken proof or program."""
        return self.proven is not None and self.proven.refuted_by(self.audited)

    def with_power(self) -> AuditResult:
        """The same result with what the audit could have found (`two_worlds_power`): takes a second or two."""
        from noiseproof.audits.power import two_worlds_power

        promise = self.claimed or self.proven
        epsilon = None if promise is None else promise.epsilon_at(self.bound.delta)
        return replace(self, power=two_worlds_power(self.bound, self.trials, epsilon))

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON document."""
        return {
            "game": self.game,
            "unit": self.unit,
            "neighbours": self.neighbours,
            "claimed": None if self.claimed is None else self.claimed.model_dump(mode="json"),
            "proven": None if self.proven is None else self.proven.model_dump(mode="json"),
            "audited": self.audited.model_dump(mode="json"),
            "verdict": self.verdict,
            "contradicts_proof": self.contradicts_proof,
            "estimator": self.bound.estimator,
            "counted": self.bound.counted,
            "falsely": self.bound.falsely,
            "missed": self.bound.missed,
            "seed": self.seed,
            "power": None if self.power is None else self.power.to_json(),
            "notes": list(self.notes),
        }


def audit(
    game: Game,
    *,
    trials: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    jobs: int = 1,
    timeout: float | None = 600.0,
    progress: Progress = SILENT,
) -> AuditResult:
    """Play `game` `trials` times in each world and give the largest epsilon that the scores refute at its delta.

    Where the game says that its scores are normal with one variance (and they are finite, and delta is above 0) the
    Gaussian-DP fit is used, else counting alone. A mechanism that crashes, answers nonsense or lets a chunk of trials
    wait longer than `timeout` seconds raises an `AuditError`; no bound is ever computed from the other trials. With
    `timeout=None` and `jobs=1` everything runs in this process (see `play`).

    Args:
        game: The mechanism's game, such as `Method.game` gives.
        trials: Runs in each world, 5 at least. The more, the larger the epsilon that can be refuted.
        confidence: Of the bound.
        seed: Of the trials.
        jobs: Processes that play at a time.
        timeout: Seconds that a chunk of 500 trials may take; None for no limit.
        progress: Hears of every chunk of trials.

    Returns:
        The bound beside what is claimed and proven for the game.

    Raises:
        AuditError: If the mechanism fails in a trial.
        SettingError: If there are too few trials, or an option is out of range.
        UnsupportedError: If worker processes are needed, forking is impossible and the game cannot be pickled.

    Examples:
        >>> from noiseproof.privacy.card import Claim, Game
        >>> def play(world, trials, generator):  # adds normal noise to 0 or to 1
        ...     return world + torch.randn(trials, generator=generator, dtype=torch.float64)
        >>> claim = Claim(epsilon=0.1, delta=1e-5, source="an example")
        >>> game = Game("noise on a count", play, "add-or-remove", 1e-5, claimed=claim, gaussian=True)
        >>> result = audit(game, trials=1000, timeout=None)
        >>> round(result.epsilon, 1), result.verdict
        (3.7, 'refuted')

    Formal guarantee
    ----------------
    If what `game.play` runs is (epsilon, delta)-DP at the game's delta, unit and neighbours, the bound exceeds epsilon
    with probability at most 1 - confidence, over the randomness of the trials, under the assumptions of
    `counting_bound` or `gaussian_bound`. Repeated audits need their confidences added up.
    """
    scores = play(game, trials=trials, seed=seed, jobs=jobs, timeout=timeout, progress=progress)
    normal = game.gaussian and game.delta > 0 and all(np.isfinite(part).all() for part in scores)
    bound = (gaussian_bound if normal else counting_bound)(scores, delta=game.delta, confidence=confidence)
    return AuditResult(game.name, game.neighbours, game.unit, trials, seed, bound, game.claimed, game.proven)


# Trials


@dataclass(frozen=True)
class _Chunk:
    """Some trials of one world."""

    game: str
    world: int
    trials: range

    def failed(self, failure: Failure, words: str, *, trial: int | None = None, **more: Any) -> AuditError:
        """What went wrong, in words without private values."""
        trials = self.trials if trial is None else range(trial, trial + 1)
        where = f"trial {trials[0]}" if len(trials) == 1 else f"trials {trials[0]} to {trials[-1]}"
        return AuditError.of(
            f"{self.game}: the mechanism {words} in {where} of world {self.world}, so no bound was computed; mend the "
            "mechanism or its game and audit again.",
            failure,
            trials,
            world=self.world,
            **more,
        )


def play(
    game: Game, *, trials: int, seed: int = 0, jobs: int = 1, timeout: float | None = None, progress: Progress = SILENT
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The scores of `trials` runs in world 0 and as many in world 1, all of them, or an `AuditError`.

    Trials are played in chunks of 500, each with a seed of its own, so that the scores depend on `seed` and not on
    `jobs`. With `jobs=1` and no timeout they run in this process, where a hang cannot be stopped. Otherwise they
    run in worker processes, and a chunk that takes longer than `timeout` seconds is a hang: its process is killed.

    Workers are forked: a game is made of closures, which cannot be sent to a fresh process. A forked child must not
    start OpenMP threads where its parent had some, so workers compute on one thread each. Where forking is
    impossible (no `fork` on the system, or CUDA already in use by this process) fresh processes are started, and the
    game must be picklable.

    Args:
        game: What is played.
        trials: Runs in each world, 5 at least.
        seed: Of the trials.
        jobs: Processes that play at a time.
        timeout: Seconds that a chunk may take; None for no limit.
        progress: Hears of every chunk.

    Returns:
        The scores in world 0 and in world 1, (trials,) each.

    Raises:
        AuditError: If the mechanism raises, hangs, takes its process down or returns something else than a number a trial.
        SettingError: If there are too few trials, or an option is out of range.
        UnsupportedError: If worker processes are needed, forking is impossible and the game cannot be pickled.

    Examples:
        >>> from noiseproof.privacy.card import Game
        >>> def noised(world, trials, generator):
        ...     return world + torch.randn(trials, generator=generator, dtype=torch.float64)
        >>> without, with_it = play(Game("noise on a count", noised, "add-or-remove", 1e-5), trials=100)
        >>> without.shape, bool(with_it.mean() > without.mean())
        ((100,), True)
    """
    if trials < 5:
        raise SettingError(f"an audit needs at least 5 trials in each world, not {trials}.")
    if jobs < 1:
        raise SettingError(f"jobs must be at least 1, not {jobs}.")
    if timeout is not None and not timeout > 0:
        raise SettingError(f"the timeout must be more than 0 seconds, not {timeout}.")
    # The worlds take turns: a failure in either shows early.
    chunks = [
        _Chunk(game.name, world, range(start, min(start + _CHUNK, trials)))
        for start in range(0, trials, _CHUNK)
        for world in (0, 1)
    ]
    scores = (np.empty(trials), np.empty(trials))
    apart = jobs > 1 or timeout is not None
    outcomes = tasks.run(
        _attempt,
        chunks,
        common=(game, seed),
        jobs=jobs,
        threads=1 if apart else torch.get_num_threads(),
        attempts=1,
        timeout=timeout,
        isolated=apart,
        fork=apart and _can_fork(game),
        lost=_lost,
    )
    # Closed at once when a trial fails: workers must not outlive the error for as long as its traceback is held.
    with closing(outcomes), progress.task(f"audit {game.name}", 2 * trials) as task:  # type: ignore[type-var]
        for index, outcome in outcomes:
            chunk = chunks[index]
            if isinstance(outcome, AuditError):
                raise outcome
            scores[chunk.world][chunk.trials.start : chunk.trials.stop] = outcome
            task.advance(len(chunk.trials))
    return scores


def _can_fork(game: Game) -> bool:
    if "fork" in multiprocessing.get_all_start_methods() and not torch.cuda.is_initialized():
        return True
    try:
        pickle.dumps(game)
    except Exception:  # whatever a closure's pickling raises: PicklingError, AttributeError, TypeError
        raise UnsupportedError(
            f"{game.name} cannot be sent to a fresh process and forking is impossible here; audit it with jobs=1 and "
            "no timeout, in this process."
        ) from None
    return False


def _lost(chunk: _Chunk, lost: tasks.Lost) -> AuditError:
    if lost.hang:
        return chunk.failed("hang", lost.why.removeprefix("it ").rstrip("."))
    return chunk.failed("death", f"took its process down ({lost.why.rstrip('.')})")


def _attempt(game: Game, seed: int, chunk: _Chunk) -> NDArray[np.float64] | AuditError:
    state = np.random.SeedSequence([seed, chunk.world, chunk.trials.start]).generate_state(2, np.uint64)
    generator = torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))
    count = len(chunk.trials)
    try:
        # A mechanism that forgets the generator draws from torch's global one: forked workers all hold the same copy
        # of it, and trials that repeat one another are no trials.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(state[1] >> np.uint64(1)))
            answer = game.play(chunk.world, count, generator)
    except (Exception, SystemExit) as error:
        # Its type and place; its message only where the house's rule keeps private values out of it.
        name, place = type(error).__name__, traceback.extract_tb(error.__traceback__)[-1]
        sentence = f" ({str(error).rstrip('.')})" if isinstance(error, NoiseproofError) else ""
        words = f"raised {name} at {os.path.basename(place.filename)}:{place.lineno}{sentence}"
        return chunk.failed("crash", words, exception=name)
    try:
        scores = torch.as_tensor(answer).detach().to("cpu", torch.float64).numpy()
    except (TypeError, ValueError, RuntimeError):
        return chunk.failed("kind", f"returned a {type(answer).__name__} where one number a trial is due")
    if scores.shape != (count,):
        shape = "x".join(map(str, scores.shape)) or "one"
        return chunk.failed("count", f"returned {shape} scores for {count} trials")
    bad = np.flatnonzero(np.isnan(scores))
    return chunk.failed("nan", "returned NaN", trial=chunk.trials[bad[0]]) if len(bad) else scores
