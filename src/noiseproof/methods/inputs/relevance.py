"""Relevances: how much each input feature contributed to an output (Bach et al. 2015), and their private average.

Layer-wise relevance propagation; the average over all records with Laplace noise (Phan et al., eqs 10 to 12); the split of
the noise's budget by it (eq. 16); and whose relevances they are: a network that is public, was trained under DP at a cost that
is added, or was not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from noiseproof.errors import DataError, SettingError
from noiseproof.methods.inputs.layers import PASSED, chain
from noiseproof.networks import Training, fit_stack
from noiseproof.privacy import Laplace, Randomness
from noiseproof.tensors import default_device

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.networks import Network
    from noiseproof.privacy import Budget, Card
    from noiseproof.progress import Progress

STABILISER = 1e-3


def relevances(
    module: nn.Module, features: torch.Tensor, *, start: torch.Tensor | None = None, stabiliser: float = STABILISER
) -> torch.Tensor:
    """Each feature's relevance to an output of each record, of the features' shape.

    `start` is the relevance of each output, (records, outputs); None takes the largest output, at its own value.

    The epsilon rule (Phan et al., eqs 4 to 8): unit m hands its relevance to its inputs p in proportion to
    z_pm / (z_m + mu), z_m - mu where z_m is negative, bias included in z_m. Max-pooling hands all of it to the largest
    input, activations and normalisations hand it through. All records are propagated at once.

    Formal guarantee
    ----------------
    None: a record's relevances depend on that record and on the network, and are as private as both.
    """
    if not stabiliser >= 0:
        raise SettingError(f"the stabiliser of relevances must be 0 or more, not {stabiliser}.")
    layers = chain(module)
    training = module.training
    module.eval()
    try:
        with torch.no_grad():
            values = [features]
            for layer in layers:
                values.append(layer(values[-1]))
            outputs = values[-1]
        if start is None:
            start = outputs * nn.functional.one_hot(outputs.argmax(1), outputs.shape[1])
        if start.shape != outputs.shape:
            raise SettingError(
                f"relevances of shape {tuple(start.shape)} cannot start at {tuple(outputs.shape)} outputs."
            )
        relevance = start.to(outputs)
        for layer, inputs in zip(reversed(layers), reversed(values[:-1]), strict=True):
            if isinstance(layer, nn.Flatten):
                relevance = relevance.view_as(inputs)
            elif not isinstance(layer, PASSED):
                relevance = _share(layer, inputs, relevance, stabiliser)
        return relevance
    finally:
        module.train(training)


def _share(layer: nn.Module, inputs: torch.Tensor, relevance: torch.Tensor, stabiliser: float) -> torch.Tensor:
    """One layer down: p's share is p times the derivative of z_m with respect to p, times R_m / (z_m +- mu), over all m."""
    with torch.enable_grad():
        inputs = inputs.detach().requires_grad_()
        outputs = layer(inputs)
        whole = outputs.detach()
        whole = whole + torch.where(whole >= 0, stabiliser, -stabiliser)
        # Without a stabiliser a unit that is exactly 0 has nothing to hand on.
        ratio = torch.where(whole == 0, 0.0, relevance / whole)
        (slope,) = torch.autograd.grad(outputs, inputs, ratio)
    return inputs.detach() * slope


Normalised = Literal["min-max", "magnitude"]
"""`min-max`: (R - least) / (most - least), the paper's; `magnitude`: |R| over the largest, so that 0 stays 0."""

_ENTRIES = 1 << 22
"""Features whose relevances are in memory at once."""


def normalise(relevance: torch.Tensor, how: Normalised = "min-max") -> torch.Tensor:
    """Each record's relevances in [0, 1], flat and in float64; a record whose relevances are all alike has 0 everywhere."""
    flat = relevance.flatten(1).double().nan_to_num()
    flat = flat - flat.amin(1, keepdim=True) if how == "min-max" else flat.abs()
    return (flat / flat.amax(1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)).clamp(0, 1)


def average(
    module: nn.Module,
    features: torch.Tensor,
    *,
    normalised: Normalised = "min-max",
    feature_map: Callable[[torch.Tensor], torch.Tensor] | None = None,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """The records' mean normalised relevance of each feature, flat, in bounded memory. Private: it has no noise yet.

    With `weights` it is their weighted mean.

    With a `feature_map` the relevances are those of the mapped features, which the network then reads.
    """
    if not len(features):
        raise DataError("there is no record to average relevances over.")
    # A convolution's units take some hundred times the memory of its input.
    rows = max(1, min(1024, _ENTRIES // features[0].numel() // 16))
    total: torch.Tensor | None = None
    for first in range(0, len(features), rows):
        part = slice(first, first + rows)
        inputs = features[part] if feature_map is None else feature_map(features[part])
        rows_found = normalise(relevances(module, inputs), normalised)
        found = rows_found.sum(0) if weights is None else weights[part].to(rows_found) @ rows_found
        total = found if total is None else total + found
    assert total is not None
    return total / (len(features) if weights is None else float(weights.sum()))


@dataclass(frozen=True, eq=False)
class PrivateRelevance:
    """Relevances with noise, and what releasing them cost."""

    values: torch.Tensor
    proven: float
    """What it costs if the network was public, under replace-one as under add-or-remove."""


def release_relevance(mean: torch.Tensor, records: int, epsilon: float, rng: Randomness) -> PrivateRelevance:
    """The mean relevances plus Lap(2d / (|D| epsilon)) on each.

    Formal guarantee
    ----------------
    epsilon-DP, and in fact epsilon / 2: each record's relevances lie in [0, 1], so that one record moves their mean over
    |D| by at most d / |D| in L1 norm, half of what lemma 1 allows for. Unit: record. Neighbours: replace-one; or
    add-or-remove, with |D| a public constant. Assumption: *the network that the relevances are of does not depend on the
    records, or its own cost is added*. Reference: Phan et al. 2017, lemmas 1 and 2.
    """
    width = mean.numel()
    mechanism = Laplace(2 * width / records, epsilon)
    scale = mechanism.scale(rng, width)
    proven = (width / records + rng.rounding(scale, width, 1)) / scale
    return PrivateRelevance(mechanism.release(mean.cpu(), rng), proven)


def split(relevance: torch.Tensor, floor: float = 0.1, power: float = 1.0) -> torch.Tensor:
    """beta_j = d |R_j| / sum |R|, at least `floor` before all are scaled to sum to d; all 1 where no feature is relevant.

    `power` raises |R_j| first, as the authors' program does, to tell features apart that differ little.

    Formal guarantee
    ----------------
    None is needed: a function of relevances that were released already, or are public.
    """
    if not (0 < floor <= 1 and power > 0):
        raise SettingError(f"beta needs a floor in (0, 1] and a power above 0, not {floor} and {power}.")
    size = relevance.flatten().double().abs()
    # Divided first, so that no power of it overflows or vanishes as a whole.
    size = (size / size.amax().clamp(min=torch.finfo(torch.float64).tiny)) ** power
    total = size.sum()
    if not total > 0:
        return torch.ones_like(size)
    beta = (len(size) * size / total).clamp(min=floor)
    return beta * len(size) / beta.sum()


NOT_PRIVATE = (
    "The network whose relevances decide where noise goes was trained on the private records without noise, and no part "
    "of the budget covers that."
)


@dataclass(frozen=True, eq=False)
class RelevanceNetwork:
    """A network to take relevances from, and what having it cost under replace-one; `why` says why no cost is known."""

    module: nn.Module
    source: str
    epsilon: float = 0.0
    delta: float = 0.0
    why: str | None = None


@dataclass(frozen=True, eq=False)
class Relevance:
    """Private relevances and the network they are of."""

    private: PrivateRelevance
    network: RelevanceNetwork

    @property
    def ran(self) -> dict[str, Any]:
        """What a card says of them."""
        facts: dict[str, Any] = {"relevance network": self.network.source}
        if self.network.why is None:
            facts["epsilon of the relevance network"] = self.network.epsilon
            facts["epsilon of the relevances"] = self.private.proven
        return facts

    @property
    def assumption(self) -> str:
        """What a proof that rests on them must state."""
        return f"the relevance network is as stated: {self.network.source}"


def trained_network(network: Network, dataset: Dataset, epochs: int, seed: int, progress: Progress) -> RelevanceNetwork:
    """A network trained on the private records without noise, as in the paper.

    Formal guarantee
    ----------------
    None: nothing can be proven of relevances of it.
    """
    device = default_device()
    stack = fit_stack(
        network,
        dataset.features.to(device),
        dataset.labels.to(device),
        [torch.arange(len(dataset))],
        Training(epochs=epochs, batch_size=100),
        seeds=[seed],
        progress=progress,
    )
    return RelevanceNetwork(stack.to("cpu").module(0).eval(), "trained without noise", why=NOT_PRIVATE)


def functional_network(dataset: Dataset, budget: Budget, rng: Randomness, progress: Progress) -> RelevanceNetwork:
    """A linear network by the functional mechanism, within `budget`.

    Formal guarantee
    ----------------
    That of `functional`, under the budget's neighbours; the cost is the budget's.
    """
    from noiseproof.methods.inputs.functional import Functional

    law: Literal["laplace", "gaussian"] = "laplace" if budget.delta == 0 else "gaussian"
    method = Functional(features="raw", noise=law)
    weights, _ = method.weights(method.plan(dataset, budget), dataset, rng, progress)
    # The last weight is the constant's. Each record's features were scaled by one number, which relevances do not see.
    linear = nn.Linear(weights.shape[0] - 1, weights.shape[1])
    with torch.no_grad():
        linear.weight.copy_(weights[:-1].T)
        linear.bias.copy_(weights[-1])
    return RelevanceNetwork(
        nn.Sequential(nn.Flatten(), linear).eval(), "linear, by the functional mechanism", budget.epsilon, budget.delta
    )


def bundled_network(path: str, shape: tuple[int, ...], *, public: bool) -> RelevanceNetwork:
    """The network of a bundle: `public` if no private record was used for it, else at the cost that its card proves.

    Formal guarantee
    ----------------
    The card's, turned into replace-one where it is for add-or-remove: (2 epsilon, (1 + e^epsilon) delta).
    """
    from noiseproof.releases import ModelRelease, bundles

    release = bundles.load(path)
    if not isinstance(release, ModelRelease) or release.public.shape != shape:
        raise SettingError(f"{path} is no bundle of a network for records of shape {shape}, so it gives no relevances.")
    name = Path(path).name
    if public:
        return RelevanceNetwork(release.module, f"public, from the bundle {name}")
    epsilon, delta = replace_one(release.card)
    why = None
    if not (math.isfinite(epsilon) and delta < 1):
        why = f"The network of the bundle {name}, whose relevances decide where noise goes, has no proof of its own."
        epsilon = delta = 0.0
    return RelevanceNetwork(release.module, f"{release.method}, from the bundle {name}", epsilon, delta, why)


def replace_one(card: Card) -> tuple[float, float]:
    """What a card proves under replace-one: exchanging a record is removing one and adding another."""
    if card.proven is None:
        return math.inf, 1.0
    epsilon, delta = card.proven.epsilon, card.proven.delta
    if card.neighbours == "replace-one":
        return epsilon, delta
    return 2 * epsilon, (1 + math.exp(epsilon)) * delta
