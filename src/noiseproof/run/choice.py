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
from noiseproof.privacy.events import ComposedDpEvent, DpEvent, SelectionDpEvent, Stopping
from noiseproof.privacy.renyi import curve
from noiseproof.privacy.selection import Candidate, select
from noiseproof.privacy.steps import read
from noiseproof.releases.release import DataRelease, ModelRelease
from noiseproof.run import spends
from noiseproof.run.row import BASELINE
from noiseproof.run.training import Fitting, resolve

if TYPE_CHECKING:
    from noiseproof.data.splits import Split
    from noiseproof.releases.release import Release

BINS = 16
"""Bins of a class's probability, evenly on the scale of log odds: enough for the AUC, and few, since each gets noise."""

_ODDS = 6.0
"""Log odds beyond which probabilities share a bin."""

_ORDERS = (1.1, 1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 128.0, 1024.0)
"""Orders of Renyi divergence at which what ran is held to what was stated."""

_SECRET = (
    "the choice: how many trainings there were stays secret, and so does everything of those that were not chosen (mind "
    "clocks and logs)"
)
_APART = (
    "the choice: a {unit} is in the training part or among those that scores are computed from, never in both, and both "
    "parts' numbers of {unit}s are public"
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
    (epsilon, delta)-DP for a record or person of either part, what bought bounds have cost included, by `select`'s theorem
    (Papernot and Steinke 2022): a run is its training, whose event the method states beforehand, and its score, a Gaussian
    mechanism on a table of counts or on a sum of squared errors (`_score`); what ran is checked against what was stated. What
    a run is to neighbours follows from how `data.split` treats them. Under add-or-remove the one that is added is in one part
    alone and leaves all others where they are: a run is to it the training or the score, and the selection is accounted with
    the worse. Under replace-one the newcomer may be on the other side than whom it replaces, and another then takes the
    place: both parts may have an exchange, so that a run is the training *and* the score, composed.

    Unit: the split's, a person with all their records where it has persons, who lie in one part, else a record. Neighbours:
    the budget's, which the split must have been made for. Assumptions: those of the methods, and that neither the number of
    runs nor anything of the others is released.

    Examples:
        >>> import noiseproof as npf
        >>> from noiseproof.run.choice import choose
        >>> found = choose([("dp-sgd", {"epochs": 2}), ("functional", {})], npf.load("breast-cancer"), npf.Budget(3.0))
        >>> found.release.card.proven.epsilon <= 3
        True
    """
    if not candidates:
        raise SettingError("give at least one method to choose from.")
    if split.train.unit != split.test.unit:
        raise DataError("persons must be known of both parts of the split or of neither; give groups to both.")
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
        event = SelectionDpEvent(_to_neighbours(*planned(epsilon), budget), expected, stopping)
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
    whole = _to_neighbours(events, scorer, budget)
    best = select(
        [
            Candidate(partial(run, fitting, event), cost)
            for fitting, event, cost in zip(fittings, events, whole, strict=False)
        ],
        rng,
        log,
        runs=expected,
        stopping=stopping,
        besides=whole[len(events) :],
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
        update = {"proven": proven.proof(*card.proven.assumptions, _SECRET, _APART.format(unit=card.unit))}
    claimed = claim_of(budget, "the budget that the choice was calibrated to").model_copy(update={"unit": card.unit})
    update |= {"claimed": claimed, "ran": {**card.ran, **told}}
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


def _to_neighbours(events: Sequence[DpEvent], scorer: Gaussian, budget: Budget) -> list[DpEvent]:
    """What a run of each candidate is to neighbours, and what else any of them may be (see `choose`)."""
    if budget.neighbours == "replace-one":
        return [ComposedDpEvent([event, scorer.event]) for event in events]
    return [*events, scorer.event]


def _check_ran(release: Release, event: DpEvent, budget: Budget) -> None:
    """Refuse a run that did more to the records than was stated: it is not returned, so that nothing of it leaves."""
    ran = EventLog()
    for one, count in release.event_log:
        ran.append(one, count)
    done, allowed = (read(each, budget.neighbours) for each in (ran.event, event))
    # The selection is accounted for at all orders, so that one epsilon's being as stated would not be enough.
    if not done or not allowed or bool((curve(done, _ORDERS) > curve(allowed, _ORDERS) * (1 + 1e-6)).any()):
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
    One Gaussian mechanism. A record is counted once for each judged class, so that the table's L2 sensitivity is the root
    of their number; a squared error of coded targets is at most 1. Where there are persons, each of their n records counts
    for 1 / n: what a person adds is the mean of what their records would, which is no longer than the longest of these, so
    that the sensitivity is the same however many records they have. What is made of the noised table is post-processing,
    with the number of records, or of persons, which is public.
    """
    if isinstance(release, DataRelease):
        # Synthetic records are as good as what is learned from them alone: post-processing.
        release = resolve(BASELINE, release.dataset, epsilon=1.0).fit(release.dataset, Budget(1.0), rng=Reproducible(0))
    assert isinstance(release, ModelRelease)
    answers, labels = release.predict(split.test.features).double(), split.test.labels
    weights = split.test.weights
    if split.train.public.task != "classification":
        squared = (answers[:, 0].clamp(0, 1) - labels.double()).square()
        total = (squared if weights is None else squared * weights).sum()
        # The variance that R2 divides by would cost more; it is the same for all candidates.
        return 1 - float(noise.release(total.reshape(1), rng)) / split.test.persons
    table = count_table(answers, labels, weights)
    others, members = noise.release(table.flatten(), rng).reshape(table.shape).clamp_min(0).double().unbind(1)
    below = others.cumsum(1) - others / 2
    pairs = (members.sum(1) * others.sum(1)).clamp_min(1e-12)
    return float(((members * below).sum(1) / pairs).mean())


def count_table(answers: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """How many records fall into each bin of a class's probability, (judged classes, others or members, bins).

    Args:
        answers: Class probabilities, (records, classes).
        labels: The records' classes.
        weights: What each record counts for, where that is not 1 (`Dataset.weights`).

    Returns:
        Counts; a record adds its weight to one bin of each judged class. Of two classes the first is judged.
    """
    shares = answers / answers.sum(1, keepdim=True).clamp_min(1e-12)
    judged = shares[:, :1] if shares.shape[1] == 2 else shares
    odds = torch.logit(judged, eps=1e-6).clamp(-_ODDS, _ODDS * (1 - 1e-9))
    places = ((odds + _ODDS) / (2 * _ODDS) * BINS).long()
    own = labels[:, None] == torch.arange(judged.shape[1])
    table = torch.zeros(judged.shape[1], 2, BINS, dtype=torch.float64)
    kind = torch.arange(judged.shape[1]).expand_as(places)
    each = torch.ones((), dtype=torch.float64) if weights is None else weights[:, None].expand_as(judged)
    return table.index_put_((kind, own.long(), places), each, accumulate=True)
