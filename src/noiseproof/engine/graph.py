"""The autograd graph of a batch: what every record gives to parameters, from the errors where records meet what they share.

Behind the losses lie two parts of the graph: operations on records, and operations on parameters alone (a transposed weight, a
table of positions, a normalised filter), whose results all records share. Every record's gradient in a parameter follows
from the errors where the two parts meet. What a rule of a layer's own has recorded is stepped over, and behind an
operation through which records cannot be followed, autograd is run once a record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import GradientEdge, Node

from noiseproof.engine.contributions import Contribution, Explicit, in_pieces
from noiseproof.engine.places import Mixed, Place
from noiseproof.engine.recorder import Target
from noiseproof.engine.rules.operations import has_rule, ready
from noiseproof.engine.rules.shared import Shared, batched, leaves_behind, to_parameters
from noiseproof.engine.trials import nothing
from noiseproof.engine.walk import Graph, Meeting, Plans, Stop
from noiseproof.errors import UnsupportedError

Given = tuple[list[tuple[int, Contribution]], list[Shared]]
"""Contributions to parameters by their index, and to tensors that are made of parameters."""


class Use(NamedTuple):
    """One place where records meet what they share."""

    targets: tuple[Target, ...]
    """Whose errors are needed."""
    place: Place
    """Where the records lie in the errors."""
    give: Callable[..., Given]
    """From errors to contributions."""
    behind: Node
    """What leads to the parameters, for messages."""


class Following:
    """Follows the records of one batch from their losses to the parameters.

    Args:
        losses: One loss a record.
        plans: What is known of the network's graphs.
    """

    def __init__(self, losses: torch.Tensor, plans: Plans) -> None:
        self.records = len(losses)
        self.uses: list[Use] = []
        self.repeats = False
        """Whether autograd is run again behind some operation, for which the graph must be kept."""
        self._names, self._indices = plans.names, plans.indices
        if losses.grad_fn is None:
            return
        graph = Graph(losses, plans.indices, plans.recorder)
        try:
            plan = plans.of(graph)
        except Stop as stop:
            raise self._refusal(graph.nodes[stop.args[0]], mixed=stop.args[1] is Mixed) from None
        for meeting in plan.meetings:
            self._meet(graph.nodes[meeting.node], meeting)
        for number in plan.rules:
            self._step_over(graph, number)
        for meeting in plan.unknown:
            self._repeat(graph.nodes[meeting.node], meeting, {graph.nodes[number] for number in plan.reached})

    def index(self, tensor: Any) -> int | None:
        """A parameter's place among those that are trained."""
        return self._indices.get(id(tensor))

    def contributions(self, errors: Sequence[Sequence[torch.Tensor | None]]) -> list[tuple[int, Contribution]]:
        """From the errors of all uses to every record's gradients in parameters, which may come several times."""
        given: list[tuple[int, Contribution]] = []
        shared: list[Shared] = []
        for use, own in zip(self.uses, errors, strict=True):
            if any(error is not None for error in own):
                direct, through = use.give(*own)
                given += direct
                shared += through
        return given + to_parameters(shared, self.index)

    def _meet(self, node: Any, meeting: Meeting) -> None:
        """Parameters, or what is made of them, are used by records here."""
        _, output, place, wanted = meeting
        try:
            contribute = ready(node, output, wanted, place)
        except RuntimeError as error:
            raise self._changed(node) from error
        self.repeats = self.repeats or not has_rule(node)
        behind = node.next_functions

        def give(errors: torch.Tensor) -> Given:
            return [], [(*behind[number], part) for number, part in contribute(errors).items() if number in wanted]

        self.uses.append(Use((GradientEdge(node, output),), place, give, behind[wanted[0]][0]))

    def _step_over(self, graph: Graph, number: int) -> None:
        """A layer with a rule of its own."""
        node, recorded = graph.nodes[number], graph.recorded[number]
        if any(tensor._version != version for tensor, version in recorded.kept):
            raise self._changed(node)

        def give(*errors: torch.Tensor) -> Given:
            parts = recorded.contributions(*errors)
            indices = [(self.index(parameter), part) for parameter, part in parts]
            return [
                (index, part if isinstance(part, Contribution) else Explicit(part))
                for index, part in indices
                if index is not None
            ], []

        targets = recorded.targets or (GradientEdge(node, recorded.output_nr),)
        self.uses.append(Use(targets, Place(self.records, recorded.record_dim), give, node))

    def _repeat(self, node: Any, meeting: Meeting, reached: set[Node]) -> None:
        """Records cannot be followed through this operation: what only it leads to is run backwards once a record."""
        _, output, place, _ = meeting
        leaves, elsewhere = leaves_behind(node, reached)
        leaves = [leaf for leaf in leaves if self.index(leaf) is not None]
        if not leaves:
            return
        self.repeats = True
        edge = GradientEdge(node, output)

        def give(errors: torch.Tensor) -> Given:
            size = errors.element_size() * max([errors.numel(), *(leaf.numel() for leaf in leaves)])
            # Where records are met again, the errors that go there have been counted.
            handles = [other.register_prehook(nothing) for other in elsewhere]
            try:
                pieces = [
                    batched([edge], leaves, [place.masked(errors, some)])
                    for some in torch.arange(self.records).split(in_pieces(4 * size))
                ]
            finally:
                for handle in handles:
                    handle.remove()
            found: list[tuple[int, Contribution]] = []
            for leaf, *parts in zip(leaves, *pieces, strict=True):
                index = self.index(leaf)
                if parts[0] is not None and index is not None:
                    found.append((index, Explicit(torch.cat(parts))))
            return found, []

        self.uses.append(Use((edge,), place, give, node))

    def mixed(self, behind: Node) -> UnsupportedError:
        """The refusal of a network in which records meet."""
        return UnsupportedError(
            f"the network mixes records around {self._layer(behind)}, so no record has a gradient of its own; compute each by "
            "itself."
        )

    def _layer(self, behind: Node) -> str:
        """The layer whose parameter lies behind a node, for a message."""
        names = [self._names[id(leaf)] for leaf in leaves_behind(behind)[0] if id(leaf) in self._names]
        return f"the layer {names[0].rpartition('.')[0] or 'network'}" if names else "its layers"

    def _changed(self, node: Node) -> UnsupportedError:
        return UnsupportedError(
            f"what {self._layer(node)} was given was changed in place after the layer had used it; make the operation that "
            "changes it one that is not in place."
        )

    def _refusal(self, node: Any, *, mixed: bool) -> UnsupportedError:
        if mixed:
            return self.mixed(node)
        if type(node).__name__ == "AccumulateGrad":
            return UnsupportedError(
                f"the parameter {self._names[id(node.variable)]} seems to have a dimension that counts the records; give one "
                f"loss for each of the batch's records (these are losses for {self.records} records)."
            )
        return UnsupportedError(
            "a checkpointed part of the network hides its parameters from this backward pass; call "
            "torch.utils.checkpoint.checkpoint with use_reentrant=False."
        )
