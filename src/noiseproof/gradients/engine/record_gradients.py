"""RecordGradients: the gradients of one batch, record by record, ready for norms, sums and inner products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from noiseproof.errors import SettingError
from noiseproof.gradients.engine.clipping import clip_weights, clipped_rows
from noiseproof.gradients.engine.contribution import Contribution
from noiseproof.gradients.engine.flat import Flat
from noiseproof.gradients.engine.room import Room

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

    def clipped_vector(self, clip: float, share: float = 1.0) -> torch.Tensor:
        """The sum of the gradients, each scaled to norm `clip` at most and then by `share`, as one vector.

        A record whose gradient is not finite is left out.
        """
        vector = clipped_rows(self._contributions, self._flat, clip, share)
        return self.weighted_vector(clip_weights(self.squared_norms(), clip, share)) if vector is None else vector

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
