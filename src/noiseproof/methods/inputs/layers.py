"""Hidden units bounded to [-1, 1]: eq. 22's local response normalisation and min-max, the program's batch normalisation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from noiseproof.errors import UnsupportedError
from noiseproof.privacy import Randomness
from noiseproof.privacy.budget import check_epsilon

Bound = Literal["local-response", "batch-norm", "max-out"]
"""What bounds hidden units. `local-response`: eq. 22 after convolutions and min-max after dense layers, as the paper says.
`batch-norm`: the authors' program on MNIST, which normalises the last hidden layer over the batch, applies its activation and
clips to [-1, 1]; other layers are left alone. `max-out`: the same on CIFAR-10, with max-out in place of the activation (over
as many groups as units, as the program has it, that is no activation at all), and normalises convolutions' units, too."""


class LocalResponse(nn.Module):
    """Eq. 22 of Phan et al.: a unit over the larger of itself and (q + alpha * its neighbours' squares) ^ beta.

    The neighbours are the units at the same place in the `length` feature maps around. What is not negative becomes at
    most 1. The defaults are the paper's.
    """

    def __init__(self, q: float = 2.0, length: int = 5, alpha: float = 1e-4, beta: float = 0.75) -> None:
        super().__init__()
        self.q, self.length, self.alpha, self.beta = q, length, alpha, beta

    def forward(self, units: torch.Tensor) -> torch.Tensor:
        """The bounded units, of (records, maps, ...)."""
        reach = self.length // 2
        squares = units.square().flatten(2).unsqueeze(1)
        window = (2 * reach + 1, 1)
        total = functional.avg_pool2d(squares, window, stride=1, padding=(reach, 0)) * window[0]
        around = (self.q + self.alpha * total.squeeze(1).view_as(units)) ** self.beta
        return units / torch.maximum(units, around)


class MinMax(nn.Module):
    """Each unit of a dense layer moved and stretched to [0, 1] by its extremes over the batch, as in the paper.

    In evaluation the extremes are those of the last batch that was seen in training, and what lies beyond them is cut off:
    a record's answer does not depend on the others that it is asked with. A unit that is the same for all is 0.
    """

    low: torch.Tensor
    high: torch.Tensor

    def __init__(self, units: int) -> None:
        super().__init__()
        self.register_buffer("low", torch.zeros(units))
        self.register_buffer("high", torch.ones(units))

    def forward(self, units: torch.Tensor) -> torch.Tensor:
        """The bounded units, of (records, units)."""
        low, high = self.low, self.high
        if self.training:
            low, high = units.amin(0), units.amax(0)
            with torch.no_grad():
                self.low.copy_(low)
                self.high.copy_(high)
        span = (high - low).clamp(min=torch.finfo(units.dtype).eps)
        return ((units - low) / span).clamp(0, 1)


def bounded(module: nn.Module, how: Bound = "local-response") -> nn.Module:
    """The network with its hidden units bounded, in one of the readings of `Bound`."""
    layers: list[nn.Module] = []
    if how == "local-response":
        units = 0
        for layer in chain(module):
            layers.append(layer)
            if isinstance(layer, AFFINE):
                units = layer.out_features if isinstance(layer, nn.Linear) else 0
            elif isinstance(layer, ACTIVATIONS):
                layers.append(MinMax(units) if units else LocalResponse())
        return nn.Sequential(*layers)
    dense = [layer for layer in chain(module) if isinstance(layer, nn.Linear)]
    last = dense[-2] if len(dense) > 1 else None
    inside, maps = False, 0
    for layer in chain(module):
        if isinstance(layer, nn.Conv2d):
            maps = layer.out_channels
        if inside and isinstance(layer, ACTIVATIONS):
            layers += [nn.Hardtanh()] if how == "max-out" else [layer, nn.Hardtanh()]
            inside = False
            continue
        layers.append(layer)
        # Momentum 1 keeps the statistics of the last batch alone: a record's answer depends on no other's.
        if last is not None and layer is last:
            layers.append(nn.BatchNorm1d(last.out_features, eps=1e-3, momentum=1.0))
            inside = True
        elif how == "max-out" and maps and isinstance(layer, ACTIVATIONS):
            layers.append(nn.BatchNorm2d(maps, eps=1e-3, momentum=1.0))
            maps = 0
    return nn.Sequential(*layers)


# The layers of a network that is one chain, and what each of them is to relevances and to noise.


AFFINE = (nn.Linear, nn.Conv1d, nn.Conv2d)
"""Layers with weights, each output a sum over inputs."""
POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool2d)
ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.Softplus)
_NORMS = (nn.GroupNorm, nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d, LocalResponse, MinMax, nn.Hardtanh)
PASSED = (*ACTIVATIONS, nn.Dropout, nn.Dropout2d, nn.Identity, *_NORMS)
"""Layers that keep the number of units: a unit's relevance is that of the unit it came from."""
_KNOWN = (*AFFINE, *POOLS, *PASSED, nn.Flatten)


def chain(module: nn.Module) -> list[nn.Module]:
    """The layers in the order in which a record meets them; refused where the network is not one chain of known ones."""
    return list(_walk(module))


def _walk(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, nn.Sequential):
        for layer in module:
            yield from _walk(layer)
    elif isinstance(module, _KNOWN):
        yield module
    else:
        raise UnsupportedError(
            f"relevances and noise at the inputs are defined for chains of dense, convolution and pooling layers, not for "
            f"{type(module).__name__}; give a torch Sequential of those."
        )


def last_hidden(module: nn.Module) -> int:
    """|h_k|: how many units the output layer reads."""
    last = [layer for layer in chain(module) if isinstance(layer, AFFINE)][-1]
    if not isinstance(last, nn.Linear):
        raise UnsupportedError(
            "the output layer must be a dense one for its loss to be a polynomial of the last units."
        )
    return last.in_features


def first_units(module: nn.Module, shape: tuple[int, ...]) -> tuple[int, int]:
    """|h0| and the inputs of one unit of it, as the authors count them.

    A dense layer has its units, each reading every feature. A convolution counts once for every place of one feature map,
    after the pool that follows it where there is one, and a unit reads one patch: 14 x 14 and 25 for their MNIST network.
    """
    layers = chain(module)
    where = next(index for index, layer in enumerate(layers) if isinstance(layer, AFFINE))
    layer = layers[where]
    if isinstance(layer, nn.Linear):
        return layer.out_features, layer.in_features
    assert isinstance(layer, nn.Conv1d | nn.Conv2d)
    later = (index for index in range(where + 1, len(layers)) if not isinstance(layers[index], PASSED))
    after = next(later, len(layers))
    # The pool belongs to h0; whatever else follows does not.
    stop = after + 1 if after < len(layers) and isinstance(layers[after], POOLS) else where + 1
    with torch.no_grad():
        units = nn.Sequential(*layers[:stop]).cpu()(torch.zeros(1, *shape))
    return math.prod(units.shape[2:]), layer.weight[0].numel()


# The loss as a polynomial: cross-entropy's Taylor form, its coefficients and their noise (Phan et al., eqs 24 and 25).


def first_order(labels: torch.Tensor, classes: int) -> torch.Tensor:
    """1/2 - y_l for each record and class: the only coefficients that depend on a label."""
    return 0.5 - functional.one_hot(labels, classes).float()


SECOND_ORDER = 1 / 8
"""The coefficient of z^2, the same for every record and class."""


def taylor_loss(
    logits: torch.Tensor, coefficients: torch.Tensor, second: torch.Tensor | float = SECOND_ORDER
) -> torch.Tensor:
    """Each record's sum over classes of log 2 + c_l z_l + d_l z_l^2, of first- and second-order coefficients c_l and d_l."""
    return (math.log(2) + coefficients * logits + second * logits.square()).sum(1)


def sensitivity(classes: int, hidden: int) -> float:
    """D_F = M (|h| + |h|^2 / 4), lemma 5: 1812.5 for 10 classes and 25 units."""
    return classes * (hidden + hidden**2 / 4)


def error_bound(classes: int) -> float:
    """Lemma 7: M (e^2 + 2e - 1) / (e (1 + e)^2), which the paper says the Taylor form costs at most, on average."""
    return classes * (math.e**2 + 2 * math.e - 1) / (math.e * (1 + math.e) ** 2)


@dataclass(frozen=True)
class LossNoise:
    """Laplace noise on the loss's first-order coefficients: Lap(D_F / epsilon_3) / |L|.

    The coefficients of order 0 and 2 are the same for every record and public: noise on them, which lines 18 and 19 of
    Algorithm 1 print, protects nobody and can leave the loss without a minimum, so that only `all-orders` has it.
    """

    classes: int
    hidden: int
    """|h_k|, the width of the last hidden layer."""
    epsilon: float
    batch_size: int

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)

    @property
    def sensitivity(self) -> float:
        """D_F."""
        return sensitivity(self.classes, self.hidden)

    @property
    def scale(self) -> float:
        """The noise's scale on a coefficient."""
        return self.sensitivity / self.epsilon / self.batch_size

    def perturb(self, coefficients: torch.Tensor, rng: Randomness) -> torch.Tensor:
        """Coefficients with independent noise on each.

        Formal guarantee
        ----------------
        `local_epsilon`-DP for each record's label on its own (local DP, hence replace-one for a label).
        """
        return rng.add_laplace(coefficients, self.scale)

    def local_epsilon(self, rng: Randomness) -> float:
        """2 |L| epsilon_3 / D_F: another label changes two coefficients by 1, and rounding may add a step to each."""
        return 2 / self.scale + self.classes * rng.rounding(1.0, 1, 1)
