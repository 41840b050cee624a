"""A choice among methods and settings that is paid for: train several, keep the best by a private score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from noiseproof.errors import DataError, SettingError, UnsupportedError
from noiseproof.methods.common import claim_of
from noiseproof.privacy import Budget, EventLog, Gaussian, Randomness, Reproducible, Secure, accountants, calibration
from noiseproof.privacy.events import DpEvent, SelectionDpEvent, Stopping
from noiseproof.privacy.selection import Candidate, select
from noiseproof.releases.release import DataRelease, ModelRelease
from noiseproof.run import spends
from noiseproof.run.results import BASELINE
from noiseproof.run.training import Fitting, resolve

if TYPE_CHECKING:
    from noiseproof.data.splits import Split
    from noiseproof.releases.release import Release

BINS = 16
"""Bins of a class's probability, evenly on the scale of log odds: enough for the AUC, and few, since each gets noise."""

_ODDS = 6.0
"""Log odds beyond which probabilities share a bin."""

_ASSUMPTIONS = (
    "the choice: how many trainings there were stays secret, and so does everything of those that were not chosen (mind "
    "clocks and logs)",
    "the choice: a record is in the training part or among those that scores are computed from, never in both, and both "
    "parts' numbers of records are public",
)


@dataclass(frozen=True)
class Choice:
    """What was chosen.

    Attributes:
        release: The release of the best run; its card's proof includes the choice.
        candidate: Which candidate it was, counted from 0.
        score: Its private score, which may be released with it.
        measure: What the score is.
    """

    release: Release
    candidate: int
    score: float
    measure: str


def choose(
    candidates: Sequence[tuple[str, Mapping[str, Any]]],
    split: Split,
    budget: Budget,
    *,
    runs: float | None = None,
    stopping: Stopping = "logarithmic",
    rng: Randomness | None = None,
) -> Choice:
    """Train candidates on the training part a random number of times, and keep the run of the best private score.

    Args:
        candidates: Methods and their settings.
        split: Records to train on, and the private records that scores are computed from.
        budget: What the choice, all its trainings and scores included, may spend.
        runs: The expected number of trainings; three for each candidate by default.
        stopping: The law of their number; see `noiseproof.privacy.selection.select`.
        rng: Where all randomness comes from; secure by default.

    Returns:
        The best run.

    Raises:
        UnsupportedError: If a method cannot say beforehand what a run does to the records, or is paid for by the answer.
        SettingError: If there are no candidates or the budget allows none.

    Formal guarantee
    ----------------
    (epsilon, delta)-DP for a record of either part, what bought bounds have cost included, by `select`'s theorem (Papernot
    and Steinke 2022): a run is its training, whose event the method states beforehand, and its score, a Gaussian mechanism on
    a table of counts (or on a sum of squared errors, each at most 1). A record is in one part alone, so that a run is to it
    either the training or the score, and both are among the events that the selection is accounted with; what ran is checked
    against what was stated. Unit: record. Neighbours: the budget's, which the split must have been made for. Assumptions:
    those of the methods, and that neither the number of runs nor anything of the others is released.

    >>> import noiseproof as npf
    >>> from noiseproof.run.choice import choose
    >>> found = choose([("dp-sgd", {"epochs": 2}), ("functional", {})], npf.load("breast-cancer"), npf.Budget(3.0))
    >>> found.release.card.proven.epsilon <= 3
    True
    """
    if not candidates:
        raise SettingError("give at least one method to choose from.")
    if split.train.unit != "record":
        raise UnsupportedError(
            "a paid choice is accounted for records, not for persons; leave the person's column out."
        )
    rng = Secure() if rng is None else rng
    # Bounds were bought once, of the records of both parts: they are paid for beside the choice, not within its runs.
    public = split.train.public
    budget = spends.after_bounds(split.train, budget)
    split = replace(split, train=replace(split.train, public=replace(public, bought=None)))
    fittings = [resolve(name, split.train, epsilon=budget.epsilon, settings=given) for name, given in candidates]
    expected = 3.0 * len(fittings) if runs is None else runs

    def planned(epsilon: float) -> tuple[list[DpEvent], Gaussian]:
        inner = replace(budget, epsilon=epsilon)
        events = [_stated(fitting, split, inner) for fitting in fittings]
        return events, _scorer(split, inner)

    def spent(epsilon: float) -> float:
        events, scorer = planned(epsilon)
        event = SelectionDpEvent([*events, scorer.event], expected, stopping)
        return accountants.epsilon(event, budget.delta, accountant="rdp", neighbours=budget.neighbours).epsilon

    each = calibration.calibrate(
        spent, budget.epsilon, start=budget.epsilon / 2, low=budget.epsilon / 1000, high=budget.epsilon, increasing=True
    )
    events, scorer = planned(each)
    inner = replace(budget, epsilon=each)

    def run(fitting: Fitting, event: DpEvent, rng: Randomness) -> tuple[Release, float]:
        release = fitting.fit(split.train, inner, rng=rng.spawn(0))
        _check_ran(release, event, budget)
        return release, _score(release, split, scorer, rng.spawn(1))

    log = EventLog()
    best = select(
        [Candidate(partial(run, fitting, event), event) for fitting, event in zip(fittings, events, strict=True)],
        rng,
        log,
        runs=expected,
        stopping=stopping,
        besides=[scorer.event],
    )
    if best is None:
        raise DataError(
            "the random number of trainings was 0, and the budget is spent; a law other than poisson has 1 or more."
        )
    release, card = best.result, best.result.card
    proven = accountants.epsilon(log.event, budget.delta, neighbours=budget.neighbours)
    told = {
        "candidates": [_named(*candidate) for candidate in candidates],
        "chosen": best.index,
        "expected trainings": expected,
        "law of their number": stopping,
        "epsilon of a training": each,
        "score": best.score,
        "score's noise": scorer.sigma,
    }
    if card.proven is None:
        update: dict[str, Any] = {}
    else:
        update = {"proven": proven.proof(*card.proven.assumptions, *_ASSUMPTIONS)}
    update |= {"claimed": claim_of(budget, "the budget that the choice was calibrated to"), "ran": {**card.ran, **told}}
    release.card = card.model_copy(update=update)
    release.event_log, release.public = log.runs, public
    spends.add_bounds(release, public.bought, budget.neighbours)
    return Choice(release, best.index, best.score, "R2" if split.train.public.task != "classification" else "ROC AUC")


def _named(method: str, settings: Mapping[str, Any]) -> str:
    return " ".join([method, *(f"{name}={value}" for name, value in settings.items())])


def _stated(fitting: Fitting, split: Split, budget: Budget) -> DpEvent:
    if getattr(fitting.method, "interval", 0.0):
        raise UnsupportedError("a paid choice does not account for intervals; leave `interval` away.")
    event = fitting.method.planned_event(split.train, budget)
    if event is None:
        raise UnsupportedError(
            f"{fitting.method.name} cannot take part in a paid choice: with these settings it does not state before it runs "
            "what it will do to the records, or its answers are paid for one by one. dp-sgd and its variants, dp-mf, "
            "functional, shard-mean, dp-gan, zero-gan and marginals can."
        )
    return event


def _check_ran(release: Release, event: DpEvent, budget: Budget) -> None:
    """Refuse a run that did more to the records than was stated: it is not returned, so that nothing of it leaves."""
    ran = EventLog()
    for one, count in release.event_log:
        ran.append(one, count)
    terms: Any = {"accountant": "rdp", "neighbours": budget.neighbours}
    done, allowed = (accountants.epsilon(each, budget.delta, **terms).epsilon for each in (ran.event, event))
    if not release.event_log or done > allowed * (1 + 1e-6):
        raise UnsupportedError(f"{release.method} did more to the records than it had stated; nothing was chosen.")


def _judged(split: Split) -> int:
    """How many classes have a histogram: of two, one says it all."""
    classes = split.test.classes
    return 1 if classes == 2 else classes


def _scorer(split: Split, budget: Budget) -> Gaussian:
    """The noise of a score, as large as what a training may spend allows."""
    sensitivity = _judged(split) ** 0.5 if split.train.public.task == "classification" else 1.0
    return Gaussian(
        sensitivity, calibration.sigma(budget.epsilon, budget.delta, 1.0, 1, neighbours=budget.neighbours).sigma
    )


def _score(release: Release, split: Split, noise: Gaussian, rng: Randomness) -> float:
    """The ROC AUC (of several classes the mean of each against the rest) or R2 from noised counts or sums of the records.

    Formal guarantee
    ----------------
    One Gaussian mechanism: a record is counted once for each judged class, so that the table's L2 sensitivity is the root
    of their number; a squared error of coded targets is at most 1. What is made of the noised table is post-processing.
    """
    if isinstance(release, DataRelease):
        # Synthetic records are as good as what is learned from them alone: post-processing.
        release = resolve(BASELINE, release.dataset, epsilon=1.0).fit(release.dataset, Budget(1.0), rng=Reproducible(0))
    assert isinstance(release, ModelRelease)
    answers, labels = release.predict(split.test.features).double(), split.test.labels
    if split.train.public.task != "classification":
        squared = (answers[:, 0].clamp(0, 1) - labels.double()).square().sum()
        # The variance that R2 divides by would cost more; it is the same for all candidates.
        return 1 - float(noise.release(squared.reshape(1), rng)) / len(labels)
    table = count_table(answers, labels)
    others, members = noise.release(table.flatten(), rng).reshape(table.shape).clamp_min(0).double().unbind(1)
    below = others.cumsum(1) - others / 2
    pairs = (members.sum(1) * others.sum(1)).clamp_min(1e-12)
    return float(((members * below).sum(1) / pairs).mean())


def count_table(answers: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """How many records fall into each bin of a class's probability, (judged classes, others or members, bins).

    Args:
        answers: Class probabilities, (records, classes).
        labels: The records' classes.

    Returns:
        Counts; a record adds 1 to one bin of each judged class. Of two classes the first is judged.
    """
    shares = answers / answers.sum(1, keepdim=True).clamp_min(1e-12)
    judged = shares[:, :1] if shares.shape[1] == 2 else shares
    odds = torch.logit(judged, eps=1e-6).clamp(-_ODDS, _ODDS * (1 - 1e-9))
    places = ((odds + _ODDS) / (2 * _ODDS) * BINS).long()
    own = labels[:, None] == torch.arange(judged.shape[1])
    table = torch.zeros(judged.shape[1], 2, BINS, dtype=torch.float64)
    kind = torch.arange(judged.shape[1]).expand_as(places)
    return table.index_put_((kind, own.long(), places), torch.ones((), dtype=torch.float64), accumulate=True)
