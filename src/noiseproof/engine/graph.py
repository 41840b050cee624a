"""The autograd graph of a batch: where its records meet what they share, found by following them from their losses.

Behind the losses lie two parts of the graph: operations on records, and operations on parameters alone (a transposed weight, a
table of positions, a normalised filter), whose results all records share. Every record's gradient in a parameter follows
from the errors where the two parts meet. What a rule of a layer's own has recorded is stepped over, and behind an
operation through which records cannot be followed, autograd is run once a record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.autograd.graph import GradientEdge, Node

from noiseproof.engine.contributions import Contribution, Explicit, in_pieces
from noiseproof.engine.following import inputs_of, nothing, shape_of
from noiseproof.engine.places import Mixed, Place, Unknown
from noiseproof.engine.recorder import Recorded, Recorder, Target
from noiseproof.engine.rules.operations import has_rule, ready
from noiseproof.engine.rules.shared import Shared, batched, leaves_behind, to_parameters
from noiseproof.errors import UnsupportedError


class Use(NamedTuple):
    """One place where records meet what they share."""

    targets: tuple[Target, ...]
    """Whose errors are needed."""
    place: Place
    """Where the records lie in the errors."""
    give: Callable[..., tuple[list[tuple[int, Contribution]], list[Shared]]]
    """From errors to contributions: to parameters by their index, and to tensors that are made of parameters."""
    behind: tuple[Node, ...] = ()
    """What leads to the parameters, for messages."""


class Following:
    """Follows the records of one batch from their losses to the parameters.

    Args:
        losses: One loss a record.
        names: The trainable parameters' names by their identity, in order.
        recorder: What rules of layers have recorded with.
    """

    def __init__(self, losses: torch.Tensor, names: Mapping[int, str], recorder: Recorder) -> None:
        self.records = len(losses)
        self.uses: list[Use] = []
        self.repeats = False
        """Whether autograd is run again behind some operation, for which the graph must be kept."""
        self._names, self._recorder = names, recorder
        self._indices = {parameter: index for index, parameter in enumerate(names)}
        self._reaches: dict[Node, bool] = {}
        self._places: dict[Node, dict[int, Place]] = {}
        self._shared: set[Node] = set()
        if losses.grad_fn is None:
            return
        order = self._sorted(losses.grad_fn)
        self._places[losses.grad_fn] = {losses.output_nr: Place(self.records)}
        unknown: list[tuple[Node, int, Place]] = []
        for node in reversed(order):
            if self._reaches[node]:
                self._visit(node, unknown)
        for part in unknown:
            self._repeat(*part)

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

    def _sorted(self, start: Node) -> list[Node]:
        """The nodes behind the losses, each after all that it was made from; and which of them lead to a parameter."""
        order: list[Node] = []
        stack: list[tuple[Node, bool]] = [(start, False)]
        reaches, recorder = self._reaches, self._recorder
        while stack:
            node, done = stack.pop()
            if done:
                order.append(node)
                own = node.metadata.get(recorder)  # type: ignore[attr-defined]
                reaches[node] = own is not None or any(
                    behind is not None and reaches.get(behind, False) for behind, _ in node.next_functions
                )
                continue
            if node in reaches:
                continue
            reaches[node] = False
            recorded: Recorded | None = node.metadata.get(recorder)  # type: ignore[attr-defined]
            following = (
                node.next_functions if recorded is None else [(behind, output) for behind, output, _ in recorded.inputs]
            )
            if not following:
                reaches[node] = recorded is not None or id(getattr(node, "variable", None)) in self._indices
                order.append(node)
                continue
            stack.append((node, True))
            stack += [(behind, False) for behind, _ in following if behind is not None]
        return order

    def _visit(self, node: Any, unknown: list[tuple[Node, int, Place]]) -> None:
        places = self._places.get(node)
        if node in self._shared:
            if places:
                raise self.mixed([node])
            self._shared.update(behind for behind, _ in node.next_functions if behind is not None)
            return
        if places is None:
            return
        recorded: Recorded | None = node.metadata.get(self._recorder)
        if recorded is not None:
            self._step_over(node, recorded, places)
            return
        if type(node).__name__ == "AccumulateGrad":
            raise UnsupportedError(
                f"the parameter {self._names[id(node.variable)]} seems to have a dimension that counts the records; give one "
                f"loss for each of the batch's records (these are losses for {self.records} records)."
            )
        if type(node).__name__ == "CheckpointFunctionBackward":
            raise UnsupportedError(
                "a checkpointed part of the network hides its parameters from this backward pass; call "
                "torch.utils.checkpoint.checkpoint with use_reentrant=False."
            )
        for output, place in places.items():
            try:
                found = inputs_of(node, output, place)
            except Mixed:
                raise self.mixed([node]) from None
            except Unknown:
                if not place.fits(shape_of(node, output)):
                    raise self.mixed([node]) from None
                unknown.append((node, output, place))
                continue
            wanted = []
            for number, (own, (behind, behind_output)) in enumerate(zip(found, node.next_functions, strict=True)):
                if behind is None or not self._reaches[behind]:
                    continue
                if own is None:
                    wanted.append(number)
                    self._shared.add(behind)
                else:
                    self._arrive(behind, behind_output, own)
            if wanted:
                self._meet(node, output, wanted, place)

    def _arrive(self, node: Node, output: int, place: Place) -> None:
        known = self._places.setdefault(node, {})
        if output in known:
            try:
                place = known[output].merged(place)
            except Mixed:
                raise self.mixed([node]) from None
        known[output] = place

    def _meet(self, node: Any, output: int, wanted: list[int], place: Place) -> None:
        """Parameters, or what is made of them, are used by records here."""
        try:
            contribute = ready(node, output, wanted, place)
        except RuntimeError as error:
            raise UnsupportedError(
                f"what {self.layer([node])} was given was changed in place after the layer had used it; make the operation that "
                "changes it one that is not in place."
            ) from error
        self.repeats = self.repeats or not has_rule(node)
        behind = node.next_functions

        def give(errors: torch.Tensor) -> tuple[list[tuple[int, Contribution]], list[Shared]]:
            return [], [(*behind[number], part) for number, part in contribute(errors).items() if number in wanted]

        self.uses.append(Use((GradientEdge(node, output),), place, give, (behind[wanted[0]][0],)))

    def _step_over(self, node: Any, recorded: Recorded, places: Mapping[int, Place]) -> None:
        if any(recorded.outputs.get(number) != place.dim or not place.simple for number, place in places.items()):
            raise self.mixed([node])
        for tensor, version in recorded.kept:
            if tensor._version != version:
                raise UnsupportedError(
                    f"what {self.layer([node])} was given was changed in place after the layer had used it; make the operation "
                    "that changes it one that is not in place."
                )
        for behind, output, dim in recorded.inputs:
            if self._reaches[behind]:
                self._arrive(behind, output, Place(self.records, dim))

        def give(*errors: torch.Tensor) -> tuple[list[tuple[int, Contribution]], list[Shared]]:
            parts = recorded.contributions(*errors)
            indices = [(self.index(parameter), part) for parameter, part in parts]
            return [
                (index, part if isinstance(part, Contribution) else Explicit(part))
                for index, part in indices
                if index is not None
            ], []

        targets = recorded.targets or (GradientEdge(node, recorded.output_nr),)
        self.uses.append(Use(targets, Place(self.records, recorded.record_dim), give, (node,)))

    def _repeat(self, node: Any, output: int, place: Place) -> None:
        """Records cannot be followed through this operation: what only it leads to is run backwards once a record."""
        leaves, elsewhere = leaves_behind(node, self._places)
        leaves = [leaf for leaf in leaves if self.index(leaf) is not None]
        if not leaves:
            return
        self.repeats = True
        edge = GradientEdge(node, output)

        def give(errors: torch.Tensor) -> tuple[list[tuple[int, Contribution]], list[Shared]]:
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

        self.uses.append(Use((edge,), place, give, (node,)))

    def layer(self, behind: Sequence[Node]) -> str:
        """The layer whose parameter lies behind some nodes, for a message."""
        names = [self._names[id(leaf)] for node in behind for leaf in leaves_behind(node)[0] if id(leaf) in self._names]
        return f"the layer {names[0].rpartition('.')[0] or 'network'}" if names else "its layers"

    def mixed(self, behind: Sequence[Node]) -> UnsupportedError:
        """The refusal of a network in which records meet."""
        return UnsupportedError(
            f"the network mixes records around {self.layer(behind)}, so no record has a gradient of its own; compute each by "
            "itself."
        )
