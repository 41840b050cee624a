"""Any other layer: `torch.func.vmap` over the records, every record with a copy of the parameters of its own."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
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

    Tensors whose first dimension is that of the first tensor are taken to have one row a record; all others are
    shared by the records. Each record is seen by the module as a batch of one, so nothing inside can mix records.
    """

    def attach(self) -> Iterable[RemovableHandle]:
        """Hang the hooks on the layer."""
        return [self._after_forward("capture")]

    def capture(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """The output in place of the layer's own: the same, but knowing every record's share of each parameter."""
        if not self.tape.recording:
            return None
        leaves, layout = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if not tensors or tensors[0].dim() == 0:
            raise UnsupportedError(f"the layer {self._name} takes no tensor with a record dimension.")
        records = tensors[0].shape[0]
        owned = {name: parameter for name, parameter in self.module.named_parameters() if parameter.requires_grad}
        if records == 0 or not owned:
            return None
        copies = {
            name: parameter.detach().expand(records, *parameter.shape).requires_grad_()
            for name, parameter in owned.items()
        }
        by_record = [isinstance(leaf, torch.Tensor) and leaf.dim() > 0 and leaf.shape[0] == records for leaf in leaves]

        def one(parameters: dict[str, torch.Tensor], row: list[torch.Tensor]) -> Any:
            remaining = iter(row)
            filled = [
                next(remaining).unsqueeze(0) if batched else leaf
                for leaf, batched in zip(leaves, by_record, strict=True)
            ]
            inner_args, inner_kwargs = pytree.tree_unflatten(filled, layout)
            produced = torch.func.functional_call(self.module, parameters, inner_args, inner_kwargs)
            return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.squeeze(0), produced)

        rows = [leaf for leaf, batched in zip(leaves, by_record, strict=True) if batched]
        try:
            with self.tape.paused(), Replacing(UNROLLED), warnings.catch_warnings():
                # Torch warns of operations that it must loop over; that this rule is slow is said in its docstring.
                warnings.filterwarnings("ignore", message="There is a performance drop")
                replaced = torch.func.vmap(one, randomness="different")(copies, rows)
        except RuntimeError as error:
            raise UnsupportedError(
                f"the layer {self._name} has no rule for per-record gradients and cannot be run by torch.func.vmap "
                "either; replace it, or freeze its parameters."
            ) from error

        def settle(*errors: torch.Tensor | None) -> Contributions:
            found = zip(copies, errors, strict=True)
            return [(owned[name], Explicit(error)) for name, error in found if error is not None]

        outputs = [leaf for leaf in pytree.tree_leaves(replaced) if isinstance(leaf, torch.Tensor)]
        self.tape.attach(outputs, self._name, settle, inputs=tensors, targets=tuple(copies.values()))
        return replaced

    @property
    def _name(self) -> str:
        return f"{self.path or 'network'} ({type(self.module).__name__})"
