"""What every record contributes to a tensor that all records share, by the operation in which they meet.

A rule reads what the operation has kept for its own backward pass and gives a function of the errors in its output. The
shared tensor may be a parameter or anything made of parameters alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from noiseproof import kernels
from noiseproof.engine.contributions import Contribution, Explicit, in_pieces, widened
from noiseproof.engine.following import saved, shape_of
from noiseproof.engine.persons import Owners
from noiseproof.engine.places import Place, Shape
from noiseproof.engine.products import Factor, OuterProducts, ScaledRows, SparseRows, Sums
from noiseproof.engine.rules.convolution import Options, convolved
from noiseproof.engine.trials import local_gradients

Given = Mapping[int, Contribution]
Ready = Callable[[torch.Tensor], Given]
"""From the errors in an operation's output, records wherever they are, to what each shared input gets."""
OperationRule = Callable[[Any, int, Collection[int], Place], Ready]

_RULES: dict[str, OperationRule] = {}
_SHRINKING = ("Convolution", "NativeGroupNorm", "NativeLayerNorm", "NativeBatchNorm", "CudnnBatchNorm")


def _names(names: str) -> Callable[[OperationRule], OperationRule]:
    def registered(rule: OperationRule) -> OperationRule:
        _RULES.update({f"{name}Backward{number}": rule for name in names.split() for number in range(6)})
        return rule

    return registered


def has_rule(node: Any) -> bool:
    """Whether there is a rule; any other operation is run backwards again, for which the graph must be kept."""
    name = type(node).__name__
    return name in _RULES and not (name.startswith("Index") and _index(node) is None)


def shrinks(node: Any) -> bool:
    """Whether contributions may take less memory than the errors and activations that they are made of."""
    return type(node).__name__.startswith(_SHRINKING)


def ready(node: Any, output: int, wanted: Collection[int], place: Place) -> Ready:
    """What will make of errors the contributions to the inputs in `wanted`, which all records share."""
    rule = _RULES[type(node).__name__] if has_rule(node) else _one_by_one
    return rule(node, output, wanted, place)


def _shape(node: Any, number: int) -> Shape:
    return shape_of(*node.next_functions[number])


def summed(values: torch.Tensor, place: Place, shape: Shape) -> Explicit:
    """The gradients of a tensor of that shape that was spread over one with these gradients."""
    values = widened(values, values.dtype)
    first = place.first(values)
    aligned = [1] * (values.dim() - len(shape)) + list(shape)
    gone = [dim + 1 for dim, size in enumerate(aligned) if size == 1 and first.shape[dim + 1] != 1]
    total = first.sum(gone, keepdim=True) if gone else first
    return Explicit(total.reshape(place.records, *shape))


@_names("Expand Alias Clone ToCopy")
def _same(node: Any, output: int, wanted: Collection[int], place: Place) -> Ready:
    shape = _shape(node, 0)
    return lambda errors: {0: summed(errors, place, shape)}


@_names("Repeat")
def _repeated(node: Any, output: int, wanted: Collection[int], place: Place) -> Ready:
    shape = _shape(node, 0)

    def contributions(errors: torch.Tensor) -> Given:
        values = place.first(widened(errors, errors.dtype))
        aligned = [1] * (errors.dim() - len(shape)) + list(shape)
        parted = [part for dim, size in enumerate(aligned) for part in (values.shape[dim + 1] // size, size)]
        total = values.reshape(place.records, *parted).sum(list(range(1, 2 * errors.dim(), 2)))
        return {0: Explicit(total.reshape(place.records, *shape))}

    return contributions


@_names("Add Sub")
def _added(node: Any, output: int, wanted: Collection[int], place: Place) -> Ready:
    factor = float(getattr(node, "_saved_alpha", 1)) * (-1 if type(node).__name__.startswith("Sub") else 1)
    shapes = {number: _shape(node, number) for number in wanted}

    def contributions(errors: torch.Tensor) -> Given:
        return {
            number: summed(errors if number == 0 or factor == 1 else errors * factor, place, shape)
            for number, shape in shapes.items()
        }

    return contributions


@_names("Mul")
def _multiplied(node: Any, output: int, wanted: Collection[int], place: Place) -> Ready:
    others = {number: saved(node, "self" if number else "other") for number in wanted}
    shapes = {number: _shape(node, number) for number in wanted}
    return lambda errors: {number: summed(errors * others[number], place, shape) for number, shape in shapes.items()}


@_names("Mm Addmm")
def _product(node: Any, output: int, wanted: Collection[int], place: Place) -> Ready:
    """rows W + b: outer products for the matrix, sums for what was added."""
    matrix = len(node.next_functions) - (1 if place.dim == 0 else 2)
    rows = None
    if matrix in wanted:
        name = ("mat1" if len(node.next_functions) == 3 else "self") if place.dim == 0 else "mat2"
        rows = saved(node, name)
    factor = float(getattr(node, "_saved_alpha", 1))
    beta = float(getattr(node, "_saved_beta", 1))
    added = _shape(node, 0) if 0 in wanted and matrix != 0 else None

    def contributions(errors: torch.Tensor) -> Given:
        found: dict[int, Contribution] = {}
        outer = Factor(place.rows(widened(errors, errors.dtype)))
        if rows is not None:
            wide = widened(rows, rows.dtype)
            inner = Factor(place.rows(wide if factor == 1 else wide * factor))
            found[matrix] = OuterProducts(inner, outer) if place.dim == 0 else OuterProducts(outer, inner)
        if added is not None:
            plain = beta == 1 and place.dim == 0 and len(added) == 1 and added[0] == errors.shape[1]
            found[0] = Sums(outer) if plain else summed(errors * beta, place, added)
        return found

    return contributions


@_names("Mv")
def _vector_product(node: Any, output: int, wanted: Collection[int], place: Place) -> Ready:
    rows = saved(node, "self")
    return lambda errors: {1: Explicit(place.first(widened(errors.unsqueeze(1) * rows, rows.dtype)).sum(1))}


@_names("Bmm")
def _batched_product(node: Any, output: int, wanted: Collection[int], place: Place) -> Ready:
    """Matrices side by side, the same for all records."""
    left = place.dim == 2
    other = saved(node, "mat2") if left else saved(node, "self")

    def contributions(errors: torch.Tensor) -> Given:
        mine, theirs = (place.first(widened(part, part.dtype)) for part in (errors, other))
        if left:
            return {0: Explicit(mine @ theirs.transpose(2, 3))}
        return {1: Explicit(theirs.transpose(2, 3) @ mine)}

    return contributions


@_names("Convolution")
def _convolution(node: Any, output: int, wanted: Collection[int], place: Place) -> Ready:
    given, weight = saved(node, "input") if 1 in wanted else None, _shape(node, 1)
    options = Options(*(getattr(node, f"_saved_{name}") for name in Options._fields))

    def contributions(errors: torch.Tensor) -> Given:
        errors = widened(errors, errors.dtype)
        found: dict[int, Contribution] = {}
        if 2 in wanted:
            found[2] = Explicit(place.first(errors.flatten(2).sum(2)).sum(1))
        if given is not None:
            inputs = widened(given, given.dtype)
            if place.simple:
                found[1] = convolved(inputs, errors, torch.Size(weight), options)
            else:  # a record has several pictures
                inputs, errors = (place.first(part) for part in (inputs, errors))
                each = convolved(inputs.flatten(0, 1), errors.flatten(0, 1), torch.Size(weight), options)
                owners = torch.arange(place.records, device=errors.device).repeat_interleave(errors.shape[1])
                found[1] = each.by_person(Owners(owners, place.records))
        return found

    return contributions


@_names("Embedding")
def _looked_up(node: Any, output: int, wanted: Collection[int], place: Place) -> Ready:
    indices, padding = saved(node, "indices"), node._saved_padding_idx
    shape = torch.Size(_shape(node, 0))
    owners = place.by_row.to(indices.device)
    view = [1] * indices.dim()
    view[place.dim] = -1
    owners = owners.view(view).expand(indices.shape).flatten()

    def contributions(errors: torch.Tensor) -> Given:
        values = widened(errors, errors.dtype).reshape(len(owners), -1)
        return {0: _rows(values, owners, indices.flatten(), padding, place.records, shape)}

    return contributions


def _index(node: Any) -> torch.Tensor | None:
    """What picks rows of a matrix, if nothing else is picked."""
    if len(_shape(node, 0)) != 2:
        return None
    if type(node).__name__.startswith("IndexSelect"):
        return None if node._saved_dim else saved(node, "index")
    given = node._saved_indices
    simple = given[0] is not None and given[0].dtype == torch.long and all(other is None for other in given[1:])
    return given[0] if simple else None


@_names("Index IndexSelect")
def _picked(node: Any, output: int, wanted: Collection[int], place: Place) -> Ready:
    """A table whose rows are looked up by an index, as an embedding's are."""
    index, shape = _index(node), torch.Size(_shape(node, 0))
    assert index is not None
    if place.dim >= index.dim():
        return _one_by_one(node, output, wanted, place)
    view = [1] * index.dim()
    view[place.dim] = -1
    owners = place.by_row.to(index.device).view(view).expand(index.shape).flatten()

    def contributions(errors: torch.Tensor) -> Given:
        values = widened(errors, errors.dtype).reshape(len(owners), -1)
        return {0: _rows(values, owners, index.flatten() % shape[0], -1, place.records, shape)}

    return contributions


def _rows(
    values: torch.Tensor,
    owners: torch.Tensor,
    rows: torch.Tensor,
    padding: int,
    records: int,
    shape: torch.Size,
    vectors: torch.Tensor | None = None,
) -> Contribution:
    """Few rows a record: `values`, or these shares of the record's own vector."""
    rows, there = rows.long(), owners >= 0
    if 0 <= padding < 2**63:
        there = there & (rows != padding)
    if not bool(there.all()):
        values, owners, rows = values[there], owners[there], rows[there]
    if vectors is not None:
        return ScaledRows(vectors, values, owners, rows, shape)
    return SparseRows(values, owners, rows, records, shape)


@_names("EmbeddingBag")
def _bagged(node: Any, output: int, wanted: Collection[int], place: Place) -> Ready:
    """Sums, means or maxima of rows: a record has its bags' errors in the rows that went into them."""
    indices, bags, sizes, largest = (
        saved(node, "indices"),
        saved(node, "result1"),
        saved(node, "result2"),
        saved(node, "result3"),
    )
    mode, padding, weights = node._saved_mode, node._saved_padding_idx, saved(node, "per_sample_weights")
    shape = torch.Size(_shape(node, 0))
    if not bags.numel():
        offsets = saved(node, "offsets")
        counts = torch.diff(offsets, append=offsets.new_tensor([len(indices)]))
        bags = torch.arange(len(offsets), device=indices.device).repeat_interleave(counts)
    owners = place.by_row.to(indices.device)

    def contributions(errors: torch.Tensor) -> Given:
        errors = widened(errors, errors.dtype)
        own, rows = bags.long(), indices.long()
        if mode == 2:
            own, rows = torch.unique(torch.stack([own, rows]), dim=1)
        if mode == 1:  # on a GPU there may be a size more than there are bags
            errors = errors / sizes[: len(errors)].clamp_min(1).unsqueeze(1)
        if mode != 2 and place.simple:
            shares = errors.new_ones(len(own)) if weights is None or not weights.numel() else weights.to(errors.dtype)
            return {0: _rows(shares, owners[own], rows, padding, place.records, shape, errors)}
        values = errors[own]
        if mode == 2:
            values = values * (largest[own] == rows.unsqueeze(1))
        if weights is not None and weights.numel():
            values = values * weights.unsqueeze(1)
        return {0: _rows(values, owners[own], rows, padding, place.records, shape)}

    return contributions


@_names("NativeLayerNorm")
def _layer_norm(node: Any, output: int, wanted: Collection[int], place: Place) -> Ready:
    given, mean, scale = saved(node, "input"), saved(node, "result1"), saved(node, "result2")
    shapes = {number: _shape(node, number) for number in wanted}
    return lambda errors: {
        number: summed(errors * ((given - mean) * scale) if number == 1 else errors, place, shape)
        for number, shape in shapes.items()
    }


@_names("NativeGroupNorm NativeBatchNorm CudnnBatchNorm")
def _channel_norm(node: Any, output: int, wanted: Collection[int], place: Place) -> Ready:
    """One scale and shift a channel."""
    given = saved(node, "input")
    wide = [given.shape[1]] + [1] * (given.dim() - 2)
    in_groups = type(node).__name__.startswith("NativeGroup")
    if in_groups:
        mean, scale = (part.reshape(len(given), -1, 1) for part in (saved(node, "result1"), saved(node, "result2")))
        grouped = given.reshape(len(given), mean.shape[1], -1) if given.numel() else given
        normalised = lambda: ((grouped - mean) * scale).view(given.shape)  # noqa: E731
    else:
        mean, variance, eps = (
            saved(node, "running_mean"),
            saved(node, "running_var"),
            getattr(node, "_saved_eps", 0.0),
        )
        normalised = lambda: (given - mean.view(wide)) * (variance.view(wide) + eps).rsqrt()  # noqa: E731

    def contributions(errors: torch.Tensor) -> Given:
        if in_groups and place.simple and kernels.suit(errors, given, mean, scale):
            sums, products = kernels.sum_channels(errors, given)
            # sum_p e_p (x_p - m) s, in float64, where nothing is lost by the difference.
            centred = products.view(*mean.shape[:2], -1) - mean * sums.view(*mean.shape[:2], -1)
            by_number = {1: (centred * scale).view_as(sums), 2: sums}
            return {number: Explicit(by_number[number].to(errors.dtype)) for number in wanted}
        return {
            number: Explicit(
                summed(errors * normalised() if number == 1 else errors, place, wide).explicit().flatten(1)
            )
            for number in wanted
        }

    return contributions


def _one_by_one(node: Any, output: int, wanted: Collection[int], place: Place) -> Ready:
    """Any other operation: run backwards once a record (for an operation that spreads its inputs, once for all)."""
    shapes = {number: _shape(node, number) for number in wanted}
    whole = list(shape_of(node, output))

    def contributions(errors: torch.Tensor) -> Given:
        found = local_gradients(node, output, errors)
        spread = {number: part for number, part in enumerate(found) if number in wanted and part is not None}
        if all(list(part.shape) == whole != list(shapes[number]) for number, part in spread.items()):
            return {number: summed(part, place, shapes[number]) for number, part in spread.items()}
        pieces: dict[int, list[torch.Tensor]] = {number: [] for number in spread}
        for some in torch.arange(place.records).split(in_pieces(errors.numel() * errors.element_size())):
            for part in place.masked(errors, some):
                alone = local_gradients(node, output, part)
                for number, rows in pieces.items():
                    rows.append(_to_shape(alone[number], shapes[number]))
        return {number: Explicit(torch.stack(rows)) for number, rows in pieces.items()}

    return contributions


def _to_shape(gradient: torch.Tensor | None, shape: Shape) -> torch.Tensor:
    assert gradient is not None
    return gradient.sum_to_size(list(shape)) if list(gradient.shape) != list(shape) else gradient
