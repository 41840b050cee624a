"""How the rule of a layer hangs what it knows on the autograd graph.

It hangs on the graph's own node, so it lives exactly as long as the graph does: a forward pass that is never followed by
a backward pass leaves nothing behind, and a backward pass finds what its losses came through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from noiseproof.engine.contributions import Contribution

Target = torch.Tensor | GradientEdge
Contributions = list[tuple[torch.Tensor, Contribution | torch.Tensor]]
"""Parameters, each with every record's gradient: written out (records first), or in a cheaper form."""


class Recorded(NamedTuple):
    """One use of a layer that has a rule of its own, hung on the node that made its output."""

    contributions: Callable[..., Contributions]
    """From the gradients of the targets to those of the layer's parameters, record by record."""
    record_dim: int
    """The dimension of the errors that counts records."""
    outputs: Mapping[int, int]
    """That of every output."""
    inputs: tuple[tuple[Node, int, int], ...]
    """Where the graph goes on: nodes, which of their outputs, and the dimension that counts records there."""
    targets: tuple[Target, ...] | None = None
    """Whose gradients are needed; None for the layer's own output (an edge to it would be a cycle, never freed)."""
    output_nr: int = 0
    kept: Sequence[tuple[torch.Tensor, int]] = ()
    """The activations and the versions they had, to notice when they are overwritten."""


class Recorder:
    """Lets rules hang what they know of a layer on the graph."""

    def __init__(self) -> None:
        self._pauses = 0
        self.used = False
        """Whether anything was ever recorded."""
        self.errors_only = False
        """True while the engine runs its backward pass: rules with a backward of their own then skip weights."""

    @property
    def recording(self) -> bool:
        """Whether a forward pass that runs now is to be recorded."""
        return self._pauses == 0 and torch.is_grad_enabled()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Forward passes in here are not recorded."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    @contextmanager
    def errors_alone(self) -> Iterator[None]:
        """The engine runs its backward pass in here."""
        self.errors_only = True
        try:
            yield
        finally:
            self.errors_only = False

    def record(
        self,
        outputs: Sequence[tuple[torch.Tensor, int]],
        contributions: Callable[..., Contributions],
        *,
        inputs: Iterable[tuple[torch.Tensor, int]],
        keep: Iterable[torch.Tensor] = (),
        record_dim: int = 0,
        targets: tuple[Target, ...] | None = None,
    ) -> None:
        """Hang a use on the node that made `outputs` from `inputs`, each with the dimension that counts records."""
        output = outputs[0][0]
        if output.grad_fn is None:
            return
        self.used = True
        behind = [(get_gradient_edge(tensor), dim) for tensor, dim in inputs if tensor.requires_grad]
        output.grad_fn.metadata[self] = Recorded(  # type: ignore[index]
            contributions,
            record_dim,
            {tensor.output_nr: dim for tensor, dim in outputs},
            tuple((edge.node, edge.output_nr, dim) for edge, dim in behind),
            targets,
            output.output_nr,
            [(tensor, tensor._version) for tensor in keep],
        )
