"""Rules for layers: what replaces following a layer's own operations, where that is slow or cannot be done.

Most layers need none, since records are followed through torch's operations. A rule for a layer of your own is a function
that turns the layer's input and the gradients of its output ("errors") into every record's gradient in its parameters, by
name and with the records first:

>>> class Scale(nn.Module):
...     def __init__(self, width):
...         super().__init__()
...         self.factor = nn.Parameter(torch.ones(width))
...     def forward(self, inputs):
...         return self.factor * inputs
>>> @register_rule(Scale)
... def scale_rule(layer, inputs, errors):
...     return {"factor": inputs * errors}
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from noiseproof.engine.contributions import Contribution
from noiseproof.engine.recorder import Contributions, Recorder
from noiseproof.errors import UnsupportedError

RuleFunction = Callable[[Any, torch.Tensor, torch.Tensor], Mapping[str, torch.Tensor | Contribution]]
AnyRule = TypeVar("AnyRule", bound=Callable[..., Any])
_RULES: dict[type[nn.Module], Callable[[nn.Module, Recorder], Rule]] = {}


def register_rule(*layers: type[nn.Module], record_dim: int = 0) -> Callable[[AnyRule], AnyRule]:
    """Make a function the rule for layers of exactly these types; the last rule registered for a type counts.

    The function takes the layer, its input and the errors in its output, and returns every record's gradient by the
    parameter's name: a tensor (records, *shape), or a `Contribution`. The layer has one input and one output.
    `noiseproof.engine.check_rule` tries it. A package can bring its rules with an entry point in the group
    `noiseproof.rules` that names the module to import.

    Args:
        layers: The layers' classes. Subclasses are not included, since they may compute something else.
        record_dim: The dimension of input and output that counts records.

    Returns:
        The decorator, which gives the function back as it is.

    Examples:
        >>> class Shift(nn.Module):
        ...     def __init__(self, width):
        ...         super().__init__()
        ...         self.offset = nn.Parameter(torch.zeros(width))
        ...     def forward(self, inputs):
        ...         return inputs + self.offset
        >>> @register_rule(Shift)
        ... def shift_rule(layer, inputs, errors):
        ...     return {"offset": errors}
        >>> from noiseproof.engine import check_rule
        >>> check_rule(Shift(3), torch.randn(4, 3))
    """

    def registered(rule: AnyRule) -> AnyRule:
        made: Any = rule if isinstance(rule, type) else partial(FunctionRule, function=rule, record_dim=record_dim)
        _RULES.update(dict.fromkeys(layers, made))
        return rule

    return registered


class Hook:
    """A hook that belongs to one module: in a copy of the module, or after pickling, it does nothing."""

    def __init__(self, module: nn.Module | None = None, act: Callable[..., Any] | None = None) -> None:
        self._module, self._act = module, act

    def __call__(self, module: nn.Module, *parts: Any) -> Any:
        """What the hook does, if it is called for its own module."""
        return self._act(*parts) if self._act is not None and module is self._module else None

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        return Hook, ()


class Rule(ABC):
    """Watches one layer."""

    def __init__(self, layer: nn.Module, recorder: Recorder) -> None:
        self.layer, self.recorder = layer, recorder

    @property
    def suits(self) -> bool:
        """Whether the layer computes with its own parameters as it was built, without reparametrisation."""
        return not hasattr(self.layer, "parametrizations")

    @abstractmethod
    def attach(self) -> Iterable[RemovableHandle]:
        """Hang the hooks on the layer."""

    def _before_forward(self, act: Callable[..., Any]) -> RemovableHandle:
        return self.layer.register_forward_pre_hook(Hook(self.layer, act), with_kwargs=True)

    def _after_forward(self, act: Callable[..., Any], *, always: bool = False) -> RemovableHandle:
        # First, because a hook of the user's may return something else than what the layer itself gave.
        hook = Hook(self.layer, act)
        return self.layer.register_forward_hook(hook, with_kwargs=True, prepend=True, always_call=always)


class FunctionRule(Rule):
    """A layer of one input and one output, with a rule that is a function of that input and the output's errors."""

    def __init__(self, layer: nn.Module, recorder: Recorder, *, function: RuleFunction, record_dim: int) -> None:
        super().__init__(layer, recorder)
        self._function, self._record_dim = function, record_dim

    def attach(self) -> Iterable[RemovableHandle]:
        """Hang the hook on the layer."""
        return [self._after_forward(self._record)]

    def _record(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor) -> None:
        if not (self.recorder.recording and output.requires_grad):
            return
        given = args[0] if args else next(iter(kwargs.values()))
        inputs = given.detach()

        def contributions(errors: torch.Tensor) -> Contributions:
            found = self._function(self.layer, inputs, errors)
            own = {name: part for name, part in self.layer.named_parameters() if part.requires_grad}
            if not own.keys() <= found.keys():
                raise UnsupportedError(
                    f"the rule for {type(self.layer).__name__} gives no gradient for {sorted(own.keys() - found.keys())[0]}; "
                    "let it return one for each trainable parameter."
                )
            return [(parameter, found[name]) for name, parameter in own.items()]

        dim = self._record_dim
        self.recorder.record([(output, dim)], contributions, inputs=[(given, dim)], keep=(inputs,), record_dim=dim)


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
        return [self._before_forward(self._enter), self._after_forward(self._leave, always=True)]

    @abstractmethod
    def replacement(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """What is run in place of `function`."""

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.recorder.recording:
            mode = Replacing({function: partial(self.replacement, function) for function in self.functions})
            mode.__enter__()
            self._modes.append(mode)

    def _leave(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """After the layer ran, or failed."""
        if self._modes:
            self._modes.pop().__exit__(None, None, None)


@cache
def _load_installed() -> None:
    for point in entry_points(group="noiseproof.rules"):
        point.load()


def rules_for(network: nn.Module, recorder: Recorder) -> Iterator[Rule]:
    """The rule of every layer of `network` that has trainable parameters and a rule that suits it."""
    _load_installed()
    for layer in network.modules():
        make = _RULES.get(type(layer))
        if make is not None and any(parameter.requires_grad for parameter in layer.parameters()):
            rule = make(layer, recorder)
            if rule.suits:
                yield rule
