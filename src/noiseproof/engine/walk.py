"""The walk from losses back to parameters: where a batch's records meet what they share.

A walk depends on nothing but the graph's nodes and edges, shapes, settings of operations and places of parameters; all of this is
read off the graph first, as a key. So the route that a walk makes is kept under its key and serves every graph that is the same.
Where an operation has to be asked for the values in a tensor, or tried, the route is used once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import get_gradient_edge

from noiseproof.engine.following import by_shapes, inputs_of
from noiseproof.engine.places import Mixed, Place, Unknown
from noiseproof.engine.recorder import Recorded, Recorder

Edges = tuple[tuple[int, int], ...]
Shapes = tuple[tuple[int, ...], ...]
KEPT_NODES = 20_000
"""How many nodes the graphs may have together whose routes are kept: some megabytes."""
_HIDING = ("CheckpointFunctionBackward",)
"""Operations behind which there may be parameters that the graph does not show: reentrant checkpoints."""
_PARAMETER = type(get_gradient_edge(torch.ones((), requires_grad=True)).node)
"""The type of nodes that stand for a parameter."""
_SHAPING = tuple(
    f"{name}Backward"
    for name in (
        "Alias",
        "Clone",
        "Permute",
        "Select",
        "Slice",
        "Squeeze",
        "T",
        "ToCopy",
        "Transpose",
        "Unsqueeze",
        "View",
    )
)
"""Operations that turn and cut what they are given, and nothing else."""
SECTIONS = 32
"""How many sections a graph is parted into at most."""
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
    own: Mapping[int, tuple[int, bool]]
    """Those of them that are trained parameters: the parameter's place, and whether the input is its transpose."""
    onward: bool
    """Whether records can be followed further from here, to other meetings."""
    section: int = 0
    """Between which of the route's passages it lies."""


class Route(NamedTuple):
    """What a walk has found."""

    meetings: Sequence[Meeting]
    unknown: Sequence[Meeting]
    """Operations through which records cannot be followed."""
    rules: Sequence[int]
    """Nodes of layers with rules of their own."""
    reached: frozenset[int]
    """Nodes whose results have records in them."""
    passages: Sequence[tuple[int, int, Place]] = ()
    """Outputs of nodes, from the losses on, that everything behind is reached through, but for what records share there."""


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
        self.recorded: dict[int, Recorded] = {}
        self.parameters: dict[int, int] = {}
        """Nodes that stand for a parameter, and its place."""
        self.behind: list[Edges] = []
        """For every node the numbers of those behind it and which output; -1 for inputs without a gradient."""
        self.shapes: list[Shapes] = []
        """For every node the shapes of its outputs."""
        self.nodes = nodes = [start]
        numbers: dict[Any, int] = {start: 0}
        key: list[Hashable] = [self.start, self.records]
        recording = recorder.used
        for number, node in enumerate(nodes):  # which grow
            kind = type(node)
            edges: list[tuple[int, int]] = []
            settings: Hashable
            if kind is _PARAMETER:
                variable = node.variable
                settings = self.parameters[number] = indices.get(id(variable), -1)
                shapes: Shapes = (tuple(variable.shape),)
            else:
                shapes = tuple([tuple(one.shape) for one in node._input_metadata])
                reader = _SETTINGS[kind] if kind in _SETTINGS else _SETTINGS.setdefault(kind, _settings(kind))
                settings = None if reader is None else reader(node)
                following, recorded = node.next_functions, node.metadata.get(recorder) if recording else None
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
                    edges.append((known, output))
            behind = tuple(edges)
            self.behind.append(behind)
            self.shapes.append(shapes)
            key.append((kind, settings, behind, shapes))
        self.key = tuple(key)


def _settings(kind: type) -> Callable[[Any], Hashable] | None:
    """What reads all that nodes of a type keep besides tensors: those have a raw form too, and shapes are known anyway."""
    names = [name for name in dir(kind) if name.startswith("_saved_") and not hasattr(kind, f"_raw{name}")]
    names = [name for name in names if not name.endswith(("_sym_sizes", "_sym_strides"))]
    return attrgetter(*names) if names else None


class Routes:
    """What is known of a network's graphs: its parameters, and the routes of walks that depended on nothing but their key.

    Args:
        names: The trainable parameters' names by their identity, in order.
        recorder: What rules of layers record with.
    """

    def __init__(self, names: Mapping[int, str], recorder: Recorder) -> None:
        self.names, self.recorder = names, recorder
        self.indices = {parameter: index for index, parameter in enumerate(names)}
        self._known: dict[Hashable, Route] = {}
        self._nodes = 0

    def of(self, graph: Graph) -> Route:
        """The route for a graph, from a walk if none is known.

        Raises:
            Stop: At a node that mixes records, or from which they cannot be followed.
        """
        try:
            route = self._known.get(graph.key)
        except TypeError:  # a setting that has no hash
            return _Walk(graph).route
        if route is None:
            walk = _Walk(graph)
            route = walk.route
            if walk.by_key:
                self._nodes += len(graph.nodes)
                if self._nodes > KEPT_NODES:
                    self._known, self._nodes = {}, len(graph.nodes)
                self._known[graph.key] = route
        return route


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
        """Whether the route follows from the graph's key."""
        self._waiting, self._visited = {graph.start[0]}, dict[int, int]()
        """Nodes that records have arrived at and that come later; those that came, and their places in the order."""
        self._narrow: list[tuple[int, int, Place]] = []
        """Outputs of nodes at which, when they come, no other waits."""
        order = self._sorted()[::-1]
        for number in order:
            if self._reaches[number]:
                self._visit(number)
        passages = [] if self._rules or self._unknown else self._passages(order)
        starts = [self._visited[number] for number, _, _ in passages]
        meetings = [
            meeting._replace(section=bisect_right(starts, self._visited[meeting.node])) for meeting in self._meetings
        ]
        self.route = Route(meetings, self._unknown, self._rules, frozenset(self._places), passages)

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
        if self._waiting == {number} and len(places) == 1:
            ((output, only),) = places.items()
            if only.simple and self._visited:
                self._narrow.append((number, output, only))
        self._waiting.discard(number)
        self._visited[number] = len(self._visited)
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
            table = type(node).__name__.startswith(("IndexBackward", "IndexSelectBackward")) and self._bare(
                behind[0][0]
            )
            self.by_key = self.by_key and (table or by_shapes(node))
            try:
                found = (
                    inputs_of(node, output, place, graph.shapes[number][output], shapes)
                    if not table
                    else [None] * len(shapes)
                )
            except Mixed:
                raise Stop(number, Mixed) from None
            except Unknown:
                if not place.fits(graph.shapes[number][output]):
                    raise Stop(number, Mixed) from None
                self._unknown.append(Meeting(number, output, place, (), {}, onward=False))
                continue
            wanted, onward = [], False
            for which, (own, (other, other_output)) in enumerate(zip(found, behind, strict=True)):
                if other < 0 or not self._reaches[other]:
                    continue
                if own is None:
                    wanted.append(which)
                    self._shared.add(other)
                else:
                    onward = True
                    self._arrive(other, other_output, own)
            if wanted:
                own_places = {which: self._own(behind[which][0]) for which in wanted}
                known = {which: own for which, own in own_places.items() if own is not None}
                self._meetings.append(Meeting(number, output, place, tuple(wanted), known, onward))

    def _bare(self, number: int) -> bool:
        """Whether a node is a parameter itself, however it is turned or cut, so that no record has a row of its own in it."""
        graph = self._graph
        while (
            number >= 0 and type(graph.nodes[number]).__name__.startswith(_SHAPING) and len(graph.behind[number]) == 1
        ):
            number = graph.behind[number][0][0]
        return number in graph.parameters

    def _own(self, number: int) -> tuple[int, bool] | None:
        """The place of the trained parameter that a node is, and whether it is turned; None if it is something else."""
        turned = type(self._graph.nodes[number]).__name__ == "TBackward0"
        index = self._graph.parameters.get(self._graph.behind[number][0][0] if turned else number, -1)
        return None if index < 0 else (index, turned)

    def _arrive(self, number: int, output: int, place: Place) -> None:
        self._waiting.add(number)
        known = self._places.setdefault(number, {})
        if output in known:
            try:
                place = known[output].merged(place)
            except Mixed:
                raise Stop(number, Mixed) from None
        known[output] = place

    def _passages(self, order: Sequence[int]) -> list[tuple[int, int, Place]]:
        """Narrow places, with enough between them.

        What is met before one must not be met behind it too, or be part of what is: errors would arrive there that come later.
        Nor may it be part of something else that is met in the same section, which errors would reach it through.
        """
        graph, visited = self._graph, self._visited
        direct: dict[int, set[int]] = {}
        through: dict[int, set[int]] = {}
        """For what is shared the places at which it is met, itself or as a part."""
        for meeting in self._meetings:
            for which in meeting.wanted:
                direct.setdefault(graph.behind[meeting.node][which][0], set()).add(visited[meeting.node])
        for number in order:
            if places := direct.get(number, set()) | through.get(number, set()):
                for other, _ in graph.behind[number]:
                    through.setdefault(other, set()).update(places)
        until = [0] * (len(visited) + 1)
        """For every place the last at which something is met that was met before it."""
        for shared, places in direct.items():
            place = min(places) + 1
            until[place] = max(until[place], *places, *through.get(shared, ()))
        sizes = [sum(prod(shape) for shape in graph.shapes[number]) for number in visited]
        size, least = 0, sum(sizes) / SECTIONS
        narrow = {visited[candidate[0]]: candidate for candidate in self._narrow}
        found: list[tuple[int, int, Place]] = []
        for place, own in enumerate(sizes):
            until[place] = max(until[place], until[place - 1] if place else 0)
            if size >= least and place in narrow and until[place] < place:
                found.append(narrow[place])
                size = 0
            size += own
        starts = [visited[number] for number, _, _ in found]
        for shared in direct.keys() & through.keys():
            own_sections, others = (
                {bisect_right(starts, place) for place in kind[shared]} for kind in (direct, through)
            )
            if own_sections & others:
                return []
        return found
