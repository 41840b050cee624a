"""The walk from losses back to parameters: where a batch's records meet what they share.

A walk depends on nothing but the graph's nodes and edges, shapes, settings of operations and places of parameters; all of this is
read off the graph first, as a key. So the plan that a walk makes is kept under its key and serves every graph that is the same.
Where an operation has to be asked for the values in a tensor, or tried, the plan is used once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from noiseproof.engine.following import by_shapes, inputs_of
from noiseproof.engine.places import Mixed, Place, Unknown
from noiseproof.engine.recorder import Recorded, Recorder

KEPT_NODES = 20_000
"""How many nodes the graphs may have together whose plans are kept: some megabytes."""
_HIDING = ("CheckpointFunctionBackward",)
"""Operations behind which there may be parameters that the graph does not show: reentrant checkpoints."""
_SETTINGS: dict[type, Callable[[Any], Hashable] | None] = {}
"""By a node's type what reads its settings."""


class Meeting(NamedTuple):
    """An operation in which records meet what they share."""

    node: int
    output: int
    place: Place
    """Where the records lie in that output."""
    wanted: tuple[int, ...]
    """Which of the inputs are shared; none if records cannot be followed through the operation."""


class Plan(NamedTuple):
    """What a walk has found."""

    meetings: Sequence[Meeting]
    unknown: Sequence[Meeting]
    """Operations through which records cannot be followed."""
    rules: Sequence[int]
    """Nodes of layers with rules of their own."""
    reached: frozenset[int]
    """Nodes whose results have records in them."""


class Stop(Exception):
    """The walk ends at a node with which something is wrong: `args` are its number and what."""


class Graph:
    """The nodes behind some losses, numbered, and what tells this graph from others.

    Args:
        losses: One loss a record, made by some operation.
        indices: The trainable parameters' places by their identity.
        recorder: What rules of layers have recorded with.
    """

    def __init__(self, losses: torch.Tensor, indices: Mapping[int, int], recorder: Recorder) -> None:
        start: Any = losses.grad_fn
        self.start, self.records = (0, losses.output_nr), len(losses)
        self.nodes: list[Any] = [start]
        self.recorded: dict[int, Recorded] = {}
        self.behind: list[list[tuple[int, int]]] = []
        """For every node the numbers of those behind it and which output; -1 for inputs without a gradient."""
        self.shapes: list[list[tuple[int, ...]]] = []
        """For every node the shapes of its outputs."""
        self.parameters: dict[int, int] = {}
        """Nodes that stand for a parameter, and its place."""
        nodes, numbers = self.nodes, {start: 0}
        behind: list[tuple[int, int]]
        key: list[Hashable] = [self.start, self.records]
        for number, node in enumerate(nodes):  # which grow
            kind, behind = type(node), []
            settings: Hashable = None
            if kind.__name__ == "AccumulateGrad":
                variable = node.variable
                shapes = [tuple(variable.shape)]
                settings = self.parameters[number] = indices.get(id(variable), -1)
            else:
                shapes = [tuple(one.shape) for one in node._input_metadata]
                read = _SETTINGS[kind] if kind in _SETTINGS else _SETTINGS.setdefault(kind, _settings(kind))
                settings = None if read is None else read(node)
                following, recorded = node.next_functions, node.metadata.get(recorder)
                if recorded is not None:
                    self.recorded[number] = recorded
                    following = [(other, output) for other, output, _ in recorded.inputs]
                    dims = [dim for _, _, dim in recorded.inputs]
                    key.append((recorded.record_dim, *recorded.outputs.items(), *dims))
                for other, output in following:
                    known = -1 if other is None else numbers.get(other)
                    if known is None:
                        known = numbers[other] = len(nodes)
                        nodes.append(other)
                    behind.append((known, output))
            self.behind.append(behind)
            self.shapes.append(shapes)
            key.append((kind, settings, *behind, *shapes))
        self.key = tuple(key)


def _settings(kind: type) -> Callable[[Any], Hashable] | None:
    """What reads all that nodes of a type keep besides tensors: those have a raw form too, and shapes are known anyway."""
    names = [name for name in dir(kind) if name.startswith("_saved_") and not hasattr(kind, f"_raw{name}")]
    names = [name for name in names if not name.endswith(("_sym_sizes", "_sym_strides"))]
    return attrgetter(*names) if names else None


class Plans:
    """What is known of a network's graphs: its parameters, and the plans of walks that depended on nothing but their key.

    Args:
        names: The trainable parameters' names by their identity, in order.
        recorder: What rules of layers record with.
    """

    def __init__(self, names: Mapping[int, str], recorder: Recorder) -> None:
        self.names, self.recorder = names, recorder
        self.indices = {parameter: index for index, parameter in enumerate(names)}
        self._known: dict[Hashable, Plan] = {}
        self._nodes = 0

    def of(self, graph: Graph) -> Plan:
        """The plan for a graph, from a walk if none is known.

        Raises:
            Stop: At a node that mixes records, or from which they cannot be followed.
        """
        try:
            plan = self._known.get(graph.key)
        except TypeError:  # a setting that has no hash
            return _Walk(graph).plan
        if plan is None:
            walk = _Walk(graph)
            plan = walk.plan
            if walk.by_key:
                self._nodes += len(graph.nodes)
                if self._nodes > KEPT_NODES:
                    self._known, self._nodes = {}, len(graph.nodes)
                self._known[graph.key] = plan
        return plan


class _Walk:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._reaches = [False] * len(graph.nodes)
        self._places: dict[int, dict[int, Place]] = {graph.start[0]: {graph.start[1]: Place(graph.records)}}
        self._shared: set[int] = set()
        self._meetings: list[Meeting] = []
        self._unknown: list[Meeting] = []
        self._rules: list[int] = []
        self.by_key = True
        """Whether the plan follows from the graph's key."""
        for number in reversed(self._sorted()):
            if self._reaches[number]:
                self._visit(number)
        self.plan = Plan(self._meetings, self._unknown, self._rules, frozenset(self._places))

    def _sorted(self) -> list[int]:
        """The nodes, each after all that it was made from; on the way it is found which of them lead to a parameter."""
        graph, reaches = self._graph, self._reaches
        order: list[int] = []
        seen: set[int] = set()
        stack = [(graph.start[0], False)]
        while stack:
            number, done = stack.pop()
            if done:
                order.append(number)
                reaches[number] = (
                    number in graph.recorded
                    or type(graph.nodes[number]).__name__ in _HIDING
                    or graph.parameters.get(number, -1) >= 0
                    or any(other >= 0 and reaches[other] for other, _ in graph.behind[number])
                )
            elif number not in seen:
                seen.add(number)
                stack.append((number, True))
                stack += [(other, False) for other, _ in graph.behind[number] if other >= 0]
        return order

    def _visit(self, number: int) -> None:
        graph, places = self._graph, self._places.get(number)
        behind = graph.behind[number]
        if number in self._shared:
            if places:
                raise Stop(number, Mixed)
            self._shared.update(other for other, _ in behind if other >= 0)
            return
        if places is None:
            return
        recorded = graph.recorded.get(number)
        if recorded is not None:
            if any(recorded.outputs.get(output) != place.dim or not place.simple for output, place in places.items()):
                raise Stop(number, Mixed)
            self._rules.append(number)
            for (other, output), (_, _, dim) in zip(behind, recorded.inputs, strict=True):
                if self._reaches[other]:
                    self._arrive(other, output, Place(graph.records, dim))
            return
        node = graph.nodes[number]
        if type(node).__name__ in ("AccumulateGrad", *_HIDING):
            raise Stop(number, Unknown)
        shapes = [() if other < 0 else graph.shapes[other][output] for other, output in behind]
        for output, place in places.items():
            self.by_key = self.by_key and by_shapes(node)
            try:
                found = inputs_of(node, output, place, graph.shapes[number][output], shapes)
            except Mixed:
                raise Stop(number, Mixed) from None
            except Unknown:
                if not place.fits(graph.shapes[number][output]):
                    raise Stop(number, Mixed) from None
                self._unknown.append(Meeting(number, output, place, ()))
                continue
            wanted = []
            for which, (own, (other, other_output)) in enumerate(zip(found, behind, strict=True)):
                if other < 0 or not self._reaches[other]:
                    continue
                if own is None:
                    wanted.append(which)
                    self._shared.add(other)
                else:
                    self._arrive(other, other_output, own)
            if wanted:
                self._meetings.append(Meeting(number, output, place, tuple(wanted)))

    def _arrive(self, number: int, output: int, place: Place) -> None:
        known = self._places.setdefault(number, {})
        if output in known:
            try:
                place = known[output].merged(place)
            except Mixed:
                raise Stop(number, Mixed) from None
        known[output] = place
