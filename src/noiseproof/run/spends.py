"""What a run spends besides its training: bounds that were bought before it, and the width of intervals after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.methods import Method
from noiseproof.privacy import Budget, Exponential, Neighbours
from noiseproof.privacy.events import DpEvent, PureDpEvent
from noiseproof.releases.release import ModelRelease

if TYPE_CHECKING:
    from noiseproof.data.dataset import Bought, Dataset
    from noiseproof.privacy import Randomness
    from noiseproof.releases.release import Release

SHARE = 0.1
"""The part of epsilon that pays for the width of intervals."""

_OCTAVE, _OCTAVES = 16, 10
"""Half widths that are tried: 16 for each doubling, from 2^-10 of the target's range to all of it."""


def before(method: Method, dataset: Dataset, budget: Budget) -> tuple[Budget, float]:
    """What a budget leaves to the training itself.

    Args:
        method: What is to be trained.
        dataset: The private records, of which only what is public is read.
        budget: What may be spent on them in all.

    Returns:
        The training's budget, and the epsilon that intervals are to cost.

    Raises:
        SettingError: If bounds were bought on other terms, or have cost the whole budget.
        UnsupportedError: If the method's answers are paid for one by one, and know of no bounds.
    """
    bought = _paid(method, dataset)
    if bought is not None:
        if method.place == "predictions":
            raise UnsupportedError(
                f"{method.name} is paid for answer by answer, which does not account for bounds that were bought from the "
                "records; take a method that gives a model, or public bounds."
            )
        budget = after_bounds(dataset, budget)
    if not getattr(method, "interval", 0.0):
        return budget, 0.0
    if dataset.public.task == "classification":
        raise SettingError("intervals are for regressions and counts, not for classes.")
    width = SHARE * budget.epsilon
    return budget.less(width), width


def after_bounds(dataset: Dataset, budget: Budget) -> Budget:
    """What a budget leaves where bounds were bought from the records; it refuses bounds that were bought on other terms."""
    bought = dataset.public.bought
    if bought is None:
        return budget
    if (bought.unit, bought.neighbours) != (dataset.unit, budget.neighbours):
        raise SettingError(
            f"the bounds were bought for a {bought.unit} under {bought.neighbours}, and the run is for a {dataset.unit} "
            f"under {budget.neighbours}; buy them on the run's terms."
        )
    return budget.less(bought.epsilon, bought.delta)


def after(
    release: Release, method: Method, dataset: Dataset, width: float, neighbours: Neighbours, rng: Randomness
) -> None:
    """Add intervals to a release, if they were asked for, and to its card what was spent besides the training.

    Args:
        release: What the training came to.
        method: What was trained.
        dataset: The private records that it was trained on.
        width: The epsilon for intervals.
        neighbours: The budget's.
        rng: The run's randomness.

    Formal guarantee
    ----------------
    Basic composition of the training, of the bounds as they were bought, and of an exponential mechanism (`margin`).
    """
    if width:
        if not isinstance(release, ModelRelease):
            raise UnsupportedError(f"{method.name} gives no model, and so no intervals.")
        quantile = Exponential(1.0, width, neighbours)
        exact = method.place == "none"
        found = margin(release, dataset, method.interval, None if exact else quantile, rng)  # type: ignore[attr-defined]
        if not exact:
            what = f"Epsilon {width:.3g} of it paid for the width of intervals."
            release.card = release.card.with_spent(width, 0.0, what)
            _log(release, quantile.event)
        release.margin = found
    add_bounds(release, _paid(method, dataset), neighbours)


def add_bounds(release: Release, bought: Bought | None, neighbours: Neighbours) -> None:
    """Add to a release's card and events what bounds have cost that were bought from its records."""
    if bought is not None:
        event = None if bought.delta else PureDpEvent(bought.epsilon, neighbours)
        if bought.note not in release.card.notes:  # else the method's card has counted it
            release.card = release.card.with_spent(bought.epsilon, bought.delta, bought.note)
        _log(release, event)


def margin(
    release: ModelRelease, dataset: Dataset, share: float, mechanism: Exponential | None, rng: Randomness
) -> float:
    """How far from its prediction a target lies at most, for so large a share of the records.

    Args:
        release: What predicts.
        dataset: The private records. That the release was trained on them makes their errors a little too small; training
            within a budget, not by much.
        share: The share of the targets, or of persons' targets each person counting once, that intervals are to hold.
        mechanism: Chooses among the widths; None takes the best, without any guarantee.
        rng: Where its randomness comes from.

    Returns:
        The half width, coded as targets are.

    Formal guarantee
    ----------------
    An exponential mechanism. A width's score is how far the number of errors within it is from what it should be, which one
    record, or one person whose records count for 1 together, moves by at most 1.
    """
    widths = 2.0 ** (torch.arange(-_OCTAVES * _OCTAVE, 1, dtype=torch.float64) / _OCTAVE)
    weights = torch.ones(len(dataset), dtype=torch.float64) if dataset.weights is None else dataset.weights
    errors = torch.cat(
        [
            (release.predict(features)[:, 0].double() - labels.double()).abs()
            for features, labels in zip(dataset.features.split(4096), dataset.labels.split(4096), strict=True)
        ]
    )
    places = torch.searchsorted(widths, errors)
    held = torch.zeros(len(widths) + 1, dtype=torch.float64).index_add_(0, places, weights.cpu()).cumsum(0)[:-1]
    scores = -(held - share * dataset.persons).abs()
    return float(widths[int(scores.argmax() if mechanism is None else mechanism.release(scores, rng))])


def _paid(method: Method, dataset: Dataset) -> Bought | None:
    """What bounds cost, where that counts: the baseline promises nothing."""
    return None if method.place == "none" else dataset.public.bought


def _log(release: Release, event: DpEvent | None) -> None:
    if release.event_log:
        # Of a delta without a noise's law no event tells; such a bundle's epsilon cannot be accounted for again.
        release.event_log = () if event is None else (*release.event_log, (event, 1))
