"""PerRecordGradients: hooks on a network that make every record's gradient known after one backward pass."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal

import torch
from torch import nn

from noiseproof.engine.checks import Separation, check_shapes, refuse_mixing_layers
from noiseproof.engine.clipping import Flat, clip_weights, clipped_rows
from noiseproof.engine.contributions import Contribution, Room, added
from noiseproof.engine.rules import rules_for
from noiseproof.engine.tape import Capture, Tape, Target
from noiseproof.errors import SettingError, UnsupportedError


class PerRecordGradients:
    """Every record's gradient in a network's trainable parameters, from one forward and one backward pass.

    The backward pass goes no further than the activations: hooks keep what each layer was given, and norms and sums
    of per-record gradients are made from (activation, error) pairs when asked for. The module itself is not changed;
    `close` takes the hooks off, and copies of the module have none that act.

    Records come first in the network's inputs and losses, and no operation may mix them. Layers known to mix them are
    refused at once. Beyond that, the first backward pass of two records or more is run twice, with other weights on the
    losses: every error must scale with its own record's weight alone, else `UnsupportedError` names the layer
    (`check=False` trusts you).

    `vmapped` names modules (dotted paths, "" for the whole network) to be run by `torch.func.vmap` as one layer, with
    per-record gradients written out. That is slow, but takes code that uses parameters in ways of its own.

    Formal guarantee
    ----------------
    None by itself: what comes out is as private as the records. It gives clipping its premise: if the losses' i-th
    entry depends on no record but the i-th, so does the i-th gradient.
    """

    def __init__(self, module: nn.Module, *, vmapped: Collection[str] = (), check: bool = True) -> None:
        refuse_mixing_layers(module)
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        if not named:
            raise SettingError("the network has no trainable parameter, so there is nothing to take gradients of.")
        unknown = sorted(set(vmapped) - {path for path, _ in module.named_modules()})
        if unknown:
            raise SettingError(f"the network has no module {unknown[0]!r} to run by vmap.")
        self.module = module
        self.parameters: list[nn.Parameter] = [parameter for _, parameter in named]
        """Trainable parameters, in the order of `module.parameters()`."""
        self._flat = Flat(self.parameters)
        self._names = {id(parameter): name for name, parameter in named}
        self._indices = {id(parameter): index for index, parameter in enumerate(self.parameters)}
        self.layers: dict[str, list[int]] = self._group()
        """Modules that own parameters, by path: the places of their parameters in `parameters`."""
        self._members = list(self.layers.values())
        self._unchecked = check
        self._tape = Tape()
        self._handles = [handle for rule in rules_for(module, self._tape, vmapped) for handle in rule.attach()]

    def backward(self, losses: torch.Tensor) -> RecordGradients:
        """Every record's gradient of its own loss; `param.grad` stays as it is, and the graph is freed."""
        if losses.dim() != 1:
            raise SettingError(f"losses must have the shape (records,), one loss a record, not {tuple(losses.shape)}.")
        records = losses.shape[0]
        uses: list[list[Contribution]] = [[] for _ in self.parameters]
        found = self._tape.captures_behind(losses, self._names) if records else []
        if records and not found:
            raise UnsupportedError(
                "these losses do not come from a watched forward pass of the network; run it with gradients on and not "
                "while the engine is paused."
            )
        for capture, errors in self._errors(losses, found):
            capture.check_unchanged()
            for parameter, part in capture.settle(*errors):
                uses[self._index(parameter)].append(part)
        contributions = [added(parts) if parts else None for parts in uses]
        return RecordGradients(records, self._flat, self._members, contributions)

    def split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Views of a vector over all parameters, one of each parameter's shape."""
        return self._flat.split(vector)

    def paused(self) -> AbstractContextManager[None]:
        """Forward passes in here are not captured: for a network that only passes gradients on, or public records."""
        return self._tape.paused()

    def close(self) -> None:
        """Take the hooks off the module."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self) -> PerRecordGradients:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _index(self, parameter: torch.Tensor) -> int:
        index = self._indices.get(id(parameter))
        if index is None:
            raise UnsupportedError(
                "a parameter was put in place or made trainable after the engine had been attached; close the engine "
                "and make a new one."
            )
        return index

    def _group(self) -> dict[str, list[int]]:
        """The parameters of every layer; a shared parameter belongs to the first layer that owns it."""
        taken: set[int] = set()
        layers = {}
        for path, owner in self.module.named_modules():
            mine = [self._indices.get(id(parameter), -1) for parameter in owner.parameters(recurse=False)]
            mine = [index for index in mine if index >= 0 and index not in taken]
            if mine:
                taken.update(mine)
                layers[path] = mine
        return layers

    def _errors(
        self, losses: torch.Tensor, found: list[tuple[Capture, tuple[Target, ...]]]
    ) -> list[tuple[Capture, tuple[torch.Tensor | None, ...]]]:
        """The gradients of all captures' targets, for those that the losses depend on."""
        targets: list[Any] = [target for _, those in found for target in those]
        if not targets:
            return []
        captures = [capture for capture, those in found for _ in those]
        separation = None
        self._tape.errors_only = True
        try:
            if self._unchecked and losses.shape[0] > 1:
                separation = Separation(losses, targets, captures)
            errors = torch.autograd.grad(losses, targets, torch.ones_like(losses), allow_unused=True)
        finally:
            self._tape.errors_only = False
        check_shapes(captures, errors, losses.shape[0])
        if separation is not None:
            separation.check(errors)
            self._unchecked = False
        each: list[tuple[Capture, tuple[torch.Tensor | None, ...]]] = []
        arrived = 0
        for capture, those in found:
            some = errors[arrived : arrived + len(those)]
            arrived += len(those)
            if not all(error is None for error in some):
                each.append((capture, some))
        return each


# RecordGradients: the gradients of one batch, record by record, ready for norms, sums and inner products.


By = Literal["all", "tensor", "layer"]


class RecordGradients:
    """The gradients g_1 .. g_B of a batch's records, one list of parameter tensors each, mostly not written out.

    `by` says over what norms are taken and weights are given: `"all"` parameters together, every parameter
    `"tensor"`, or every `"layer"` (a module that owns parameters).
    """

    def __init__(
        self,
        records: int,
        flat: Flat,
        layers: Sequence[Sequence[int]],
        contributions: Sequence[Contribution | None],
    ) -> None:
        self.records = records
        self._flat = flat
        self._parameters = flat.parameters
        self._layers = layers
        self._contributions = contributions
        room = Room()
        for part in contributions:
            if part is not None:
                part.share(room)
        self._tensor_norms: list[torch.Tensor | None] | None = None
        self._gram: torch.Tensor | None = None

    def squared_norms(self, by: By = "all") -> torch.Tensor:
        """||g_i||^2: (B,), or (B, tensors), or (B, layers)."""
        if self._tensor_norms is None:
            self._tensor_norms = [None if part is None else part.squared_norms() for part in self._contributions]
        if by == "all":
            return self._total(self._tensor_norms)
        columns = self._columns(self._tensor_norms)
        return columns if by == "tensor" else columns @ self._membership(by)

    def weighted_sum(self, weights: torch.Tensor, by: By = "all") -> list[torch.Tensor]:
        """sum_i w_i g_i, one tensor a parameter; weights (B,), or (B, tensors) or (B, layers) with `by`.

        A record of weight zero or NaN is left out, even if its gradient is not finite (zero times infinity would not be).
        """
        each = zip(self._parameters, self._weighted_parts(weights, by), strict=True)
        return [
            torch.zeros_like(parameter) if part is None else part.weighted_sum(column)
            for parameter, (part, column) in each
        ]

    def weighted_vector(self, weights: torch.Tensor, by: By = "all") -> torch.Tensor:
        """`weighted_sum` as one vector, parameter after parameter; `PerRecordGradients.split` gives it back its shapes.

        It takes the first parameter's dtype and device.
        """
        vector, uniform = self._flat.empty(), self._flat.uniform
        for place, (part, column) in zip(self._flat.split(vector), self._weighted_parts(weights, by), strict=True):
            if part is None:
                place.zero_()
            elif uniform:
                part.write_sum(column, place)
            else:
                place.copy_(part.weighted_sum(column))
        return vector

    def clipped_vector(self, max_grad_norm: float, share: float = 1.0) -> torch.Tensor:
        """The sum of the gradients, each scaled to norm `clip` at most and then by `share`, as one vector.

        A record whose gradient is not finite is left out.
        """
        vector = clipped_rows(self._contributions, self._flat, max_grad_norm, share)
        return (
            self.weighted_vector(clip_weights(self.squared_norms(), max_grad_norm, share)) if vector is None else vector
        )

    def inner(self, vectors: Sequence[torch.Tensor]) -> torch.Tensor:
        """<g_i, v>, (B,), for one list of tensors shaped like the parameters."""
        pairs = zip(self._contributions, vectors, strict=True)
        return self._total([None if part is None else part.inner(vector.detach()) for part, vector in pairs])

    def gram(self) -> torch.Tensor:
        """<g_i, g_k> over all parameters, (B, B)."""
        if self._gram is None:
            total = self._parameters[0].detach().new_zeros(self.records, self.records)
            for part in self._contributions:
                if part is not None:
                    total += part.gram()
            self._gram = total
        return self._gram

    def materialise(self) -> list[torch.Tensor]:
        """The gradients written out, one (B, *shape) a parameter: B times the memory of the network."""
        return [
            parameter.detach().new_zeros(self.records, *parameter.shape) if part is None else part.explicit()
            for parameter, part in zip(self._parameters, self._contributions, strict=True)
        ]

    def _membership(self, by: By) -> torch.Tensor:
        if by != "layer":
            raise SettingError(f"by={by!r} is not one of all, tensor, layer.")
        membership = self._parameters[0].detach().new_zeros(len(self._parameters), len(self._layers))
        for layer, members in enumerate(self._layers):
            membership[list(members), layer] = 1.0
        return membership

    def _columns(self, columns: list[torch.Tensor | None]) -> torch.Tensor:
        """(B, tensors) from one column a parameter, where a parameter without contribution gives zeros."""
        zeros = self._parameters[0].detach().new_zeros(self.records)
        return torch.stack([zeros if column is None else column.to(zeros) for column in columns], dim=1)

    def _total(self, columns: list[torch.Tensor | None]) -> torch.Tensor:
        """(B,), the sum of the columns that are there."""
        there = [column for column in columns if column is not None]
        if not there:
            return self._parameters[0].detach().new_zeros(self.records)
        total = there[0]
        for column in there[1:]:
            total = total + column
        return total

    def _weighted_parts(self, weights: torch.Tensor, by: By) -> list[tuple[Contribution | None, torch.Tensor]]:
        """For every parameter the contribution to sum up and the weights to do it with; None if there is nothing."""
        expected = {"all": (), "tensor": (len(self._parameters),), "layer": (len(self._layers),)}
        if by not in expected:
            raise SettingError(f"by={by!r} is not one of all, tensor, layer.")
        if tuple(weights.shape) != (self.records, *expected[by]):
            raise SettingError(
                f"weights by {by} must have the shape {(self.records, *expected[by])}, not {tuple(weights.shape)}."
            )
        weights = weights.detach()
        if by == "layer":
            weights = weights @ self._membership(by).T.to(weights)
        columns = [weights] * len(self._parameters) if by == "all" else list(weights.unbind(1))
        # Mostly all weights are positive, which one reduction tells.
        leave_out = bool(len(weights)) and not float(weights.min()) > 0 and not bool(weights.nan_to_num(nan=0.0).all())
        each = zip(self._parameters, self._contributions, columns, strict=True)
        return [_weighted_part(parameter, part, column, leave_out) for parameter, part, column in each]


def _weighted_part(
    parameter: torch.Tensor, part: Contribution | None, weights: torch.Tensor, leave_out: bool
) -> tuple[Contribution | None, torch.Tensor]:
    """`part` and its weights; with `leave_out` only of the records whose weight is neither zero nor NaN."""
    if weights.dtype != parameter.dtype:
        weights = weights.to(parameter.dtype)
    if part is None or not leave_out:
        return part, weights
    there = weights.nan_to_num(nan=0.0).nonzero().squeeze(1)
    return part.only(there) if len(there) else None, weights[there]
