"""The sensitivity chain of Lu et al. (2022): from a Lipschitz constant to what one record may move an answer by.

Everything here is the paper's arithmetic. None of it is proven of a network: see `Sensitivity`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import nn

from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.privacy import gaussian_dp
from noiseproof.privacy.budget import check_epsilon


@dataclass(frozen=True)
class Sensitivity:
    """How far one record may move a dense network's output neurons, as Lu et al. compute it (Table 6).

    `widths` are the neurons a layer: features, hidden layers, classes. `peaks` are the largest absolute values of the
    neurons in each layer but the last (1 for features in [0, 1] and for tanh), `bound` that of the last hidden layer's
    activation. `l2` is Keras's factor: the loss has `l2 * ||W||^2` over the kernels.

    Formal guarantee
    ----------------
    None. The chain would need a convex loss (it is not), a training that ends at the minimiser (Adam does not), a
    change that spreads evenly over all weights (`weight`), hidden activations that do not change (`neuron`), and a
    Lipschitz constant of the sum, where a log-mean-exp can give one record all the weight. In one step it is too
    careful: `l2 * ||W||^2` is 2 l2-strongly convex, of which `strong_convexity` uses a quarter (the paper's lemma 1
    has a factor 4 too much). Neighbours: one record removed (paper, section 3), n being the larger size.
    """

    widths: tuple[int, ...]
    records: int
    l2: float = 1e-3
    peaks: tuple[float, ...] = ()
    bound: float = 1.0

    def __post_init__(self) -> None:
        if len(self.widths) < 2 or min(self.widths) < 1 or self.widths[-1] < 2:
            raise SettingError(f"layers of {self.widths} neurons are no classifier.")
        if self.records < 1:
            raise SettingError(f"a training has at least one record, not {self.records}.")
        if not (math.isfinite(self.l2) and self.l2 > 0):
            raise SettingError(f"l2 must be a finite number greater than 0, not {self.l2}.")
        if self.peaks and len(self.peaks) != len(self.widths) - 1:
            raise SettingError(f"{len(self.widths) - 1} layers need as many peaks, not {len(self.peaks)}.")

    @property
    def classes(self) -> int:
        """Number of classes."""
        return self.widths[-1]

    @property
    def lipschitz(self) -> float:
        """rho: eq. 21, the Lipschitz constant of the cross-entropy in the weights."""
        layers = self.widths[:-1]
        peaks = self.peaks or (1.0,) * len(layers)
        product = math.prod(math.sqrt(width) * peak for width, peak in zip(layers, peaks, strict=True))
        return (self.classes - 1) * product / (self.classes * layers[-1])

    @property
    def strong_convexity(self) -> float:
        """lambda: half of the L2 factor, as the paper's numbers have it."""
        return self.l2 / 2

    @property
    def weights(self) -> float:
        """d2W: theorem 4, how far all weights may move together."""
        return 2 * self.lipschitz / (self.strong_convexity * self.records)

    @property
    def weight(self) -> float:
        """d-omega: eq. 18, how far one weight may move if all share the change evenly."""
        return self.weights / math.sqrt(sum(fan_in * fan_out for fan_in, fan_out in pairwise(self.widths)))

    @property
    def neuron(self) -> float:
        """d-z: corollary 1, how far one output neuron may move."""
        return self.bound * self.widths[-2] * self.weight

    @property
    def change(self) -> float:
        """exp(2 d-z) - 1, which bounds the change of a probability where it is below 1."""
        return math.expm1(min(2 * self.neuron, 700.0))

    @property
    def probability(self) -> float:
        """d-p: corollary 2, how far one probability may move."""
        return min(self.change, 1.0)

    @property
    def stability(self) -> float:
        """OARO: theorem 4's bound 2 rho^2 / (lambda n) on the loss that leaving a record out adds, on average."""
        return self.lipschitz * self.weights

    @classmethod
    def of(cls, module: nn.Module, records: int, *, l2: float = 1e-3, seen: torch.Tensor | None = None) -> Sensitivity:
        """The chain for a dense network; with `seen`, features whose largest neuron values stand in for 1.

        Without `seen` the activation must be bounded by 1 (tanh, sigmoid). What is seen is read off the records without
        noise, as the paper does: whoever uses it says so.
        """
        layers = dense_layers(module)
        widths = (*(layer.in_features for layer in layers), layers[-1].out_features)
        if seen is not None:
            peaks = largest_values(module, layers, seen)
            return cls(widths, records, l2, peaks, bound=peaks[-1] if len(layers) > 1 else 1.0)
        for part in module.modules():
            if isinstance(part, nn.ReLU | nn.ELU | nn.GELU | nn.Softplus):
                raise UnsupportedError(
                    f"{type(part).__name__} has no bound, which the sensitivity of a neuron needs; choose tanh, or let "
                    'the largest value seen stand in for it (peaks="seen").'
                )
        return cls(widths, records, l2)


def dense_layers(module: nn.Module) -> list[nn.Linear]:
    """The layers of a fully connected network in order; anything else that has weights is refused."""
    layers = [part for part in module.modules() if isinstance(part, nn.Linear)]
    others = {
        type(part).__name__
        for part in module.modules()
        if not isinstance(part, nn.Linear) and next(part.parameters(recurse=False), None) is not None
    }
    chained = all(before.out_features == after.in_features for before, after in pairwise(layers))
    if others or not layers or not chained:
        what = f"it has {', '.join(sorted(others))} layers" if others else "its layers are no chain"
        raise UnsupportedError(
            f"Lu et al.'s sensitivities are for fully connected networks, and this is none: {what}; choose lu-mlp or mlp."
        )
    return layers


def largest_values(module: nn.Module, layers: Sequence[nn.Linear], features: torch.Tensor) -> tuple[float, ...]:
    """The largest absolute value that goes into each layer, over the records: x_t of eq. 21.

    Formal guarantee
    ----------------
    None: these are maxima over private records, without noise.
    """
    peaks = dict.fromkeys(layers, 0.0)

    def look(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        assert isinstance(layer, nn.Linear)
        peaks[layer] = max(peaks[layer], float(inputs[0].abs().max()))

    hooks = [layer.register_forward_pre_hook(look) for layer in layers]
    try:
        with torch.no_grad():
            for part in features.split(1024):
                module(part)
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(peaks.values())


# Budget arithmetic of Lu et al. (2022): how epsilon is split within an answer and summed over answers.
#
# It is the paper's own, for claims; what holds is in `noiseproof.privacy`.


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
