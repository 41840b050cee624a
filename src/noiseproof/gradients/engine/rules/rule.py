"""Rule: how one layer is watched, so that its errors give every record's gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from noiseproof.gradients.engine.tape import Settle, Tape


class _Hook:
    """A hook that belongs to one module: in a copy of the module, or after pickling, it does nothing."""

    def __init__(self, module: nn.Module | None = None, act: Callable[..., Any] | None = None) -> None:
        self._module, self._act = module, act

    def __call__(self, module: nn.Module, *parts: Any) -> Any:
        return self._act(*parts) if self._act is not None and module is self._module else None

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return _Hook, ()


class Rule(ABC):
    """Watches one layer for one tape. `record_dim` is the dimension of the layer's input that counts records."""

    def __init__(self, module: nn.Module, path: str, tape: Tape, record_dim: int = 0) -> None:
        self.module, self.path, self.tape, self.record_dim = module, path, tape, record_dim

    @abstractmethod
    def attach(self) -> Iterable[RemovableHandle]:
        """Hang the hooks on the layer."""

    def _before_forward(self, act: Callable[..., Any]) -> RemovableHandle:
        return self.module.register_forward_pre_hook(_Hook(self.module, act), with_kwargs=True)

    def _after_forward(self, act: Callable[..., Any], *, always: bool = False) -> RemovableHandle:
        # First, because a hook of the user's may return something else than what the layer itself gave.
        hook = _Hook(self.module, act)
        return self.module.register_forward_hook(hook, with_kwargs=True, prepend=True, always_call=always)


class PairRule(Rule):
    """A layer of one input and one output, whose per-record gradients follow from that input and the output's error."""

    def attach(self) -> Iterable[RemovableHandle]:
        """Hang the hooks on the layer."""
        return [self._after_forward(self.capture)]

    def capture(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor) -> None:
        """Note the pair that this use of the layer makes."""
        if not (self.tape.recording and output.requires_grad):
            return
        given = args[0] if args else next(iter(kwargs.values()))
        activation = given.detach() if given.requires_grad else given
        self.tape.attach(
            (output,),
            self.path,
            self.settle(activation),
            inputs=(given,),
            keep=(activation,),
            record_dim=self.record_dim,
        )

    @abstractmethod
    def settle(self, activation: torch.Tensor) -> Settle:
        """The function from the output's error to the contributions of the layer's parameters."""


def matched(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """`tensor` in the parameter's dtype: mixed precision gives activations and errors another one."""
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def records_first(tensor: torch.Tensor, record_dim: int) -> torch.Tensor:
    """`tensor` with its records in the first dimension."""
    return tensor.movedim(record_dim, 0) if record_dim else tensor
