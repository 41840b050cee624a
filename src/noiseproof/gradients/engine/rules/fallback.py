"""Any other layer: `torch.func.vmap` over the records, every record with a copy of the parameters of its own."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils.hooks import RemovableHandle

from noiseproof.errors import UnsupportedError
from noiseproof.gradients.engine.contribution import Explicit
from noiseproof.gradients.engine.rules.intercept import Replacing
from noiseproof.gradients.engine.rules.rule import Rule
from noiseproof.gradients.engine.rules.unrolled import UNROLLED
from noiseproof.gradients.engine.tape import Contributions


class VmapRule(Rule):
    """Computes the layer's output record by record in one vmapped pass, with copies of its parameters (not of memory).

    Tensors with as many rows as the first has records are taken to have one row a record; all others are shared by
    the records. Each record is seen by the module as a batch of one, so nothing inside can mix records. It is slow,
    and writes every record's gradient out.
    """

    def attach(self) -> Iterable[RemovableHandle]:
        """Hang the hooks on the layer."""
        return [self._after_forward(self.capture)]

    def capture(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """The output in place of the layer's own: the same, but knowing every record's share of each parameter."""
        if not self.tape.recording:
            return None
        leaves, layout = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        dims = self._record_dims(leaves)
        records = next((leaf.shape[dim] for leaf, dim in zip(leaves, dims, strict=True) if dim is not None), None)
        if records is None:
            raise UnsupportedError(f"the layer {self._name} takes no tensor with a record dimension.")
        owned = {name: parameter for name, parameter in self.module.named_parameters() if parameter.requires_grad}
        if records == 0 or not owned:
            return None
        copies = {
            name: parameter.detach().expand(records, *parameter.shape).requires_grad_()
            for name, parameter in owned.items()
        }

        def one(parameters: dict[str, torch.Tensor], row: list[torch.Tensor]) -> Any:
            remaining = iter(row)
            filled = [
                leaf if dim is None else next(remaining).unsqueeze(dim) for leaf, dim in zip(leaves, dims, strict=True)
            ]
            inner_args, inner_kwargs = pytree.tree_unflatten(filled, layout)
            return torch.func.functional_call(self.module, parameters, inner_args, inner_kwargs)

        rows = [leaf for leaf, dim in zip(leaves, dims, strict=True) if dim is not None]
        in_dims = (0, [dim for dim in dims if dim is not None])
        try:
            with self.tape.paused(), Replacing(UNROLLED), warnings.catch_warnings():
                # Torch warns of operations that it must loop over; that this rule is slow is said in its docstring.
                warnings.filterwarnings("ignore", message="There is a performance drop")
                apart = torch.func.vmap(one, in_dims=in_dims, randomness="different")(copies, rows)
        except RuntimeError as error:
            raise UnsupportedError(
                f"the layer {self._name} has no rule for per-record gradients and cannot be run by torch.func.vmap "
                "either; replace it, or freeze its parameters."
            ) from error
        replaced = pytree.tree_map(self._joined, apart, output)

        def settle(*errors: torch.Tensor | None) -> Contributions:
            found = zip(copies, errors, strict=True)
            return [(owned[name], Explicit(error)) for name, error in found if error is not None]

        outputs = [leaf for leaf in pytree.tree_leaves(replaced) if isinstance(leaf, torch.Tensor)]
        self.tape.attach(outputs, self._name, settle, inputs=tensors, targets=tuple(copies.values()))
        return replaced

    @property
    def _name(self) -> str:
        return f"{self.path or 'network'} ({type(self.module).__name__})"

    def _record_dims(self, leaves: list[Any]) -> list[int | None]:
        """For every argument the dimension that counts records, or None if the records share it."""
        module = self.module
        tensors = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor) and leaf.dim() > 0]
        if not tensors:
            return [None] * len(leaves)
        first, usual = self.record_dim, self.record_dim
        if isinstance(module, nn.RNNBase):
            first, usual = 0 if module.batch_first else 1, 1
        elif isinstance(module, nn.MultiheadAttention):
            first = usual = 0 if module.batch_first else 1
        dims: list[int | None] = [None] * len(leaves)
        records = leaves[tensors[0]].shape[first]
        for place in tensors:
            shape, dim = leaves[place].shape, first if place == tensors[0] else usual
            dims[place] = dim if len(shape) > dim and shape[dim] == records else None
        return dims

    def _joined(self, apart: Any, together: Any) -> Any:
        """Per-record outputs, each a batch of one, put together as the layer's own output was."""
        if not isinstance(apart, torch.Tensor):
            return together
        records, alone = len(apart), list(apart.shape[1:])
        for dim, size in enumerate(alone):
            if size == 1 and list(together.shape) == [*alone[:dim], records, *alone[dim + 1 :]]:
                return apart.squeeze(dim + 1).movedim(0, dim)
        raise UnsupportedError(
            f"the layer {self._name} gave a tensor of shape {tuple(together.shape)} for {records} records, but "
            f"{tuple(alone)} for one alone; each must have its own place in every output."
        )
