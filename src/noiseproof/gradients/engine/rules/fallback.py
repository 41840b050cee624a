"""Any other layer: `torch.func.vmap` over the records, every record with a copy of the parameters of its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from noiseproof.errors import UnsupportedError
from noiseproof.gradients.engine.capture import Capture, upstream_of
from noiseproof.gradients.engine.contribution import Contribution, Explicit


def run_by_record(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], path: str
) -> tuple[Any, Capture | None]:
    """The module's output, computed record by record in one vmapped pass, and what it captured.

    Tensors whose first dimension is that of the first tensor are taken to have one row a record; all others are
    shared by the records. Each record is seen by the module as a batch of one, so nothing inside can mix records.
    """
    leaves, layout = pytree.tree_flatten((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if not tensors or tensors[0].dim() == 0:
        raise UnsupportedError(
            f"the layer {path or 'network'} ({type(module).__name__}) takes no tensor with a record dimension."
        )
    records = tensors[0].shape[0]
    owned = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    copies = {
        name: parameter.detach().expand(records, *parameter.shape).requires_grad_() for name, parameter in owned.items()
    }
    by_record = [isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == records for leaf in leaves]
    rows = [leaf for leaf, batched in zip(leaves, by_record, strict=True) if batched]

    def one(parameters: dict[str, torch.Tensor], row: list[torch.Tensor]) -> Any:
        remaining = iter(row)
        filled = [
            next(remaining).unsqueeze(0) if batched else leaf for leaf, batched in zip(leaves, by_record, strict=True)
        ]
        inner_args, inner_kwargs = pytree.tree_unflatten(filled, layout)
        output = torch.func.functional_call(module, parameters, inner_args, inner_kwargs)
        return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.squeeze(0), output)

    if records == 0:
        return None, None
    output = torch.func.vmap(one, randomness="different")(copies, rows)
    produced = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if not produced:
        return output, None

    def settle(errors: list[torch.Tensor]) -> Iterable[tuple[nn.Parameter, Contribution]]:
        return [(owned[name], Explicit(error)) for name, error in zip(copies, errors, strict=True)]

    return output, Capture(upstream_of(tensors), tuple(copies.values()), 0, settle)
