"""Private selection: the best of several private trainings, at little more than the price of one.

Comparing candidates by exact accuracies and taking the best is a look at private data that nobody pays for. Here each
run is private with its score, how many runs there are is random and stays secret, and only the best of them is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch

from noiseproof.errors import NoiseproofError
from noiseproof.privacy.events import DpEvent, EventLog, SelectionDpEvent, Stopping
from noiseproof.privacy.randomness import Randomness
from noiseproof.privacy.steps import SelectionStep

T = TypeVar("T")


@dataclass(frozen=True)
class Candidate(Generic[T]):
    """Something to be chosen: how it is run, and what that costs.

    Attributes:
        run: Runs it once with fresh randomness and returns its result and its score, the higher the better.
        event: All that one run does to private data, *the score included*: train on some, then count correct answers
            with noise, say.

    Examples:
        >>> import torch
        >>> from noiseproof.privacy import Candidate, Laplace
        >>> noisy = Laplace(sensitivity=1.0, epsilon=0.1)
        >>> def run(rng):  # the result, then its private score
        ...     return "weights", noisy.release(torch.tensor([900.0]), rng).item()
        >>> candidate = Candidate(run, noisy.event)
    """

    run: Callable[[Randomness], tuple[T, float]]
    event: DpEvent


@dataclass(frozen=True)
class Selected(Generic[T]):
    """The best run: which candidate it was, what came out, and its private score. All of it may be released.

    Examples:
        `select` returns it:

        >>> from noiseproof.privacy import Candidate, EventLog, Reproducible, select
        >>> from noiseproof.privacy.events import PureDpEvent
        >>> best = select([Candidate(lambda rng: ("weights", 0.9), PureDpEvent(0.1))], Reproducible(0), EventLog(), runs=3)
        >>> best.index, best.result, best.score
        (0, 'weights', 0.9)
    """

    index: int
    """The candidate's place among those given."""
    result: T
    """What its run returned."""
    score: float
    """The run's score, the highest of all; private by the candidate's event."""


def select(
    candidates: Sequence[Candidate[T]],
    rng: Randomness,
    log: EventLog,
    *,
    runs: float,
    stopping: Stopping = "geometric",
    besides: Sequence[DpEvent] = (),
) -> Selected[T] | None:
    """Run candidates chosen at random a random number of times, and return the run of the highest score.

    Formal guarantee
    ----------------
    If every candidate's run, result and score together, is (order, r)-RDP for one record by its event, then what is
    returned is (order, r')-RDP, where with a second order a (any above 1, at which runs are (a, s)-RDP)

    - `geometric`: r' = r + 2 (1 - 1/a) s + 2 log(runs) / a + log(runs) / (order - 1),
    - `logarithmic`: r' = r + (1 - 1/a) s + log(1/gamma) / a + log(runs) / (order - 1), where gamma gives that mean,
    - `poisson`: r' = r + runs * delta + log(runs) / (order - 1), where runs are (log(order / (order - 1)), delta)-DP

    (Papernot and Steinke 2022, theorems 2 and 6). `SelectionDpEvent` is appended to `log`, which accountants read so.
    Unit and neighbours are those of the events. It assumes that runs are independent but for what is public, that
    nothing else of them is released, *not even how many there were* (mind clocks, logs and progress bars), and that a
    score is a number.

    Args:
        candidates: What to choose from.
        rng: Where the number of runs, the candidates' order and the runs' randomness come from.
        log: Where the event is noted, before the first run.
        runs: The expected number of runs; three for each candidate miss the best with a probability of about a quarter
            (geometric) or a twentieth (Poisson).
        stopping: The law of the number of runs. `poisson` varies least, and may give 0 runs; `logarithmic` costs least.
            Ten expected runs within epsilon 3 at delta 1e-5 leave each run of DP-SGD about 1.2 by `poisson`, 1.3 by
            `geometric` and 1.6 by `logarithmic`; `calibration.calibrate` finds the noise.
        besides: What a run may be to other records instead of its candidate's event, as a score on records held out is.

    Returns:
        The best run; None if the number of runs was 0.

    Raises:
        SettingError: If `runs` or `stopping` is impossible.
        NoiseproofError: If a score is NaN.

    Examples:
        >>> import torch
        >>> from noiseproof.privacy import Candidate, EventLog, Laplace, Secure, accountants, select
        >>> noisy = Laplace(sensitivity=1.0, epsilon=0.1)
        >>> def counted(right):  # so many answers were right: a private number
        ...     def run(rng):
        ...         return "weights", noisy.release(torch.tensor([float(right)]), rng).item()
        ...     return Candidate(run, noisy.event)
        >>> log = EventLog()
        >>> best = select([counted(500), counted(900)], Secure(), log, runs=8)
        >>> round(accountants.epsilon(log.event, 0.0).epsilon, 3)
        0.3
    """
    event = SelectionDpEvent([*(candidate.event for candidate in candidates), *besides], runs, stopping)
    log.append(event)
    best: Selected[T] | None = None
    for number in range(_number_of_runs(runs, stopping, rng)):
        index = int(rng.choose(torch.zeros(len(candidates))))
        result, score = candidates[index].run(rng.spawn(number))
        if math.isnan(score):
            raise NoiseproofError("a candidate's score is NaN; check what it was computed from.")
        if best is None or score > best.score:
            best = Selected(index, result, score)
    return best


def _number_of_runs(runs: float, stopping: Stopping, rng: Randomness) -> int:
    least, logits = law_of_runs(runs, stopping)
    return least + int(rng.choose(torch.from_numpy(logits)))


def law_of_runs(runs: float, stopping: Stopping) -> tuple[int, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """The least number of runs, and the logarithms of the weights of it and of those after it, but for e^-700 of them."""
    from scipy.special import gammaln

    # Only the largest numbers are cut off: the smallest, however rare, decide how likely the worst results are.
    if stopping == "poisson":
        counts = np.arange(0, int(runs + 40 * np.sqrt(runs) + 700))
        return 0, counts * np.log(runs) - gammaln(counts + 1)
    fall = np.log1p(-SelectionStep("selection", runs, stopping=stopping).gamma)
    counts = np.arange(1, int(-700 / fall) + 2)
    return 1, counts * fall - (np.log(counts) if stopping == "logarithmic" else 0.0)
