"""Section 5.4.5: how many answers until DP-SGD, which pays once, is the better choice?"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from noiseproof.methods.predictions import Teachers
from noiseproof.methods.predictions.answers import ExponentialAnswer, VoteAnswer, calibrate
from noiseproof.methods.predictions.lu import Law, answer_epsilon
from noiseproof.privacy import Budget
from papers.lu.summary import interpolated

if TYPE_CHECKING:
    from papers.lu.summary import Summary


MOST = 10**6
"""More answers are not looked for."""

_LAWS: dict[str, Law] = {"neuron-laplace": "laplace", "neuron-gaussian": "gaussian"}


def epsilon_each(curve: str, total: float, queries: int, delta: float, classes: int) -> float:
    """The epsilon of a single answer if so many are to cost `total`: by the paper's arithmetic, or for siblings as proven."""
    if curve in _LAWS:
        return answer_epsilon(total, queries, _LAWS[curve])
    return _proven_each(curve, total, queries, delta, classes)


@lru_cache(maxsize=4096)
def _proven_each(curve: str, total: float, queries: int, delta: float, classes: int) -> float:
    budget = Budget(total, delta, queries=queries)
    if curve == "teachers":
        method = Teachers()
        count = method.count(budget, classes, 10**9)
        answer = calibrate(lambda amount: VoteAnswer("add-or-remove", amount, count, classes), budget)
        assert isinstance(answer, VoteAnswer)
        return answer.loss
    return calibrate(lambda amount: ExponentialAnswer("add-or-remove", amount, 1.0), budget).amount


def answers_until(
    summary: Summary, curve: str, total: float, delta: float, *, against: str = "dp-sgd-rdp", most: int = MOST
) -> int:
    """The largest number of answers at which a curve's accuracy loss is no more than DP-SGD's for the same total.

    `most` stands for "as many as are looked for": Algorithm 1 never loses more than its limit, so that against a DP-SGD
    that loses more than that no number is too large (and by then its answers mean nothing).
    """
    allowed = interpolated(summary.losses(against), total)
    losses = summary.losses(curve)
    limit = summary.limit if curve in _LAWS else None

    def fits(queries: int) -> bool:
        each = epsilon_each(curve, total, queries, delta, summary.classes)
        return interpolated(losses, each, limit) <= allowed

    return _largest(fits, most)


def _largest(fits: Callable[[int], bool], most: int) -> int:
    """The last number up to `most` that fits, 0 if not even 1 does; what fits is taken to stop at some number."""
    if not fits(1):
        return 0
    if fits(most):
        return most
    low, high = 1, most
    while high - low > max(1, low // 100):
        middle = round((low * high) ** 0.5)
        middle = min(max(middle, low + 1), high - 1)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
