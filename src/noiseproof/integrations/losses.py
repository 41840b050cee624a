"""What a loop's scalar loss is made of: records' own losses, found inside a network or checked on half of a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from noiseproof.errors import UnsupportedError

_LOSSES: tuple[Callable[..., torch.Tensor], ...] = (
    functional.cross_entropy,
    functional.nll_loss,
    functional.mse_loss,
    functional.l1_loss,
    functional.smooth_l1_loss,
    functional.huber_loss,
    functional.binary_cross_entropy,
    functional.binary_cross_entropy_with_logits,
)


class RecordLosses(TorchFunctionMode):
    """While a network runs: a loss that it takes over its batch becomes the mean of its records' own losses.

    A mean over all tokens of a batch depends, for each record, on how many tokens the others have, so that clipping would
    bound nothing; a record's own loss is the mean over its own tokens, those with the label to be ignored left out.
    `found` is called with the losses, (records,), and gives the scalar that the network goes on with.
    """

    def __init__(self, found: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self._found, self._records = found, 0

    def enter(self, records: int) -> None:
        """Watch a forward pass over so many records."""
        if not self._records:
            self._records = records
            self.__enter__()

    def leave(self) -> None:
        """Watch no longer."""
        if self._records:
            self._records = 0
            self.__exit__(None, None, None)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _LOSSES:
            return func(*args, **kwargs)
        given = inspect.signature(func).bind(*args, **kwargs)
        given.apply_defaults()
        options = given.arguments
        if options.get("reduction") not in ("mean", "sum") or not differentiable(options["input"]):
            return func(*args, **kwargs)
        options["reduction"], options["size_average"], options["reduce"] = "none", None, None
        names = inspect.signature(func).parameters
        each = func(**{name: value for name, value in options.items() if name in names})
        if not each.dim() or len(each) % self._records:
            raise UnsupportedError(
                f"the network takes a loss of shape {tuple(each.shape)} over {self._records} records, which does not come "
                "apart into theirs; give it no labels and compute the loss in your loop."
            )
        each = each.reshape(self._records, -1)
        target = options["target"]
        if "ignore_index" in options and not target.is_floating_point():
            counted = (target != options["ignore_index"]).reshape(self._records, -1).sum(1).clamp_min(1)
        else:
            counted = each.new_full((self._records,), each.shape[1])
        return self._found(each.sum(1) / counted)


class HalfBatch(TorchFunctionMode):
    """Computes a loop's loss for the first half of the records too, beside the loss of all.

    The loss is the mean of its records' own losses only if each record's gradient is then as many times larger as there are
    fewer records. So are found: sums taken for means, and means that divide by what the other records brought (class
    weights, labels to be ignored). Where an operation cannot be done for half of the records, nothing can be said.
    """

    def __init__(self, records: int, outputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._records, self._half = records, max(1, records // 2)
        self._outputs = list(outputs)
        self._halves = [output.detach()[: self._half].requires_grad_() for output in outputs]
        self._twins = WeakTensorKeyDictionary()
        for output, half in zip(outputs, self._halves, strict=True):
            self._twins[output] = half
        self._failed = False
        self._gradients: Sequence[torch.Tensor | None] | None = None
        self.done = False
        """Whether it has checked what it could, and follows nothing any more."""

    def enter(self) -> None:
        """Follow operations from now on."""
        self.__enter__()

    def leave(self) -> None:
        """Stop following operations."""
        self.done = True
        if _get_current_function_mode() is self:
            self.__exit__(None, None, None)

    def check(self) -> bool:
        """Whether something could be said; refuses a loss that is no mean over records."""
        self.done = True
        for output, half in zip(self._outputs, self._gradients or (), strict=False):
            if output.grad is None or half is None:
                continue
            own, other = output.grad[: self._half] * self._records, half * self._half
            precision = 1e3 * torch.finfo(own.dtype).eps
            # A record that is not finite is left out of a step, and must not end the training either.
            floor = precision * float(own.nan_to_num(0.0, 0.0, 0.0).abs().max())
            if not torch.allclose(own, other, rtol=precision, atol=floor, equal_nan=True):
                raise UnsupportedError(
                    "the loop's loss is not the mean of its records' own losses: it divides by something that other records "
                    "bring (class weights, ignored labels, their number), or it is a sum. Call `engine.backward(losses)` with "
                    "one loss a record (reduction='none'), or say loss_reduction='sum'."
                )
        return self._gradients is not None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        followed = any(isinstance(leaf, torch.Tensor) and leaf in self._twins for leaf in leaves)
        if self.done or self._failed or not followed:
            return func(*args, **kwargs)
        try:
            twin_args, twin_kwargs = tree_map(self._halved, (args, kwargs))
            if func is torch.Tensor.backward:
                self._gradients = torch.autograd.grad(twin_args[0], self._halves, allow_unused=True)
                twin = None
            else:
                twin = func(*twin_args, **twin_kwargs)
        except RuntimeError:  # torch's errors; whatever it is, it is the half's own trouble
            self._failed = True
            return func(*args, **kwargs)
        output = func(*args, **kwargs)
        for result, other in zip(tree_leaves(output), tree_leaves(twin), strict=False):
            if isinstance(result, torch.Tensor) and isinstance(other, torch.Tensor) and result.requires_grad:
                self._twins[result] = other
        return output

    def _halved(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if leaf in self._twins:
            return self._twins[leaf]
        # Labels, weights of records: what counts records, or folds more dimensions into them.
        rows = leaf.shape[0] if leaf.dim() else 0
        return leaf[: rows // self._records * self._half] if rows and rows % self._records == 0 else leaf


def differentiable(leaf: Any) -> bool:
    """Whether it is a tensor through which gradients flow."""
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad
