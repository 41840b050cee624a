"""From a tensor made of parameters alone, which all records share, to the parameters it was made of."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, Node

from noiseproof.engine.contributions import Blocks, Contribution, Explicit, in_pieces
from noiseproof.engine.following import shape_of
from noiseproof.engine.products import SparseRows

Shared = tuple[Node, int, Contribution]
"""A node, which of its outputs, and every record's gradient in it."""


def to_parameters(found: Sequence[Shared], own: Callable[[Any], int | None]) -> list[tuple[int, Contribution]]:
    """Every record's gradients in parameters, from those in tensors made of them.

    Args:
        found: Gradients in tensors that all records share.
        own: The place of a parameter among those that are trained, or None.

    Returns:
        Places of parameters and contributions; a parameter may come several times.
    """
    given: list[tuple[int, Contribution]] = []
    rest: list[Shared] = []
    stack = list(found)
    while stack:
        node, output, part = stack.pop()
        name = type(node).__name__
        behind = node.next_functions
        if name == "AccumulateGrad":
            index = own(node.variable)  # type: ignore[attr-defined]
            if index is not None:
                given.append((index, part))
        elif name in ("AliasBackward0", "CloneBackward0", "ToCopyBackward0"):
            before, number = _only(behind)
            if before._input_metadata[number].dtype == torch.float64 != node._input_metadata[output].dtype:
                part = Explicit(part.explicit().double())
            stack.append((before, number, part))
        elif name in ("TBackward0", "TransposeBackward0") and len(shape_of(node)) == 2:
            stack.append((*_only(behind), part.transposed()))
        elif name in ("SplitBackward0", "SplitWithSizesBackward0", "SliceBackward0") and (rows := _rows(node, output)):
            stack.append((*_only(behind), Blocks([(rows, part)], torch.Size(shape_of(*_only(behind))))))
        elif name == "EmbeddingBackward0":
            stack.append((*_only(behind), _looked_up(node, part)))
        else:
            rest.append((node, output, part))
    return given + (_by_autograd(rest, own) if rest else [])


def _only(behind: Any) -> tuple[Node, int]:
    node, output = behind[0]
    return node, output


def _rows(node: Any, output: int) -> slice | None:
    """Which rows of the first dimension a part is, if it is some of them in a row."""
    if node._saved_dim not in (0, -len(shape_of(*_only(node.next_functions))) % 2**64):
        return None
    sizes = shape_of(node, output)[0]
    if hasattr(node, "_saved_start"):
        start = node._saved_start or 0
        return slice(start, start + sizes) if node._saved_step == 1 and start >= 0 else None
    each = getattr(node, "_saved_split_sizes", None)
    start = sum(each[:output]) if each is not None else output * node._saved_split_size
    return slice(start, start + sizes)


def _looked_up(node: Any, part: Contribution) -> Contribution:
    """Rows that are the same for all records (positions), without writing the table out."""
    indices, padding = node._saved_indices.flatten().long(), node._saved_padding_idx
    values = part.explicit().flatten(1, -2) if part.explicit().dim() > 2 else part.explicit().unsqueeze(1)
    records = len(values)
    if 0 <= padding < 2**63:
        values, indices = values[:, indices != padding], indices[indices != padding]
    owners = torch.arange(records, device=indices.device).repeat_interleave(len(indices))
    shape = torch.Size(shape_of(*_only(node.next_functions)))
    return SparseRows(values.flatten(0, 1), owners, indices.repeat(records), records, shape)


def _by_autograd(rest: Sequence[Shared], own: Callable[[Any], int | None]) -> list[tuple[int, Contribution]]:
    """By a backward pass over what was made of parameters alone, with all records' gradients at once."""
    leaves = {id(leaf): leaf for node, _, _ in rest for leaf in leaves_behind(node)[0] if own(leaf) is not None}
    parameters = list(leaves.values())
    records = rest[0][2].size[0]
    edges = [GradientEdge(node, output) for node, output, _ in rest]
    step = in_pieces(max([part.size[1] for _, _, part in rest] + [4 * leaf.numel() for leaf in parameters]))
    pieces: list[Sequence[torch.Tensor | None]] = []
    for some in torch.arange(records).split(step):
        rows = [part.only(some).explicit().to(node._input_metadata[output].dtype) for node, output, part in rest]
        pieces.append(batched(edges, parameters, rows))
    found: list[tuple[int, Contribution]] = []
    for leaf, *parts in zip(parameters, *pieces, strict=True):
        if parts[0] is not None:
            index = own(leaf)
            assert index is not None
            found.append((index, Explicit(torch.cat(parts))))
    return found


def batched(edges: Sequence[Any], inputs: Sequence[Any], rows: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
    """Gradients of `inputs` for many errors in `edges` at once; one after another where torch cannot do it at once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        try:
            return torch.autograd.grad(edges, inputs, rows, is_grads_batched=True, retain_graph=True, allow_unused=True)
        except RuntimeError:
            each = [
                torch.autograd.grad(edges, inputs, [row[record] for row in rows], retain_graph=True, allow_unused=True)
                for record in range(len(rows[0]))
            ]
    return [None if parts[0] is None else torch.stack(parts) for parts in zip(*each, strict=True)]


def leaves_behind(node: Node, stops: Collection[Node] = ()) -> tuple[list[Any], list[Any]]:
    """The tensors that a node's output was made from, by every way through the graph that does not lead over `stops`.

    Returns:
        The tensors, and those of the stops that were met.
    """
    leaves: list[Any] = []
    met: list[Any] = []
    seen, stack = {node}, [node]
    while stack:
        here = stack.pop()
        if type(here).__name__ == "AccumulateGrad":
            leaves.append(here.variable)  # type: ignore[attr-defined]
        for behind, _ in here.next_functions:
            if behind is not None and behind not in seen:
                seen.add(behind)
                (met if behind in stops else stack).append(behind)
    return leaves, met
