"""The framework of Lu et al. (2022): the convexified loss, and the chain of sensitivities from it to one answer's noise.

Everything here is the paper's arithmetic. None of it is proven of a network: see `Sensitivity`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from noiseproof.data import Dataset
from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.networks import Network, Training, fit_stack
from noiseproof.privacy import gaussian_dp
from noiseproof.privacy.budget import check_epsilon
from noiseproof.progress import SILENT, Progress
from noiseproof.settings import Count, Positive, check_fields
from noiseproof.tensors import seeded_generator

Form = Literal["paper", "code"]
"""`paper`: eq. 22. `code`: what the authors published and, by its numbers, measured with; see `Convexified`."""


@dataclass(frozen=True)
class Convexified:
    """A loss for `networks.fit_stack`: `log(mean(exp(alpha * l))) / alpha` over each network's batch of cross-entropies.

    The paper calls it convex. It is not: a composition with a network's non-convex losses has only a larger convex
    region. What it does is weigh a record by exp(alpha * l), so that the worst record's weight may approach 1, where a
    mean gives it 1 / batch.

    `form="code"` averages `exp(alpha * l)` over all batch x classes entries of the element-wise cross-entropy, as the
    authors' program does; the classes - 1 entries a record that are not its label are exp(0) = 1. Gradients shrink by
    about the number of classes, which makes the L2 term that much stronger: only this form gives the paper's
    .99 / .65 on Location (eq. 22 gives 1.00 / .61, like the plain loss).

    Formal guarantee
    ----------------
    None: a loss is no noise.

    Examples:
        >>> import torch
        >>> from noiseproof.networks import Training
        >>> training = Training(epochs=10, loss=Convexified(alpha=2.0))  # for `networks.fit_stack`
        >>> logits, labels = torch.tensor([[[0.0, 0.0], [0.0, 9.0]]]), torch.tensor([[0, 0]])
        >>> shares = torch.full((1, 2), 0.5)
        >>> round(float(training.loss(logits, labels, shares)), 2)  # cross-entropies of 0.69 and 9.0, of mean 4.85
        8.65
    """

    alpha: Positive | tuple[Positive, ...] = 1.0
    """The risk factor; several of them are for a stack of networks that are all trained on equally many records."""
    form: Form = "paper"
    """`paper`: eq. 22. `code`: the mean over all batch x classes entries, as in the authors' program."""

    def __post_init__(self) -> None:
        check_fields("convexified loss", self)

    @property
    def alphas(self) -> tuple[float, ...]:
        """The risk factors, one or one a network."""
        return self.alpha if isinstance(self.alpha, tuple) else (self.alpha,)

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """Each network's loss (k,) from logits (k, batch, classes), labels and shares (k, batch)."""
        losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(shares)
        alpha = losses.new_tensor(self.alphas)
        if len(alpha) not in (1, len(losses)):
            raise SettingError(f"{len(losses)} networks cannot be trained with {len(alpha)} values of alpha.")
        return log_mean_exp(losses, shares, alpha, None if self.form == "paper" else logits.shape[-1])


def log_mean_exp(
    losses: torch.Tensor, shares: torch.Tensor, alpha: torch.Tensor, classes: int | None = None
) -> torch.Tensor:
    """`log(sum(shares * exp(alpha * losses))) / alpha` over the last dimension, without computing an exponential of it.

    With `classes` the mean is over batch x classes entries, all of them 1 but the labels'. Records with a share of 0
    count for nothing.
    """
    total = torch.logsumexp(alpha[:, None] * losses + shares.log(), dim=-1)
    if classes is not None:
        others = torch.full_like(total, math.log(classes - 1))
        total = torch.logaddexp(total, others) - math.log(classes)
    return total / alpha


GRID = tuple(step / 2 for step in range(1, 21))
"""(0, 10] in steps of 0.5: the paper's grid."""

_PUBLISHED = {"cifar10": 2.0, "texas": 4.0, "purchase": 5.0, "retail": 5.0} | {
    f"retail-{classes}": 5.0 for classes in (10, 20, 50, 100)
}


def published_alpha(name: str) -> float:
    """Table 4's alpha for a named set (retail has that of the Purchase it stands for); 1 for any other."""
    return _PUBLISHED.get(name, 1.0)


def search_alpha(
    network: Network,
    dataset: Dataset,
    training: Training,
    form: Form,
    *,
    grid: Sequence[float] = GRID,
    validation: float = 0.2,
    seed: int = 0,
    progress: Progress = SILENT,
) -> float:
    """The alpha that is most accurate on records held out; the smallest of equals. All of the grid is trained at once.

    Formal guarantee
    ----------------
    None: the accuracies are those of networks trained without noise on private records. What is chosen this way is
    chosen by private records, and cards say so.
    """
    order = torch.randperm(len(dataset), generator=seeded_generator(seed))
    held = max(1, round(validation * len(dataset)))
    kept = order[held:]
    networks = fit_stack(
        network,
        dataset.features,
        dataset.labels,
        [kept] * len(grid),
        replace(training, loss=Convexified(tuple(grid), form)),
        seeds=[seed] * len(grid),
        progress=progress,
    )
    guesses = networks.logits(dataset.features[order[:held]]).argmax(-1)
    right = (guesses == dataset.labels[order[:held]]).sum(1)
    # argmax gives the first of equals.
    return float(grid[int(right.argmax())])


@dataclass(frozen=True)
class Sensitivity:
    """How far one record may move a dense network's output neurons, as Lu et al. compute it (Table 6).

    Formal guarantee
    ----------------
    None. The chain would need a convex loss (it is not), a training that ends at the minimiser (Adam does not), a
    change that spreads evenly over all weights (`weight`), hidden activations that do not change (`neuron`), and a
    Lipschitz constant of the sum, where a log-mean-exp can give one record all the weight. In one step it is too
    careful: `l2 * ||W||^2` is 2 l2-strongly convex, of which `strong_convexity` uses a quarter (the paper's lemma 1
    has a factor 4 too much). Neighbours: one record removed (paper, section 3), n being the larger size.

    Examples:
        >>> sensitivity = Sensitivity(widths=(14, 128, 2), records=30_000)
        >>> round(sensitivity.neuron, 4), round(sensitivity.probability, 4)
        (0.0624, 0.1328)
    """

    widths: tuple[int, ...]
    """Neurons of each layer: features, hidden layers, classes."""
    records: Count
    """n, the records that the network is trained on."""
    l2: Positive = 1e-3
    """Keras's factor: the loss has `l2 * ||W||^2` over the kernels."""
    peaks: tuple[float, ...] = ()
    """The largest absolute value of a neuron in each layer but the last; empty for 1 in each, as features in [0, 1] and tanh
    have it."""
    bound: float = 1.0
    """The largest absolute value of the last hidden layer's activation."""

    def __post_init__(self) -> None:
        check_fields("sensitivity", self)
        if len(self.widths) < 2 or min(self.widths) < 1 or self.widths[-1] < 2:
            raise SettingError(f"layers of {self.widths} neurons are no classifier.")
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
        """The chain for a dense network.

        Args:
            module: The network, of dense layers alone.
            records: n, the records that it is trained on.
            l2: Keras's factor of the kernels' squares in the loss.
            seen: Features whose largest neuron values stand in for 1; they are read off the records without noise, as the
                paper does, and whoever uses it says so. Without them the activation must be bounded by 1 (tanh, sigmoid).

        Returns:
            The sensitivities.

        Raises:
            UnsupportedError: If the network is not a chain of dense layers, or its activation has no bound.
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


# How epsilon is split within an answer and over answers, for claims; what holds is in `noiseproof.privacy`.


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


def theorem2_delta(epsilon: float) -> float:
    """Theorem 2's delta(epsilon) for mu = epsilon: Phi(-1 + epsilon / 2) - e^epsilon Phi(-1 - epsilon / 2).

    .127 at epsilon 1 and .99995 at 10: what "epsilon-GDP" promises at a usual epsilon is close to nothing.
    """
    return gaussian_dp.delta_of(check_epsilon(epsilon), epsilon)
