"""Intercepting one torch function while a layer runs, for layers whose inside is a single opaque call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from noiseproof.gradients.engine.rules.rule import Rule


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
