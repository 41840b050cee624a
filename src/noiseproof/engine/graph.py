"""The autograd graph of a batch: what every record gives to parameters, from the errors where records meet what they share.

Behind the losses lie two parts of the graph: operations on records, and operations on parameters alone (a transposed weight, a
table of positions, a normalised filter), whose results all records share. Every record's gradient in a parameter follows
from the errors where the two parts meet. What a rule of a layer's own has recorded is stepped over, and behind an
operation through which records cannot be followed, autograd is run once a record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import GradientEdge, Node

from noiseproof.engine.contributions import Contribution, Explicit, in_pieces
from noiseproof.engine.places import Mixed, Place
from noiseproof.engine.recorder import Target
from noiseproof.engine.rules.operations import Ready, has_rule, ready, shrinks
from noiseproof.engine.rules.shared import Shared, batched, leaves_behind, to_parameters
from noiseproof.engine.trials import nothing
from noiseproof.engine.walk import Graph, Meeting, Routes, Stop
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
    early: bool = False
    """Whether errors are made into contributions as soon as they are there, because these take less memory."""
    shared: tuple[tuple[Node, int], ...] = ()
    """What records meet here, as edges of the graph."""
    section: int = 0
    """Between which of the graph's passages it lies."""


def given(use: Use, *errors: torch.Tensor | None) -> Any:
    """The errors of a use, or what it makes of them, if it is early."""
    if not use.early:
        return errors
    return ([], []) if errors[0] is None else use.give(*errors)


class Following:
    """Follows the records of one batch from their losses to the parameters.

    Args:
        losses: One loss a record.
        routes: What is known of the network's graphs.
    """

    def __init__(self, losses: torch.Tensor, routes: Routes) -> None:
        self.records = len(losses)
        self.uses: list[Use] = []
        self.repeats = False
        """Whether autograd is run again behind some operation, for which the graph must be kept."""
        self.passages: list[tuple[GradientEdge, Place]] = []
        """Outputs that everything behind is reached through, from the losses on, and where the records lie there."""
        self._names, self._indices = routes.names, routes.indices
        if losses.grad_fn is None:
            return
        graph = Graph(losses, routes.indices, routes.recorder)
        try:
            route = routes.of(graph)
        except Stop as stop:
            raise self._refusal(graph.nodes[stop.args[0]], mixed=stop.args[1] is Mixed) from None
        self.passages = [(GradientEdge(graph.nodes[number], output), place) for number, output, place in route.passages]
        for meeting in route.meetings:
            # What is not followed to its end might leave a node out that is waited for.
            self._meet(graph, meeting, early=meeting.onward and not route.unknown)
        for number in route.rules:
            self._step_over(graph, number)
        for meeting in route.unknown:
            self._repeat(graph.nodes[meeting.node], meeting, {graph.nodes[number] for number in route.reached})

    def index(self, tensor: Any) -> int | None:
        """A parameter's place among those that are trained."""
        return self._indices.get(id(tensor))

    def run(
        self,
        start: Any,
        weights: torch.Tensor | None,
        keep: Callable[..., Any] = given,
        uses: Sequence[int] | None = None,
        passage: tuple[GradientEdge, Place] | None = None,
        *,
        retain_graph: bool,
    ) -> tuple[list[Any], torch.Tensor | None]:
        """One backward pass, or a part of it.

        Args:
            start: The losses, or the passage that the part begins at.
            weights: The errors there, if any arrived.
            keep: What is kept of each use and its errors.
            uses: The numbers of the uses on the way; all if not given.
            passage: Where the part ends.
            retain_graph: Whether the graph is kept.

        Returns:
            What is kept of those uses, and the errors at the end.
        """
        uses = range(len(self.uses)) if uses is None else uses
        found: dict[int, Any] = {}
        handles = []
        targets: list[Any] = [] if passage is None else [passage[0]]
        for number in uses:
            use = self.uses[number]
            if use.early:
                handles.append(use.targets[0].node.register_prehook(partial(self._arrived, number, keep, found)))  # type: ignore[union-attr]
            else:
                targets += use.targets
        errors: Any = [None] * len(targets)
        try:
            if targets and weights is not None:
                errors = torch.autograd.grad(start, targets, weights, retain_graph=retain_graph, allow_unused=True)
        finally:
            for handle in handles:
                handle.remove()
        rest = iter(errors)
        onward = None if passage is None else next(rest)
        for number in uses:
            use = self.uses[number]
            if not use.early:
                found[number] = keep(use, *[next(rest) for _ in use.targets])
            elif number not in found:
                raise UnsupportedError(
                    f"no errors arrived at {self._layer(use.behind)}, though records were followed beyond it."
                )
        return [found[number] for number in uses], onward

    def _arrived(
        self, number: int, keep: Callable[..., Any], found: dict[int, Any], errors: Sequence[torch.Tensor | None]
    ) -> None:
        use = self.uses[number]
        found[number] = keep(use, errors[use.targets[0].output_nr])

    def contributions(self, uses: Sequence[int], found: Sequence[Any]) -> list[tuple[int, Contribution]]:
        """From what uses have given to every record's gradients in parameters, which may come several times."""
        direct: list[tuple[int, Contribution]] = []
        shared: list[Shared] = []
        for number, own in zip(uses, found, strict=True):
            use = self.uses[number]
            if not use.early:
                own = use.give(*own) if any(error is not None for error in own) else ([], [])
            direct += own[0]
            shared += own[1]
        return direct + to_parameters(shared, self.index)

    def behind(self, section: int) -> set[int]:
        """The parameters that are met behind a section."""
        if section >= len(self.passages):
            return set()
        leaves, _ = leaves_behind(self.passages[section][0].node)
        return {index for leaf in leaves if (index := self.index(leaf)) is not None}

    def _meet(self, graph: Graph, meeting: Meeting, *, early: bool) -> None:
        """Parameters, or what is made of them, are used by records here."""
        number, output, place, wanted, own, _, section = meeting
        node = graph.nodes[number]
        early = early and shrinks(node)
        try:
            contribute: Ready | None = ready(node, output, wanted, place)
        except RuntimeError as error:
            raise self._changed(node) from error
        self.repeats = self.repeats or not has_rule(node)

        def give(errors: torch.Tensor) -> Given:
            nonlocal contribute
            assert contribute is not None
            direct: list[tuple[int, Contribution]] = []
            through: list[Shared] = []
            for which, part in contribute(errors).items():
                if early:
                    part.shrink()
                if which in own:
                    index, turned = own[which]
                    direct.append((index, part.transposed() if turned else part))
                elif which in wanted:
                    through.append((*node.next_functions[which], part))
            if early:  # let go of what the operation had kept
                contribute = None
                node.metadata.pop("noiseproof", None)
            return direct, through

        behind = [graph.behind[number][which] for which in wanted]
        shared = tuple([(graph.nodes[other], which) for other, which in behind])
        self.uses.append(Use((GradientEdge(node, output),), place, give, shared[0][0], early, shared, section))

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
        _, output, place, *_ = meeting
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
