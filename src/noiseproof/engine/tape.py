"""Tape: what the layers of one network leave in the autograd graph for the per-record backward pass.

A capture hangs on the graph's own node, so it lives exactly as long as the graph does: a forward pass that is never
followed by a backward pass leaves nothing behind, and a backward pass finds the uses that its losses came through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch.autograd.graph import GradientEdge, Node

from noiseproof.engine.contributions import Contribution
from noiseproof.errors import UnsupportedError

Target = torch.Tensor | GradientEdge
Contributions = list[tuple[torch.Tensor, Contribution]]
Settle = Callable[..., Contributions]
"""From the gradients of a capture's targets to contributions."""


class Capture(NamedTuple):
    """One use of a layer: where its errors are read, and what they contribute to which parameter."""

    path: str
    """The layer, for messages."""
    settle: Settle
    record_dim: int
    """The dimension of the errors that counts records."""
    upstream: tuple[Node, ...]
    """Where the graph goes on towards the network's input, past this layer and its parameters."""
    targets: tuple[Target, ...] | None = None
    """Whose gradients are needed; None for the layer's own output (an edge to it would be a cycle, never freed)."""
    output_nr: int = 0
    kept: Sequence[tuple[torch.Tensor, int]] = ()
    """The activations and the versions they had, to notice when they are overwritten."""

    def check_unchanged(self) -> None:
        """Refuse activations that were overwritten after the layer had seen them."""
        for tensor, version in self.kept:
            if tensor._version != version:
                raise UnsupportedError(
                    f"the input of the layer {self.path} was changed in place after the layer had used it; make the "
                    "operation that follows on it out of place."
                )


class Tape:
    """Attaches captures to the graph of a forward pass, and finds them again behind losses."""

    def __init__(self) -> None:
        self._pauses = 0
        self.errors_only = False
        """True while the engine runs its backward pass: rules with a backward of their own then skip weights."""

    @property
    def recording(self) -> bool:
        """Whether a forward pass that runs now is to be captured."""
        return self._pauses == 0 and torch.is_grad_enabled()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Forward passes in here are not captured."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def attach(
        self,
        outputs: Iterable[torch.Tensor],
        path: str,
        settle: Settle,
        *,
        inputs: Iterable[object],
        keep: Iterable[torch.Tensor] = (),
        record_dim: int = 0,
        targets: tuple[Target, ...] | None = None,
    ) -> None:
        """Hang a capture on the nodes that made `outputs` from `inputs`; `keep` are the activations `settle` needs."""
        made = [(output.grad_fn, output.output_nr) for output in outputs if output.grad_fn is not None]
        if made:
            versions = [(tensor, tensor._version) for tensor in keep]
            capture = Capture(path, settle, record_dim, upstream_of(inputs), targets, made[0][1], versions)
            for node, _ in made:
                node.metadata[self] = capture  # type: ignore[index]

    def captures_behind(
        self, losses: torch.Tensor, names: Mapping[int, str]
    ) -> list[tuple[Capture, tuple[Target, ...]]]:
        """Every capture that `losses` came through, with its targets.

        The walk steps over captured layers. If it still meets a parameter of the network (`names`, by id), that
        parameter was used in a way that no rule has seen, and its gradients would be wrong without a word: refused.
        """
        found: list[tuple[Capture, tuple[Target, ...]]] = []
        seen: set[Node] = set()
        taken: set[int] = set()
        stack = list(upstream_of([losses]))
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            # torch keeps a dictionary with every node (typed as a method there, but a property).
            capture: Capture | None = node.metadata.get(self)  # type: ignore[attr-defined]
            if capture is not None:
                if id(capture) not in taken:  # a layer with several outputs is met at each of them
                    taken.add(id(capture))
                    found.append((capture, capture.targets or (GradientEdge(node, capture.output_nr),)))
                stack.extend(capture.upstream)
                continue
            if type(node).__name__ == "CheckpointFunctionBackward":
                raise UnsupportedError(
                    "a checkpointed part of the network hides its parameters from this backward pass; call "
                    "torch.utils.checkpoint.checkpoint with use_reentrant=False."
                )
            following = node.next_functions
            if not following:
                name = names.get(id(getattr(node, "variable", None)))
                if name is not None:
                    raise UnsupportedError(
                        f"the parameter {name} is used outside the forward pass of the layer that owns it (or in a "
                        "pass while the engine was paused), so its per-record gradients are not known; name the "
                        'module that uses it in vmapped=(...), where "" is the whole network.'
                    )
            stack += [behind for behind, _ in following if behind is not None]
        return found


def upstream_of(tensors: Iterable[object]) -> tuple[Node, ...]:
    """The graph nodes behind those of `tensors` that have one, at any depth of tuples and lists."""
    nodes: list[Node] = []
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            if tensor.requires_grad:
                made = tensor.grad_fn
                nodes.append(torch.autograd.graph.get_gradient_edge(tensor).node if made is None else made)
        elif isinstance(tensor, tuple | list):
            nodes.extend(upstream_of(tensor))
        elif isinstance(tensor, dict):
            nodes.extend(upstream_of(tensor.values()))
    return tuple(nodes)
