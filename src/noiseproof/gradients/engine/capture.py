"""Capture: what one use of a layer leaves in the autograd graph for the per-record backward pass.

A capture hangs on the graph's own node, so it lives exactly as long as the graph does: a forward pass that is never
followed by a backward pass leaves nothing behind, and a backward pass finds the uses that its losses came through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch.autograd.graph import GradientEdge, Node

from noiseproof.errors import UnsupportedError
from noiseproof.gradients.engine.contribution import Contribution

Settle = Callable[[list[torch.Tensor]], Iterable[tuple[torch.nn.Parameter, Contribution]]]


@dataclass(frozen=True)
class Capture:
    """One use of a layer: where its errors are to be read, and what they contribute to which parameter."""

    upstream: tuple[Node, ...]
    """Where the graph goes on towards the network's input, past this layer and its parameters."""
    targets: tuple[torch.Tensor | GradientEdge, ...] | None
    """Whose gradients are needed; None for the layer's own output (an edge to it would be a cycle never freed)."""
    output_nr: int
    settle: Settle
    """From the gradients of the targets to contributions."""


def upstream_of(tensors: Iterable[object]) -> tuple[Node, ...]:
    """The graph nodes behind those of `tensors` that have one."""
    found = []
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
            found.append(torch.autograd.graph.get_gradient_edge(tensor).node)
    return tuple(found)


def captures_behind(
    losses: torch.Tensor, key: object, parameters: Mapping[int, str]
) -> list[tuple[Capture, tuple[torch.Tensor | GradientEdge, ...]]]:
    """Every capture under `key` that `losses` came through, with its targets.

    The walk steps over captured layers. If it still meets one of `parameters` (names by id), that parameter was used
    in a way that no rule has seen, and its gradients would be wrong without a word; so it is refused.
    """
    found: list[tuple[Capture, tuple[torch.Tensor | GradientEdge, ...]]] = []
    if losses.grad_fn is None:
        return found
    seen: set[Node] = set()
    stack: list[Node] = [losses.grad_fn]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        capture = node.metadata.get(key)
        if capture is not None:
            found.append((capture, capture.targets or (GradientEdge(node, capture.output_nr),)))
            stack.extend(capture.upstream)
            continue
        following = node.next_functions
        if not following:
            name = parameters.get(id(getattr(node, "variable", None)))
            if name is not None:
                raise UnsupportedError(
                    f"the parameter {name} is used outside the forward pass of the layer that owns it (or in a pass "
                    "while the engine was paused), so its per-record gradients are not known; name the module that "
                    'uses it in vmapped=(...), or pass vmapped=("",) for the whole network.'
                )
        stack.extend(behind for behind, _ in following if behind is not None)
    return found
