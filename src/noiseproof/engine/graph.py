"""What the layers of a network leave in the autograd graph, and how a backward pass finds it again.

A `LayerUse` hangs on the graph's own node, so it lives exactly as long as the graph does: a forward pass that is never
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
Contributions = list[tuple[torch.Tensor, Contribution | torch.Tensor]]
"""Parameters, each with every record's gradient: written out (records first), or in a cheaper form."""


class LayerUse(NamedTuple):
    """One use of a layer: where its errors are read, and what they contribute to which parameter."""

    path: str
    """The layer, for messages."""
    contributions: Callable[..., Contributions]
    """From the gradients of the targets to those of the layer's parameters, record by record."""
    record_dim: int
    """The dimension of the errors that counts records."""
    input_nodes: tuple[Node, ...] | None
    """Where the graph goes on towards the network's input; None if it is to be followed through the layer itself."""
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


class GraphRecorder:
    """Attaches layer uses to the graph of a forward pass, and finds them again behind losses."""

    def __init__(self) -> None:
        self._pauses = 0
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

    def record(
        self,
        outputs: Iterable[torch.Tensor],
        path: str,
        contributions: Callable[..., Contributions],
        *,
        inputs: Iterable[object] | None,
        keep: Iterable[torch.Tensor] = (),
        record_dim: int = 0,
        targets: tuple[Target, ...] | None = None,
    ) -> None:
        """Hang a use on the nodes that made `outputs` from `inputs`; `keep` are the activations that are needed."""
        made = [(output.grad_fn, output.output_nr) for output in outputs if output.grad_fn is not None]
        if made:
            versions = [(tensor, tensor._version) for tensor in keep]
            behind = None if inputs is None else nodes_of(inputs)
            use = LayerUse(path, contributions, record_dim, behind, targets, made[0][1], versions)
            for node, _ in made:
                node.metadata[self] = use  # type: ignore[index]

    def uses_behind(self, losses: torch.Tensor, names: Mapping[int, str]) -> list[tuple[LayerUse, tuple[Target, ...]]]:
        """Every use that `losses` came through, with its targets.

        The walk steps over recorded layers. If it still meets a parameter of the network (`names`, by id), that
        parameter was used in a way that no rule has seen, and its gradients would be wrong without a word: refused.
        """
        found: list[tuple[LayerUse, tuple[Target, ...]]] = []
        seen: set[Node] = set()
        taken: set[int] = set()
        own: set[int] = set()
        stack = list(nodes_of([losses]))
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            # torch keeps a dictionary with every node (typed as a method there, but a property).
            use: LayerUse | None = node.metadata.get(self)  # type: ignore[attr-defined]
            if use is not None:
                if id(use) not in taken:  # a layer with several outputs is met at each of them
                    taken.add(id(use))
                    found.append((use, use.targets or (GradientEdge(node, use.output_nr),)))
                    own.update(map(id, use.targets or ()))
                if use.input_nodes is not None:
                    stack.extend(use.input_nodes)
                    continue
            elif type(node).__name__ == "CheckpointFunctionBackward":
                raise UnsupportedError(
                    "a checkpointed part of the network hides its parameters from this backward pass; call "
                    "torch.utils.checkpoint.checkpoint with use_reentrant=False."
                )
            following = node.next_functions
            if not following:
                variable = getattr(node, "variable", None)
                # A layer that another engine runs by vmap has copies in the place of its parameters.
                name = names.get(id(getattr(variable, "stands_for", variable)))
                if name is not None and id(variable) not in own:
                    raise UnsupportedError(
                        f"the parameter {name} is used outside the forward pass of the layer that owns it (or in a "
                        "pass while the engine was paused, or by another engine), so its per-record gradients are not "
                        'known; name the module that uses it in vmapped=(...), where "" is the whole network.'
                    )
            stack += [behind for behind, _ in following if behind is not None]
        return found


def nodes_of(tensors: Iterable[object]) -> tuple[Node, ...]:
    """The graph nodes of those of `tensors` that have one, at any depth of tuples, lists and dictionaries."""
    nodes: list[Node] = []
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor):
            if tensor.requires_grad:
                made = tensor.grad_fn
                nodes.append(torch.autograd.graph.get_gradient_edge(tensor).node if made is None else made)
        elif isinstance(tensor, tuple | list):
            nodes.extend(nodes_of(tensor))
        elif isinstance(tensor, dict):
            nodes.extend(nodes_of(tensor.values()))
    return tuple(nodes)
