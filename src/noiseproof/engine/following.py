"""Through which operations records can be followed, by the names that torch gives the nodes of its graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import Node

from noiseproof.engine.places import NOBODY, Mixed, Place, Shape, Unknown
from noiseproof.engine.trials import Found, tried

Follow = Callable[[Any, Place, Shape, Sequence[Shape]], Found]
"""From a node, the place in its output, and the shapes of output and inputs."""

_OPERATIONS: dict[str, Follow] = {}
_BY_VALUES: dict[str, int] = {}


def _names(names: str, *, by_values: int | None = None) -> Callable[[Follow], Follow]:
    """The operations that a function is for; `by_values` is the first input for which it looks into a tensor."""

    def registered(follow: Follow) -> Follow:
        every = [f"{name}Backward{number}" for name in names.split() for number in range(6)]
        _OPERATIONS.update(dict.fromkeys(every, follow))
        if by_values is not None:
            _BY_VALUES.update(dict.fromkeys(every, by_values))
        return follow

    return registered


def by_shapes(node: Node) -> bool:
    """Whether where records lie follows from the shapes and settings of an operation, and not from values in a tensor."""
    name = type(node).__name__
    first = _BY_VALUES.get(name)
    return name in _OPERATIONS and (first is None or all(other is None for other, _ in node.next_functions[first:]))


def shape_of(node: Node, output: int = 0) -> Shape:
    """The shape of what a node made."""
    return list(node._input_metadata[output].shape)


def saved(node: Any, name: str) -> Any:
    """A tensor that an operation has kept for its backward pass; read once, since a checkpoint gives it only once."""
    known = node.metadata.setdefault("noiseproof", {})
    if name not in known:
        tensor = getattr(node, f"_saved_{name}")
        known[name] = None if tensor is None else tensor.detach()
    return known[name]


def inputs_of(node: Any, output: int, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    """Where the records lie in what went into an operation.

    Args:
        node: The operation's node in the graph.
        output: Which of its outputs.
        place: Where the records lie in that output.
        shape: That output's shape.
        shapes: The shapes of the inputs, () for one without a gradient.

    Returns:
        For every input the place of its records, or None if the records share it.

    Raises:
        Mixed: If the operation brings records together.
        Unknown: If it cannot be told.
    """
    if not place.fits(shape):
        raise Unknown
    follow = _OPERATIONS.get(type(node).__name__)
    if follow is None:
        return tried(node, output, place, shape, shapes)
    found = follow(node, place, shape, shapes)
    for own, size, (behind, _) in zip(found, shapes, node.next_functions, strict=True):
        if behind is not None and own is not None and not own.fits(size):
            raise Unknown
    return found


def _dims(node: Any, name: str, count: int) -> tuple[int, ...]:
    """A saved dimension or several of a tensor with `count` of them; negative ones are saved as unsigned."""
    given = getattr(node, f"_saved_{name}")
    dims = given if isinstance(given, tuple | list) else (given,)
    return tuple((dim - 2**64 if dim >= 2**63 else dim) % max(1, count) for dim in dims)


def _broadcast(place: Place, shape: Shape, size: Shape) -> Place | None:
    dim = place.dim - (len(shape) - len(size))
    if dim < 0 or (size[dim] == 1 and shape[place.dim] != 1):
        return None
    return place.at(dim)


@_names(
    "Add Sub Rsub Mul Div Pow Where Neg Exp Exp2 Expm1 Log Log1P Log2 Sqrt Rsqrt Reciprocal Abs Sgn Sin Cos "
    "Tan Tanh Atan Sinh Cosh Asin Acos Erf Erfc Erfinv Sigmoid LogSigmoid Relu Relu6 LeakyRelu Elu Celu Selu "
    "Gelu Silu Mish Softplus Hardtanh Hardswish Hardsigmoid Threshold Softshrink Hardshrink Clamp ClampMin "
    "ClampMax Maximum Minimum Fmax Fmin Lerp Addcmul Addcdiv Atan2 MaskedFill NativeDropout FusedDropout Clone "
    "ToCopy Contiguous Copy Alias Expand Round Floor Ceil Trunc Frac Fmod Remainder NanToNum Xlogy Xlog1Py "
    "Sinc Digamma Lgamma Logit RreluWithNoise PreluKernel Square MseLoss SmoothL1Loss HuberLoss L1Loss "
    "BinaryCrossEntropy BinaryCrossEntropyWithLogits SoftMarginLoss KlDiv Tril Triu LiftFresh Detach "
    "SigmoidGelu Positive Real Polar"
)
def _pointwise(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    if getattr(node, "_saved_reduction", 0) != 0:
        raise Mixed
    if type(node).__name__.startswith("Tri") and place.dim >= len(shape) - 2:
        raise Unknown
    return [_broadcast(place, shape, size) for size in shapes]


@_names(
    "Softmax LogSoftmax SafeSoftmax Cumsum Cumprod Logcumsumexp Cummax Cummin Sort Topk Gather Flip Roll Glu Renorm"
)
def _along(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    """What happens along one dimension leaves the others alone."""
    if place.dim in _dims(node, "dims" if hasattr(node, "_saved_dims") else "dim", len(shape)):
        raise Mixed
    return [place] * len(shapes)


@_names(
    "Sum Mean Max Min Amax Amin Median Nanmedian Nansum Logsumexp LinalgVectorNorm Norm Var Std VarMean "
    "StdMean Prod Mode Kthvalue Aminmax"
)
def _reduced(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    count = len(shapes[0])
    dims = _dims(node, "dim", count) if getattr(node, "_saved_dim", None) is not None else ()
    gone = set(dims or range(count))
    if node._saved_keepdim:
        if place.dim in gone:
            raise Mixed
        return [place]
    kept = [dim for dim in range(count) if dim not in gone]
    return [place.at(kept[place.dim])]


@_names("View UnsafeView ReshapeAlias Reshape Unsqueeze Squeeze Flatten Unflatten ViewAsReal ViewAsComplex")
def _view(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    if type(node).__name__.startswith("ViewAs"):
        return [place]
    return [place.reshaped(shapes[0], shape)]


@_names("T Transpose Swapaxes Numpy_T MT Adjoint")
def _transposed(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    first, second = (
        _dims(node, name, len(shape))[0] if hasattr(node, "_saved_dim0") else dim
        for name, dim in (("dim0", 0), ("dim1", len(shape) - 1))
    )
    return [place.at({first: second, second: first}.get(place.dim, place.dim))]


@_names("Permute")
def _permuted(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    return [place.at(_dims(node, "dims", len(shape))[place.dim])]


@_names("Select Unbind")
def _selected(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    gone = _dims(node, "dim", len(shapes[0]))[0]
    return [place.at(place.dim + (place.dim >= gone))]


@_names("Stack")
def _stacked(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    new = _dims(node, "dim", len(shape))[0]
    if new == place.dim:
        raise Unknown
    return [place.at(place.dim - (place.dim > new))] * len(shapes)


@_names("Cat")
def _joined(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    dim = _dims(node, "dim", len(shape))[0]
    if dim != place.dim:
        return [place] * len(shapes)
    sizes = [size[dim] if size else -1 for size in shapes]
    if sizes.count(-1) > 1:
        raise Unknown
    sizes = [shape[dim] - sum(other for other in sizes if other >= 0) if size < 0 else size for size in sizes]
    return [place.owned(part).settled() for part in place.by_row.split(sizes)]


@_names("Slice")
def _sliced(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    if _dims(node, "dim", len(shape))[0] != place.dim:
        return [place]
    size = shapes[0][place.dim]
    rows = torch.arange(size)[
        node._saved_start or 0 : size if node._saved_end is None else node._saved_end : node._saved_step
    ]
    return [place.picked_from(rows, size, place.dim)]


@_names("Split SplitWithSizes UnsafeSplit UnsafeSplitWithSizes Chunk")
def _elsewhere(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    """What happens in other dimensions."""
    if hasattr(node, "_saved_dim") and place.dim == _dims(node, "dim", len(shape))[0]:
        raise Unknown
    return [place]


@_names(
    "ConstantPadNd ReflectionPad1D ReflectionPad2D ReflectionPad3D ReplicationPad1D ReplicationPad2D ReplicationPad3D"
)
def _padded(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    sides = node._saved_pad if hasattr(node, "_saved_pad") else node._saved_padding
    if place.dim >= len(shape) - len(sides) // 2:
        raise Unknown
    return [place]


@_names("Unfold")
def _unfolded(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    if place.dim in (len(shape) - 1, _dims(node, "dimension", len(shapes[0]))[0]):
        raise Unknown
    return [place]


@_names("Diagonal")
def _diagonal(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    count = len(shapes[0])
    moved = {*_dims(node, "dim1", count), *_dims(node, "dim2", count)}
    kept = [dim for dim in range(count) if dim not in moved]
    if place.dim >= len(kept):
        raise Unknown
    return [place.at(kept[place.dim])]


@_names("IndexSelect", by_values=0)
def _index_selected(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    dim = _dims(node, "dim", len(shape))[0]
    return [place if dim != place.dim else place.picked_from(saved(node, "index"), shapes[0][dim], dim)]


@_names("Index", by_values=0)
def _indexed(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    indices = node._saved_indices
    used = [dim for dim, index in enumerate(indices) if index is not None]
    if len(used) != 1:
        count = len(used)
        if used and used == list(range(used[0], used[0] + count)) and place.dim < used[0]:
            return [place, *[None] * (len(shapes) - 1)]
        raise Unknown
    dim, index = used[0], indices[used[0]]
    if index.dtype in (torch.bool, torch.uint8):
        if index.dim() > 1:
            raise Unknown
        index = index.nonzero().squeeze(1)
    rest: list[Place | None] = [None] * (len(shapes) - 1)
    if place.dim < dim:
        return [place, *rest]
    if place.dim >= dim + index.dim():
        return [place.at(place.dim - index.dim() + 1), *rest]
    if index.dim() != 1:
        flat = place.reshaped([*shape[:dim], index.numel(), *shape[dim + index.dim() :]], shape)
        return [flat.picked_from(index.flatten(), shapes[0][dim], dim), *rest]
    return [place.picked_from(index, shapes[0][dim], dim), *rest]


@_names("IndexAdd IndexCopy", by_values=0)
def _added_at(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    dim = _dims(node, "dim", len(shape))[0]
    if dim != place.dim:
        return [place] * len(shapes)
    source = place.owned(place.by_row[saved(node, "index").cpu()]).settled()
    return [place, *[None] * (len(shapes) - 2), source] if len(shapes) > 2 else [place, source]


@_names("Mm Addmm Addbmm")
def _product(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    left, right = (place, None) if place.dim == 0 else (None, place)
    return [*[_broadcast(place, shape, size) for size in shapes[:-2]], left, right]


@_names("GroupedMm")
def _grouped_product(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    if place.dim or len(shapes[1]) != 3:
        raise Unknown
    return [place, *[None] * (len(shapes) - 1)]


@_names("Mv Addmv")
def _vector_product(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    return [*[_broadcast(place, shape, size) for size in shapes[:-2]], place, None]


@_names("Bmm Baddbmm")
def _batched_product(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    left = None if place.dim == 2 else place
    right = None if place.dim == 1 else place
    return [*[_broadcast(place, shape, size) for size in shapes[:-2]], left, right]


@_names(
    "Convolution ConvolutionOverrideable CudnnConvolution MiopenConvolution MkldnnConvolution SlowConv2D Thnn_Conv2D"
)
def _convolved(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    if place.dim:
        raise Unknown
    return [place, *[None] * (len(shapes) - 1)]


@_names("Embedding")
def _looked_up(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    if place.dim == len(shape) - 1:
        raise Unknown
    return [None]


@_names("EmbeddingBag", by_values=1)
def _bagged(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    if place.dim:
        raise Unknown
    weights = place
    if any(other is not None for other, _ in node.next_functions[1:]):
        bags = saved(node, "result1")
        weights = place.owned(place.by_row[bags.cpu()]) if bags.numel() else place
    return [None, *[weights] * (len(shapes) - 1)]


@_names("NativeLayerNorm FusedRmsNorm")
def _normalised(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    if place.dim >= len(shape) - len(node._saved_normalized_shape):
        raise Mixed
    return [place, *[None] * (len(shapes) - 1)]


@_names("NativeGroupNorm")
def _group_normalised(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    if place.dim:
        raise Mixed
    return [place, *[None] * (len(shapes) - 1)]


@_names("NativeBatchNorm CudnnBatchNorm MiopenBatchNorm")
def _batch_normalised(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    if place.dim == 1:  # every channel by itself, as instance norm has it: the records' channels lie side by side
        return [place, *[place.at(0)] * (len(shapes) - 1)]
    if getattr(node, "_saved_training", True) or place.dim:
        raise Mixed
    return [place, *[None] * (len(shapes) - 1)]


@_names("Repeat")
def _repeated(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    dim = place.dim - (len(shape) - len(shapes[0]))
    size = shapes[0][dim] if dim >= 0 else 1
    if size == shape[place.dim]:
        return [place.at(dim)]
    if place.owners is None and place.inner % size == 0:
        return [None]
    raise Unknown


@_names("NllLoss NllLoss2D MultiMarginLoss MultilabelMarginLoss")
def _losses(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    if getattr(node, "_saved_reduction", 0) != 0:
        raise Mixed
    return [place] * len(shapes)


@_names(
    "MaxPool2DWithIndices MaxPool3DWithIndices AvgPool2D AvgPool3D AdaptiveAvgPool2D AdaptiveAvgPool3D "
    "AdaptiveMaxPool2D AdaptiveMaxPool3D MkldnnMaxPool2D UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D "
    "UpsampleLinear1D UpsampleBilinear2D UpsampleBicubic2D PixelShuffle PixelUnshuffle Im2Col Col2Im "
    "FractionalMaxPool2D GridSampler2D GridSampler3D"
)
def _over_places(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    if place.dim >= len(shapes[0]) - (1 if type(node).__name__.startswith("Im2Col") else 2) and place.dim != 0:
        raise Unknown
    return [place] * len(shapes)


@_names(
    "ScaledDotProductFlashAttentionForCpu ScaledDotProductFlashAttention ScaledDotProductEfficientAttention "
    "ScaledDotProductCudnnAttention ScaledDotProductFusedAttentionOverrideable"
)
def _attended(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    if place.dim > 1:
        raise Unknown
    found: list[Place | None] = [place, place, place]
    return [*found, *[_broadcast(place, shape, size) for size in shapes[3:]]]


@_names("PackPaddedSequence", by_values=0)
def _packed(node: Any, place: Place, shape: Shape, shapes: Sequence[Shape]) -> Found:
    """Rows of a padded sequence, one step after another, of the records that are still there."""
    sizes = saved(node, "result1")
    dim = 0 if node._saved_batch_first else 1
    owners = torch.full((shapes[0][dim],), NOBODY)
    for step in place.by_row.split(sizes.tolist()):
        owners[: len(step)] = torch.where(step >= 0, step, owners[: len(step)])
        if not torch.equal(owners[: len(step)], torch.where(step >= 0, step, owners[: len(step)])):
            raise Mixed
    return [place.owned(owners, dim).settled()]
