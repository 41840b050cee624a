"""PerRecordGradients: hooks on a network that make every record's gradient known after one backward pass."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from random import SystemRandom
from types import TracebackType
from typing import Any

import torch
from torch import nn

from noiseproof.engine.checks import Separation, check_gradient, check_shapes, refuse_mixing_layers
from noiseproof.engine.clipping import Flat, RecordGradients
from noiseproof.engine.contributions import Contribution, Explicit, added
from noiseproof.engine.graph import GraphRecorder, LayerUse, Target
from noiseproof.engine.rules import VmapRule, rules_for
from noiseproof.errors import SettingError, UnsupportedError


class PerRecordGradients:
    """Every record's gradient in a network's trainable parameters, from one forward and one backward pass.

    The backward pass goes no further than the activations: hooks keep what each layer was given, and norms and sums
    of per-record gradients are made from inputs and errors of layers when asked for. The module itself is not changed;
    `close` takes the hooks off, and copies of the module have none that act.

    Records come first in the network's inputs and losses, and no operation may mix them. Layers known to mix them are
    refused at once. Beyond that, the first backward pass of two records or more is run twice, with other weights on the
    losses: every error must scale with its own record's weight alone, else `UnsupportedError` names the layer
    (`check=False` trusts you).

    Args:
        module: The network.
        vmapped: Modules (dotted paths, "" for the whole network) to be run by `torch.func.vmap` as one layer, with
            per-record gradients written out. That is slow, but takes code that uses parameters in ways of its own.
        check: Whether to look for mixed records.

    Raises:
        UnsupportedError: If a layer mixes records.
        SettingError: If nothing is trainable, or `vmapped` names a module that is not there.

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
        self._owned = [
            (owner._parameters, name, parameter, parameter.requires_grad)
            for owner in module.modules()
            for name, parameter in owner._parameters.items()
            if parameter is not None
        ]
        self.layers: dict[str, list[int]] = {}
        """Modules that own parameters, by path: the places of their parameters in `parameters`."""
        taken: set[int] = set()
        for path, owner in module.named_modules():
            mine = (
                {self._indices.get(id(parameter), -1) for parameter in owner.parameters(recurse=False)} - taken - {-1}
            )
            if mine:  # a shared parameter belongs to the first layer that owns it
                taken |= mine
                self.layers[path] = sorted(mine)
        self._unchecked = check
        self._recorder = GraphRecorder()
        rules = rules_for(module, self._recorder, vmapped, VmapRule)
        self._handles = [handle for rule in rules for handle in rule.attach()]

    def backward(self, losses: torch.Tensor, *, check: bool = False) -> RecordGradients:
        """Every record's gradient of its own loss; `param.grad` stays as it is, and the graph is freed.

        Args:
            losses: One loss a record, (records,), from a forward pass of the network with gradients on.
            check: Whether to look for mixed records again, and to compare a record's gradient with autograd's.

        Raises:
            UnsupportedError: If per-record gradients cannot be had from these losses; the message says why.
        """
        if losses.dim() != 1:
            raise SettingError(f"losses must have the shape (records,), one loss a record, not {tuple(losses.shape)}.")
        self._check_parameters(thoroughly=check)
        records = losses.shape[0]
        uses: list[list[Contribution]] = [[] for _ in self.parameters]
        found = self._recorder.uses_behind(losses, self._names) if records else []
        if records and not found:
            raise UnsupportedError(
                "these losses do not come from a watched forward pass of the network; run it with gradients on and not "
                "while the engine is paused or closed."
            )
        record = SystemRandom().randrange(records) if check and records else None
        expected = None if record is None else self._by_autograd(losses[record], found)
        for use, errors in self._errors(losses, found, look=check or self._unchecked):
            use.check_unchanged()
            for parameter, part in use.contributions(*errors):
                index = self._indices[id(parameter)]
                uses[index].append(part if isinstance(part, Contribution) else Explicit(part))
        contributions = [added(parts) if parts else None for parts in uses]
        gradients = RecordGradients(records, self._flat, list(self.layers.values()), contributions)
        if expected is not None:
            check_gradient(gradients.only(torch.tensor([record], device=losses.device)), expected)
        return gradients

    def split(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """Views of a vector over all parameters, one of each parameter's shape."""
        return self._flat.split(vector)

    def zeros(self) -> torch.Tensor:
        """A vector over all parameters, of zeros."""
        return self._flat.zeros(self._flat.size)

    def paused(self) -> AbstractContextManager[None]:
        """Forward passes in here are not recorded: for a network that only passes gradients on, or public records."""
        return self._recorder.paused()

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

    def _check_parameters(self, *, thoroughly: bool) -> None:
        """Refuse parameters that were replaced, frozen or unfrozen: they would get noise and no gradient, or neither."""
        same = all(
            owner.get(name) is parameter and parameter.requires_grad == trainable
            for owner, name, parameter, trainable in self._owned
        )
        if same and thoroughly:
            same = {id(parameter) for parameter in self.module.parameters()} == {id(row[2]) for row in self._owned}
        if not same:
            raise UnsupportedError(
                "a parameter of the network was put in place, replaced, frozen or made trainable after the engine had been "
                "attached; close the engine and make a new one."
            )

    def _by_autograd(self, loss: torch.Tensor, found: list[tuple[LayerUse, tuple[Target, ...]]]) -> list[torch.Tensor]:
        """One loss's gradient, as an ordinary backward pass gives it."""
        copies = [target for _, those in found for target in those if hasattr(target, "stands_for")]
        targets: list[Any] = [*self.parameters, *copies]
        gradients = torch.autograd.grad(loss, targets, retain_graph=True, allow_unused=True)
        total = [parameter.detach().new_zeros(parameter.shape) for parameter in self.parameters]
        for target, gradient in zip(targets, gradients, strict=True):
            if gradient is not None:
                of = getattr(target, "stands_for", target)
                total[self._indices[id(of)]] += gradient if of is target else gradient.sum(0)
        return total

    def _errors(
        self, losses: torch.Tensor, found: list[tuple[LayerUse, tuple[Target, ...]]], *, look: bool
    ) -> list[tuple[LayerUse, tuple[torch.Tensor | None, ...]]]:
        """The gradients of all uses' targets, for those that the losses depend on."""
        targets: list[Any] = [target for _, those in found for target in those]
        if not targets:
            return []
        uses = [use for use, those in found for _ in those]
        separation = None
        self._recorder.errors_only = True
        try:
            if look and losses.shape[0] > 1:
                separation = Separation(losses, targets, uses)
            errors = torch.autograd.grad(losses, targets, torch.ones_like(losses), allow_unused=True)
        finally:
            self._recorder.errors_only = False
        check_shapes(uses, errors, losses.shape[0])
        if separation is not None:
            separation.check(errors)
            self._unchecked = False
        remaining = iter(errors)
        each = [(use, tuple(next(remaining) for _ in those)) for use, those in found]
        return [(use, some) for use, some in each if any(error is not None for error in some)]
