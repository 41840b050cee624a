"""Rule: how one layer is watched, so that its errors give every record's gradient."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from noiseproof.engine.tape import Settle, Tape


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


# Intercepting one torch function while a layer runs, for layers whose inside is a single opaque call.


class Replacing(TorchFunctionMode):
    """While it is entered, calls of some torch functions go to others."""

    def __init__(self, replacements: Mapping[Any, Callable[..., Any]]) -> None:
        super().__init__()
        self._replacements = replacements

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self._replacements.get(func, func)(*args, **(kwargs or {}))


class InterceptRule(Rule):
    """A layer whose call of one torch function is answered by `replacement`: same values, errors that can be seen."""

    functions: tuple[Any, ...]

    def attach(self) -> Iterable[RemovableHandle]:
        """Hang the hooks on the layer."""
        self._modes: list[Replacing] = []
        return [self._before_forward(self.enter), self._after_forward(self.leave, always=True)]

    def enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the layer runs."""
        if self.tape.recording:
            mode = Replacing({function: self._replacing(function) for function in self.functions})
            mode.__enter__()
            self._modes.append(mode)

    def leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """After the layer ran, or failed."""
        if self._modes:
            self._modes.pop().__exit__(None, None, None)

    def _replacing(self, function: Any) -> Callable[..., Any]:
        return lambda *args, **kwargs: self.replacement(function, *args, **kwargs)

    def replacement(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """What is run in place of `function`."""
        raise NotImplementedError
