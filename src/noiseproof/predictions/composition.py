"""Budget arithmetic of Lu et al. (2022): how epsilon is split within an answer and summed over answers.

It is the paper's own, for claims; what holds is in `noiseproof.guarantees`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

from noiseproof.errors import SettingError
from noiseproof.guarantees import gaussian_dp
from noiseproof.guarantees.budget import check_epsilon

Law = Literal["laplace", "gaussian"]
"""The noise on the chosen neuron: Laplace for epsilon-DP, Gaussian for epsilon-GDP."""


def part_epsilon(epsilon: float, classes: int, law: Law) -> float:
    """The part of an answer's epsilon that choosing the neuron and noising it get each.

    Theorem 6 counts one part for the choice and two for each class: epsilon / (2C + 1); Gaussian parts add up by their
    squares: epsilon / sqrt(4C + 1). (The authors' program divides by sqrt(4C) + 1, which their text does not.)
    """
    check_epsilon(epsilon)
    if classes < 2:
        raise SettingError(f"a classifier needs at least 2 classes, not {classes}.")
    return epsilon / (2 * classes + 1 if law == "laplace" else math.sqrt(4 * classes + 1))


def answer_epsilon(epsilon: float, queries: int, law: Law) -> float:
    """The epsilon of each answer if `queries` of them are to cost `epsilon` together."""
    check_epsilon(epsilon)
    if queries < 1:
        raise SettingError(f"queries must be at least 1, not {queries}.")
    return epsilon / (queries if law == "laplace" else math.sqrt(queries))


def total_epsilon(epsilons: Iterable[float], law: Law) -> float:
    """What answers cost together: the sum (theorem 1), or for GDP the root of the sum of squares (theorem 3)."""
    if law == "laplace":
        return math.fsum(epsilons)
    return math.sqrt(math.fsum(epsilon**2 for epsilon in epsilons))


def answers_within(epsilon: float, each: float, law: Law) -> int:
    """How many answers of epsilon `each` a total of `epsilon` covers."""
    check_epsilon(epsilon)
    ratio = epsilon / check_epsilon(each)
    # A ratio that is a whole number but for rounding is that number.
    return math.floor((ratio if law == "laplace" else ratio**2) * (1 + 1e-12))


def theorem2_delta(epsilon: float) -> float:
    """Theorem 2's delta(epsilon) for mu = epsilon: Phi(-1 + epsilon / 2) - e^epsilon Phi(-1 - epsilon / 2).

    .127 at epsilon 1 and .99995 at 10: what "epsilon-GDP" promises at a usual epsilon is close to nothing.
    """
    return gaussian_dp.delta_of(check_epsilon(epsilon), epsilon)
