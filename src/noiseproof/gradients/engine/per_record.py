"""PerRecordGradients: hooks on a network that make every record's gradient known after one backward pass."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

import torch
from torch import nn

from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.gradients.engine.contribution import Contribution, added
from noiseproof.gradients.engine.flat import Flat
from noiseproof.gradients.engine.record_gradients import RecordGradients
from noiseproof.gradients.engine.refusals import refuse_mixing_layers
from noiseproof.gradients.engine.rules import rules_for
from noiseproof.gradients.engine.separation import Separation, check_shapes
from noiseproof.gradients.engine.tape import Capture, Tape, Target


class PerRecordGradients:
    """Every record's gradient in a network's trainable parameters, from one forward and one backward pass.

    The backward pass goes no further than the activations: hooks keep what each layer was given, and norms and sums
    of per-record gradients are made from (activation, error) pairs when asked for. The module itself is not changed;
    `close` takes the hooks off, and copies of the module have none that act.

    Records come first in the network's inputs and losses, and no operation may mix them. Layers known to mix them are
    refused at once. Beyond that, the first backward pass of two records or more is run twice, with other weights on the
    losses: every error must scale with its own record's weight alone, else `UnsupportedError` names the layer
    (`check=False` trusts you).

    `vmapped` names modules (dotted paths, "" for the whole network) to be run by `torch.func.vmap` as one layer, with
    per-record gradients written out. That is slow, but takes code that uses parameters in ways of its own.

    Formal guarantee
    ----------------
    None by itself: what comes out is as private as the records. It gives clipping its premise: if the losses' i-th
    entry depends on no record but the i-th, so does the i-th gradient.
    """

    def __init__(self, module: nn.Module, *, vmapped: Collection[str] = (), check: bool = True) -> None:
        refuse_mixing_layers(module)
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        if not named:
            raise SettingError("the network has no trainable parameter, so there is nothing to take gradients of.")
        unknown = sorted(set(vmapped) - {path for path, _ in module.named_modules()})
        if unknown:
            raise SettingError(f"the network has no module {unknown[0]!r} to run by vmap.")
        self.module = module
        self.parameters: list[nn.Parameter] = [parameter for _, parameter in named]
        """Trainable parameters, in the order of `module.parameters()`."""
        self._flat = Flat(self.parameters)
        self._names = {id(parameter): name for name, parameter in named}
        self._indices = {id(parameter): index for index, parameter in enumerate(self.parameters)}
        self.layers: dict[str, list[int]] = self._group()
        """Modules that own parameters, by path: the places of their parameters in `parameters`."""
        self._members = list(self.layers.values())
        self._unchecked = check
        self._tape = Tape()
        self._handles = [handle for rule in rules_for(module, self._tape, vmapped) for handle in rule.attach()]

    def backward(self, losses: torch.Tensor) -> RecordGradients:
        """Every record's gradient of its own loss; `param.grad` stays as it is, and the graph is freed."""
        if losses.dim() != 1:
            raise SettingError(f"losses must have the shape (records,), one loss a record, not {tuple(losses.shape)}.")
        records = losses.shape[0]
        uses: list[list[Contribution]] = [[] for _ in self.parameters]
        found = self._tape.captures_behind(losses, self._names) if records else []
        if records and not found:
            raise UnsupportedError(
                "these losses do not come from a watched forward pass of the network; run it with gradients on and not "
                "while the engine is paused."
            )
        for capture, errors in self._errors(losses, found):
            capture.check_unchanged()
            for parameter, part in capture.settle(*errors):
                uses[self._index(parameter)].append(part)
        contributions = [added(parts) if parts else None for parts in uses]
        return RecordGradients(records, self._flat, self._members, contributions)

    def split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Views of a vector over all parameters, one of each parameter's shape."""
        return self._flat.split(vector)

    def paused(self) -> AbstractContextManager[None]:
        """Forward passes in here are not captured: for a network that only passes gradients on, or public records."""
        return self._tape.paused()

    def close(self) -> None:
        """Take the hooks off the module."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self) -> PerRecordGradients:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _index(self, parameter: torch.Tensor) -> int:
        index = self._indices.get(id(parameter))
        if index is None:
            raise UnsupportedError(
                "a parameter was put in place or made trainable after the engine had been attached; close the engine "
                "and make a new one."
            )
        return index

    def _group(self) -> dict[str, list[int]]:
        """The parameters of every layer; a shared parameter belongs to the first layer that owns it."""
        taken: set[int] = set()
        layers = {}
        for path, owner in self.module.named_modules():
            mine = [self._indices.get(id(parameter), -1) for parameter in owner.parameters(recurse=False)]
            mine = [index for index in mine if index >= 0 and index not in taken]
            if mine:
                taken.update(mine)
                layers[path] = mine
        return layers

    def _errors(
        self, losses: torch.Tensor, found: list[tuple[Capture, tuple[Target, ...]]]
    ) -> list[tuple[Capture, tuple[torch.Tensor | None, ...]]]:
        """The gradients of all captures' targets, for those that the losses depend on."""
        targets: list[Any] = [target for _, those in found for target in those]
        if not targets:
            return []
        captures = [capture for capture, those in found for _ in those]
        separation = None
        self._tape.errors_only = True
        try:
            if self._unchecked and losses.shape[0] > 1:
                separation = Separation(losses, targets, captures)
            errors = torch.autograd.grad(losses, targets, torch.ones_like(losses), allow_unused=True)
        finally:
            self._tape.errors_only = False
        check_shapes(captures, errors, losses.shape[0])
        if separation is not None:
            separation.check(errors)
            self._unchecked = False
        each: list[tuple[Capture, tuple[torch.Tensor | None, ...]]] = []
        arrived = 0
        for capture, those in found:
            some = errors[arrived : arrived + len(those)]
            arrived += len(those)
            if not all(error is None for error in some):
                each.append((capture, some))
        return each
