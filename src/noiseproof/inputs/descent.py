"""Descent on perturbed records: ordinary training, which sees nothing but what its source hands out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from noiseproof.inputs.layers import AFFINE, chain
from noiseproof.inputs.perturbed_records import Batch, Source
from noiseproof.inputs.taylor import taylor_loss
from noiseproof.progress import SILENT, Progress

_SETTLED = 4096
"""Records whose units' extremes a network keeps."""


@dataclass(frozen=True)
class Watch:
    """`look(steps, network)` is called after every `every` steps, with the network in evaluation."""

    every: int
    look: Callable[[int, nn.Module], None]


def descend(
    module: nn.Module,
    source: Source,
    *,
    steps: int,
    batch: int,
    learning_rate: float,
    limit: float | None,
    seed: int,
    progress: Progress = SILENT,
    description: str = "training",
    watch: Watch | None = None,
) -> None:
    """Minimise the perturbed Taylor loss by Adam, over shuffled batches of what `source` hands out.

    The learning rate falls linearly to 0, so that the noise of the last steps does not stay in the weights. `limit` clips
    perturbed inputs to [-limit, limit]. `seed` is for shuffles and dropout, on which no privacy rests.

    Formal guarantee
    ----------------
    None by itself: the source's, since this is post-processing of it.
    """
    device = next(module.parameters()).device
    optimiser = torch.optim.Adam(module.parameters(), lr=learning_rate)
    module.train()
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        progress.task(description, steps) as task,
    ):
        torch.manual_seed(seed)
        order = torch.empty(0, dtype=torch.int64)
        for step in range(steps):
            if not len(order):
                order = torch.randperm(len(source))
            indices, order = order[:batch], order[batch:]
            seen = source.batch(indices)
            features = seen.features.to(device)
            if limit is not None:
                features = features.clamp(-limit, limit)
            with _perturbed_units(module, seen):
                logits = module(features)
            loss = taylor_loss(logits, seen.coefficients.to(device)).mean()
            for group in optimiser.param_groups:
                group["lr"] = learning_rate * (1 - step / steps)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            task.advance(loss=float(loss.detach()))
            if watch is not None and (step + 1) % watch.every == 0:
                _settle(module, source, limit)
                watch.look(step + 1, module)
                module.train()
        _settle(module, source, limit)


def _settle(module: nn.Module, source: Source, limit: float | None) -> None:
    """Put the network into evaluation, with the extremes that records without changing noise give."""
    device = next(module.parameters()).device
    features = source.still(torch.arange(min(_SETTLED, len(source)))).to(device)
    module.train()
    with torch.no_grad():
        module(features if limit is None else features.clamp(-limit, limit))
    module.eval()


@contextmanager
def _perturbed_units(module: nn.Module, seen: Batch) -> Iterator[None]:
    """For one forward pass: the first layer's bias times its perturbed input, and noise on the last hidden units."""
    affine = [layer for layer in chain(module) if isinstance(layer, AFFINE)]
    first, last = affine[0], affine[-1]

    def perturbed_bias(layer: nn.Module, inputs: tuple[torch.Tensor, ...], outputs: torch.Tensor) -> torch.Tensor:
        bias = layer.get_parameter("bias") if layer.bias is not None else outputs.new_zeros(1)
        # The bias is a weight of an input that is 1, and now 1 with noise.
        noise = (seen.bias.to(outputs) - 1).view(-1, *[1] * (outputs.ndim - 1))
        return outputs + noise * bias.view(1, -1, *[1] * (outputs.ndim - 2))

    def perturbed_hidden(layer: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...] | None:
        return None if seen.hidden is None else (inputs[0] + seen.hidden.to(inputs[0]),)

    handles = [first.register_forward_hook(perturbed_bias), last.register_forward_pre_hook(perturbed_hidden)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
