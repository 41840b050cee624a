"""Rules: how a layer is watched, so that its errors give every record's gradient; and which rule watches which layer.

A rule for a layer of your own is a class that turns the layer's inputs and the gradients of its outputs ("errors") into
every record's gradient in each of its parameters, written out with the records first:

>>> class Scale(nn.Module):
...     def __init__(self, width):
...         super().__init__()
...         self.factor = nn.Parameter(torch.ones(width))
...     def forward(self, inputs):
...         return self.factor * inputs
>>> @register_rule(Scale)
... class ScaleRule(LayerRule):
...     def contributions(self, inputs, errors):
...         return [(self.layer.factor, inputs * errors)]
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cache, partial
from importlib.metadata import entry_points
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from noiseproof.engine.graph import Contributions, GraphRecorder

_RULES: dict[type[nn.Module], type[Rule]] = {}
AnyRule = TypeVar("AnyRule", bound="type[Rule]")


def register_rule(*layers: type[nn.Module]) -> Callable[[AnyRule], AnyRule]:
    """Make a class the rule for layers of exactly these types; the last rule registered for a type counts.

    A package can bring its rules with an entry point in the group `noiseproof.rules` that names the module to import.

    Args:
        layers: The layers' classes. Subclasses are not included, since they may compute something else.

    Returns:
        The decorator, which gives the class back as it is.
    """

    def registered(rule: AnyRule) -> AnyRule:
        _RULES.update(dict.fromkeys(layers, rule))
        return rule

    return registered


class _Hook:
    """A hook that belongs to one module: in a copy of the module, or after pickling, it does nothing."""

    def __init__(self, module: nn.Module | None = None, act: Callable[..., Any] | None = None) -> None:
        self._module, self._act = module, act

    def __call__(self, module: nn.Module, *parts: Any) -> Any:
        return self._act(*parts) if self._act is not None and module is self._module else None

    def __reduce__(self) -> tuple[type[_Hook], tuple[()]]:
        return _Hook, ()


class Rule(ABC):
    """Watches one layer. `record_dim` is the dimension of the layer's input that counts records."""

    names: ClassVar[tuple[str, ...]] = ()
    """The parameters that the rule knows, if not any: a layer that has been given others is run by vmap instead."""

    def __init__(self, layer: nn.Module, path: str, recorder: GraphRecorder, record_dim: int = 0) -> None:
        self.layer, self.path, self.recorder, self.record_dim = layer, path, recorder, record_dim

    @classmethod
    def suits(cls, layer: nn.Module) -> bool:
        """Whether the layer computes with its own parameters as it was built, without reparametrisation."""
        return not hasattr(layer, "parametrizations") and (not cls.names or set(layer._parameters) <= set(cls.names))

    @abstractmethod
    def attach(self) -> Iterable[RemovableHandle]:
        """Hang the hooks on the layer."""

    def _before_forward(self, act: Callable[..., Any]) -> RemovableHandle:
        return self.layer.register_forward_pre_hook(_Hook(self.layer, act), with_kwargs=True)

    def _after_forward(self, act: Callable[..., Any], *, always: bool = False) -> RemovableHandle:
        # First, because a hook of the user's may return something else than what the layer itself gave.
        hook = _Hook(self.layer, act)
        return self.layer.register_forward_hook(hook, with_kwargs=True, prepend=True, always_call=always)


class LayerRule(Rule):
    """A layer of one input and one output, whose per-record gradients follow from that input and the output's error."""

    def attach(self) -> Iterable[RemovableHandle]:
        """Hang the hooks on the layer."""
        return [self._after_forward(self._record)]

    @abstractmethod
    def contributions(self, inputs: torch.Tensor, errors: torch.Tensor) -> Contributions:
        """Every record's gradient in the layer's parameters.

        Args:
            inputs: What the layer was given.
            errors: The gradients of the losses in what it gave; dimension `record_dim` counts records in both.

        Returns:
            Pairs of a parameter and its gradients: a tensor (records, *parameter.shape), or a `Contribution`.
        """

    def _record(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: torch.Tensor) -> None:
        if not (self.recorder.recording and output.requires_grad):
            return
        given = args[0] if args else next(iter(kwargs.values()))
        inputs = given.detach() if given.requires_grad else given
        contributions = partial(self.contributions, inputs)
        self.recorder.record(
            (output,), self.path, contributions, inputs=(given,), keep=(inputs,), record_dim=self.record_dim
        )


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


_TRANSFORMERS = (
    nn.Transformer,
    nn.TransformerEncoder,
    nn.TransformerDecoder,
    nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer,
)


@cache
def _load_installed() -> None:
    for point in entry_points(group="noiseproof.rules"):
        point.load()


def rules_for(
    network: nn.Module, recorder: GraphRecorder, vmapped: Collection[str], otherwise: type[Rule]
) -> Iterator[Rule]:
    """A rule for every layer of `network` that owns trainable parameters: `otherwise` where none is registered or suits.

    Modules named in `vmapped` (dotted paths) are one layer each, for `otherwise`.
    """
    _load_installed()
    seen: set[int] = set()

    def walk(module: nn.Module, path: str, record_dim: int) -> Iterator[Rule]:
        if id(module) in seen or not any(parameter.requires_grad for parameter in module.parameters()):
            return
        seen.add(id(module))
        rule = None if path in vmapped else _RULES.get(type(module))
        own = any(parameter.requires_grad for parameter in module.parameters(recurse=False))
        if rule is not None and rule.suits(module):
            yield rule(module, path, recorder, record_dim)
        elif path in vmapped or rule is not None or own or hasattr(module, "parametrizations"):
            yield otherwise(module, path, recorder, record_dim)
        else:
            if isinstance(module, _TRANSFORMERS):
                # Torch's transformers take sequences first unless told otherwise; their attention layers know.
                first = next(part for part in module.modules() if isinstance(part, nn.MultiheadAttention))
                record_dim = 0 if first.batch_first else 1
            for name, child in module.named_children():
                yield from walk(child, f"{path}.{name}" if path else name, record_dim)

    yield from walk(network, "", 0)
