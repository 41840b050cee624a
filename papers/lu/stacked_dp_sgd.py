"""DP-SGD at many noise levels at once, for the study's curves: many dense networks of one shape, one set of batches.

Only for curves: `dp-sgd` is the method. Here the trainings share their Poisson batches and their normal draws, each
scaled by its own noise level, which is right for each of them alone (all that a curve shows) and not for a release of several.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from noiseproof.networks import Network, StackedNetwork
from noiseproof.progress import SILENT, Progress

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.privacy import Randomness


def fit_noise_levels(
    network: Network,
    dataset: Dataset,
    sigmas: Sequence[float],
    *,
    epochs: int,
    batch_size: int,
    alphas: Sequence[float] | None = None,
    clip: float = 1.0,
    lr: float = 1e-3,
    l2: float = 1e-3,
    seed: int = 0,
    rng: Randomness,
    progress: Progress = SILENT,
) -> StackedNetwork:
    """One `lu-mlp` for every noise multiplier, by DP-SGD with Adam on Poisson batches of expected size `batch`.

    A record's loss is its cross-entropy, which is what eq. 22, the convexified loss, is of a single record. A network with
    one of `alphas` above 0 has the authors' program's form of it instead, with that risk factor. The L2 term depends on no
    record and is added after the noise.

    Formal guarantee
    ----------------
    Each network by itself is trained as `dp-sgd` trains it: sums of gradients clipped to `clip`, Gaussian noise of
    sigma * clip, divided by the expected batch. Nothing is stated of several of them together.
    """
    count, rate = len(sigmas), batch_size / len(dataset)
    stack = StackedNetwork.of(network, [seed] * count)
    hidden, output = (stack.parameters[name] for name in ("1.weight", "3.weight"))
    hidden_bias, output_bias = (stack.parameters[name] for name in ("1.bias", "3.bias"))
    weights = [hidden, hidden_bias, output, output_bias]
    levels = torch.tensor(list(sigmas)) * clip
    risks = None if alphas is None else torch.tensor(list(alphas))
    optimizer = torch.optim.Adam(weights, lr=lr, fused=True)
    features, labels = dataset.features.flatten(1), functional.one_hot(dataset.labels, dataset.classes).float()
    steps = math.ceil(epochs / rate)
    with torch.no_grad(), progress.task("DP-SGD", steps) as task:
        for _ in range(steps):
            index = rng.poisson_sample(len(dataset), rate)
            sums = clipped_sums(features[index], labels[index], weights, clip, risks)
            for weight, total in zip(weights, sums, strict=True):
                draws = rng.add_gaussian(torch.zeros_like(weight[0]), 1.0)
                total.add_(levels.view(-1, *[1] * draws.ndim) * draws).div_(batch_size)
                if weight.ndim == 3:
                    total.add_(weight, alpha=2 * l2)
                weight.grad = total
            optimizer.step()
            task.advance()
    return stack


def clipped_sums(
    features: torch.Tensor,
    targets: torch.Tensor,
    weights: Sequence[torch.Tensor],
    clip: float,
    alphas: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """The sums over records of each network's clipped gradients, from activations and errors alone.

    A dense layer's gradient of one record is an outer product, so its norm is the product of two vectors' norms. Where
    `alphas` is above 0 the loss is the program's, log((exp(alpha l) + C - 1) / C) / alpha of a cross-entropy l.
    """
    hidden, hidden_bias, output, output_bias = weights
    count, width, inputs = hidden.shape
    # All networks see the same records: their first layers are one matrix.
    first = features @ hidden.view(count * width, inputs).T + hidden_bias.view(-1)
    active = first.tanh_().view(-1, count, width).transpose(0, 1)
    logits = torch.baddbmm(output_bias[:, None], active, output.transpose(1, 2))
    outer = torch.softmax(logits, dim=2) - targets
    if alphas is not None:
        likely = 1 + (outer * targets).sum(2, keepdim=True)  # the label's probability, exp(-l)
        weight = 1 / (1 + (targets.shape[1] - 1) * likely ** alphas[:, None, None])
        outer = torch.where(alphas[:, None, None] > 0, weight * outer, outer)
    inner = torch.bmm(outer, output) * (1 - active.square())
    squares = outer.square().sum(2) * (active.square().sum(2) + 1)
    squares += inner.square().sum(2) * (features.square().sum(1) + 1)
    factor = (clip / squares.sqrt().clamp(min=1e-30)).clamp(max=1.0)[:, :, None]
    outer, inner = outer * factor, inner * factor
    joined = inner.transpose(0, 1).reshape(len(features), count * width)
    return [
        (joined.T @ features).view(count, width, inputs),
        inner.sum(1),
        torch.bmm(outer.transpose(1, 2), active),
        outer.sum(1),
    ]
