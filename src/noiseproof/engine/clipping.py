"""The gradients of one batch, record by record: norms, weighted and clipped sums, inner products."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

import torch
from torch._utils import _unflatten_dense_tensors

from noiseproof import kernels
from noiseproof.engine.contributions import Contribution, MemoryLimit, widened
from noiseproof.engine.persons import Owners
from noiseproof.errors import SettingError

By = Literal["all", "tensor", "layer"]
_MANY_RECORDS = 64
"""Records of a person whose products with each other are cheaper made by larger operations."""
Column = torch.Tensor | None
"""One number a record, for one parameter; None if the losses do not depend on it."""


class Flat:
    """Where each of some tensors lies in the vector that holds them one after another; worked out once, used each step."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.parameters = parameters
        self.size = sum(parameter.numel() for parameter in parameters)
        self._last: tuple[torch.Tensor, list[torch.Tensor]] | None = None
        # Shapes alone: a parameter that moves elsewhere must not be kept where it was.
        self._like = [torch.empty(parameter.shape, device="meta") for parameter in parameters]

    def zeros(self, *shape: int) -> torch.Tensor:
        """Zeros of the first tensor's device and dtype, float32 if that is shorter."""
        first = self.parameters[0].detach()
        return widened(first.new_zeros(shape), first.dtype)

    def split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Views of a vector, one of each tensor's shape."""
        last, self._last = self._last, None
        if last is not None and last[0] is vector:
            return last[1]
        # Mostly a vector is filled and then split once more.
        self._last = vector, list(_unflatten_dense_tensors(vector, self._like))
        return self._last[1]


def clip_weights(squared_norms: torch.Tensor, max_grad_norm: float, share: float = 1.0) -> torch.Tensor:
    """What each record's gradient is multiplied by so that its norm is at most `max_grad_norm`.

    A hair below max_grad_norm / norm, so that float32's rounding of the norm cannot push a record over. A record whose
    gradient is not finite has the weight 0 or NaN, with which it is left out of a weighted sum, since no factor could
    bound it.

    Args:
        squared_norms: The squares of the gradients' L2 norms, as `RecordGradients.squared_norms` gives them; any shape.
        max_grad_norm: The largest norm that a gradient may have.
        share: A factor on all weights, such as one over the expected batch size for a mean instead of a sum.

    Returns:
        A weight for each squared norm, at most `share`.

    Examples:
        >>> clip_weights(torch.tensor([0.25, 4.0]), max_grad_norm=1.0)
        tensor([1.0000, 0.5000])
    """
    return squared_norms.rsqrt().mul_(max_grad_norm * share * (1 - 1e-5)).clamp_max_(share)


class RecordGradients:
    """The gradients g_1 .. g_B of a batch's records, one list of parameter tensors each, mostly not written out.

    `PerRecordGradients.backward` returns it; there is no need to make one. In its methods `by` says over what norms are
    taken and weights are given: `"all"` parameters together, every parameter `"tensor"`, or every `"layer"` (a module
    that owns parameters).

    Args:
        records: How many records, or persons, there are: B.
        flat: The trainable parameters, and where each lies in a vector of all of them.
        layers: For each layer the places of its parameters in `flat`.
        contributions: The records' gradients, parameter by parameter; None for one that the losses do not depend on.
        owners: Whose the records are, where gradients are summed by person (`by_person`).

    Examples:
        >>> from noiseproof.engine import PerRecordGradients
        >>> network = torch.nn.Linear(4, 2)
        >>> with PerRecordGradients(network) as engine:
        ...     gradients = engine.backward(network(torch.randn(8, 4)).square().sum(1))
        >>> gradients.squared_norms(by="tensor").shape
        torch.Size([8, 2])
        >>> weight, bias = gradients.weighted_sum(clip_weights(gradients.squared_norms(), max_grad_norm=1.0))
        >>> weight.shape
        torch.Size([2, 4])
    """

    def __init__(
        self,
        records: int,
        flat: Flat,
        layers: Collection[Sequence[int]],
        contributions: Sequence[Contribution | None],
        owners: Owners | None = None,
    ) -> None:
        self.records = records
        self._flat, self._layers = flat, layers
        self._given, self._owners = contributions, owners
        self._norms: list[Column] | None = None

    @cached_property
    def _contributions(self) -> Sequence[Contribution | None]:
        """Those of records, or of persons where there are owners."""
        given, owners, memory = self._given, self._owners, MemoryLimit()
        parts = given if owners is None else [None if part is None else part.by_person(owners) for part in given]
        for part in parts:
            if part is not None:
                part.share(memory)
        return parts

    def squared_norms(self, by: By = "all") -> torch.Tensor:
        """||g_i||^2, or more by what rounding may hide: (B,), or (B, tensors), or (B, layers)."""
        if self._norms is None:
            self._norms = [None if part is None else part.squared_norms() for part in self._contributions]
        if by == "all":
            return self._total(self._norms)
        if by not in ("tensor", "layer"):
            raise SettingError(f"by={by!r} is not one of all, tensor, layer.")
        groups = [[index] for index in range(len(self._norms))] if by == "tensor" else self._layers
        return torch.stack([self._total([self._norms[index] for index in group]) for group in groups], dim=1)

    def weighted_sum(self, weights: torch.Tensor, by: By = "all") -> list[torch.Tensor]:
        """sum_i w_i g_i, one tensor a parameter; weights (B,), or (B, tensors) or (B, layers) with `by`.

        A record of weight zero or NaN is left out, even if its gradient is not finite (zero times infinity would not be).
        """
        each = zip(self._flat.parameters, self._weighted_parts(weights, by), strict=True)
        return [
            self._flat.zeros(*parameter.shape) if part is None else part.weighted_sum(column)
            for parameter, (part, column) in each
        ]

    def weighted_vector(self, weights: torch.Tensor, by: By = "all") -> torch.Tensor:
        """`weighted_sum` as one vector, parameter after parameter; `PerRecordGradients.split` gives it back its shapes."""
        vector = torch.empty_like(self._flat.zeros(1).expand(self._flat.size), memory_format=torch.contiguous_format)
        for out, (part, column) in zip(self._flat.split(vector), self._weighted_parts(weights, by), strict=True):
            if part is None:
                out.zero_()
            elif column.dtype == out.dtype and column.device == out.device:
                part.write_sum(column, out)
            else:
                out.copy_(part.weighted_sum(column))
        return vector

    def clipped_vector(self, max_grad_norm: float, share: float = 1.0) -> torch.Tensor:
        """The sum of the gradients, each scaled to that norm at most and then by `share`, as one vector.

        A record whose gradient is not finite is left out.
        """
        vector = self._clipped_rows(max_grad_norm, share)
        if vector is not None:
            return vector
        return self.weighted_vector(clip_weights(self.squared_norms(), max_grad_norm, share))

    def inner(self, vectors: Sequence[torch.Tensor]) -> torch.Tensor:
        """<g_i, v>, (B,), for one list of tensors shaped like the parameters."""
        pairs = zip(self._contributions, vectors, strict=True)
        return self._total([None if part is None else part.inner(vector.detach()) for part, vector in pairs])

    def gram(self) -> torch.Tensor:
        """<g_i, g_k> over all parameters, (B, B)."""
        total = self._flat.zeros(self.records, self.records)
        for part in self._contributions:
            if part is not None:
                total += part.gram()
        return total

    def materialise(self) -> list[torch.Tensor]:
        """The gradients written out, one (B, *shape) a parameter: B times the memory of the network."""
        return list(self.written())

    def written(self) -> Iterator[torch.Tensor]:
        """`materialise` for one parameter after another, of which each can be let go of before the next."""
        for parameter, part in zip(self._flat.parameters, self._contributions, strict=True):
            yield self._flat.zeros(self.records, *parameter.shape) if part is None else part.explicit()

    def only(self, records: torch.Tensor) -> RecordGradients:
        """The gradients of some records, by index."""
        parts = [None if part is None else part.only(records) for part in self._contributions]
        return RecordGradients(len(records), self._flat, self._layers, parts)

    def pieces(
        self, record: int, others: Sequence[torch.Tensor | None], size: int
    ) -> Iterator[tuple[RecordGradients, list[torch.Tensor]]]:
        """One record's gradient beside another, in pieces that take at most twice so many bytes when written out.

        Small parameters come together, large ones in rows.
        """
        parameters: list[torch.Tensor] = []
        group: list[tuple[Contribution | None, torch.Tensor]] = []
        for parameter, part, given in zip(self._flat.parameters, self._contributions, others, strict=True):
            whole = parameter.detach()
            other = self._flat.zeros(1).expand(whole.shape) if given is None else given
            own = None if part is None else part.only(torch.tensor([record], device=whole.device))
            rows = len(whole) if whole.dim() else 1
            step = max(1, rows * size // max(1, 4 * whole.numel()))
            for start in range(0, rows, step) if step < rows else (None,):
                some: Any = ... if start is None else slice(start, start + step)
                parameters.append(whole[some])
                group.append((own if start is None or own is None else own.some_rows(some), other[some]))
                if 4 * sum(each.numel() for each in parameters) >= size:
                    yield self._group(parameters, group)
                    parameters, group = [], []
        if group:
            yield self._group(parameters, group)

    def _group(
        self, parameters: Sequence[torch.Tensor], group: Sequence[tuple[Contribution | None, torch.Tensor]]
    ) -> tuple[RecordGradients, list[torch.Tensor]]:
        parts, others = zip(*group, strict=True)
        return RecordGradients(1, Flat(parameters), [range(len(parameters))], parts), list(others)

    def by_person(self, owners: Owners) -> RecordGradients:
        """The gradients of persons, each the sum of that person's records'; clipping and sums are then over persons.

        Args:
            owners: Whose each record is; a person's records lie side by side.

        Returns:
            What stands where records stood is now a person's.
        """
        if owners.even and owners.most == 1:
            return self
        return RecordGradients(owners.persons, self._flat, self._layers, self._contributions, owners)

    def _total(self, columns: list[Column]) -> torch.Tensor:
        """(B,), the sum of the columns that are there."""
        there = [column for column in columns if column is not None]
        total = there[0] if there else self._flat.zeros(self.records)
        for column in there[1:]:
            total = total + column.to(total.device)
        return total

    def _weighted_parts(self, weights: torch.Tensor, by: By) -> list[tuple[Contribution | None, torch.Tensor]]:
        """For every parameter the contribution to sum up and the weights to do it with; None if there is nothing."""
        parameters = self._flat.parameters
        expected = {"all": (), "tensor": (len(parameters),), "layer": (len(self._layers),)}
        if by not in expected:
            raise SettingError(f"by={by!r} is not one of all, tensor, layer.")
        if tuple(weights.shape) != (self.records, *expected[by]):
            raise SettingError(
                f"weights by {by} must have the shape {(self.records, *expected[by])}, not {tuple(weights.shape)}."
            )
        weights = weights.detach()
        columns = [weights] * len(parameters) if by == "all" else list(weights.unbind(1))
        if by == "layer":
            of = {index: layer for layer, members in enumerate(self._layers) for index in members}
            columns = [columns[of[index]] for index in range(len(parameters))]
        # Mostly all weights are positive, which one reduction tells.
        leave_out = bool(len(weights)) and not float(weights.min()) > 0 and not bool(weights.nan_to_num(nan=0.0).all())
        found: list[tuple[Contribution | None, torch.Tensor]] = []
        for parameter, part, weight in zip(parameters, self._contributions, columns, strict=True):
            column = widened(weight, parameter.dtype)
            if part is not None and leave_out:
                there = column.nan_to_num(nan=0.0).nonzero().squeeze(1)
                part, column = part.only(there) if len(there) else None, column[there]
            found.append((part, column))
        return found

    def _clipped_rows(self, max_grad_norm: float, share: float) -> torch.Tensor | None:
        """`clipped_vector` where every layer saw one row a record; None where not.

        A kernel does at once what norms, weights, products with them and sums of biases would in some thirty operations,
        which take longer than their arithmetic if a batch is small.
        """
        every = []
        for part in self._given:
            rows = () if part is None else part.rows
            if not rows or not kernels.suit(*rows):
                return None
            every.append(rows)
        ends = None
        if self._owners is not None:
            if self._owners.most > _MANY_RECORDS:
                return None
            ends = self._owners.starts + self._owners.counts
        layers: dict[int, kernels.Layer] = {}
        vector = torch.empty(self._flat.size, dtype=torch.float32)
        for rows, out in zip(every, self._flat.split(vector), strict=True):
            errors = rows[0]
            # A weight and the bias beside it share their errors.
            layer = layers.get(id(errors))
            if layer is None:
                layer = layers[id(errors)] = kernels.Layer(errors)
            if len(rows) == 1 and layer.sums is None:
                layer.sums = out
            elif len(rows) == 2 and layer.activations is None:
                layer.activations, layer.products = rows[1], out
            else:
                return None
        return vector if kernels.clip_layers(layers.values(), max_grad_norm, share, ends) else None
