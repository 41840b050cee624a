"""PerRecordGradients: hooks on a network that make every record's gradient known after one backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from noiseproof.errors import SettingError
from noiseproof.gradients.engine.capture import captures_behind
from noiseproof.gradients.engine.contribution import Contribution, Explicit
from noiseproof.gradients.engine.record_gradients import RecordGradients
from noiseproof.gradients.engine.rules.fallback import run_by_record


class PerRecordGradients:
    """Per-record gradients of `module`'s trainable parameters, from one forward and one backward pass.

    The module is not changed: hooks watch its layers until `close`. Records come first in the network's inputs and
    losses; nothing in the network may mix them.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
        self.parameters: list[nn.Parameter] = [parameter for _, parameter in named]
        self._names = {id(parameter): name for name, parameter in named}
        self._indices = {id(parameter): index for index, parameter in enumerate(self.parameters)}
        self.layers: list[list[int]] = self._group()
        self._pauses = 0
        self._handles = [module.register_forward_hook(self._whole, with_kwargs=True)]

    def backward(self, losses: torch.Tensor) -> RecordGradients:
        """Every record's gradient of its own loss; `param.grad` stays as it is and the graph is freed."""
        if losses.dim() != 1:
            raise SettingError(f"losses must have the shape (records,), one loss a record, not {tuple(losses.shape)}.")
        records = losses.shape[0]
        contributions: list[Contribution | None] = [None] * len(self.parameters)
        found = captures_behind(losses, self, self._names) if records else []
        targets = [target for _, those in found for target in those]
        if targets:
            errors = iter(torch.autograd.grad(losses, targets, torch.ones_like(losses), allow_unused=True))
            for capture, those in found:
                arrived = [next(errors) for _ in those]
                if all(error is None for error in arrived):
                    continue
                for parameter, part in capture.settle(arrived):
                    index = self._indices[id(parameter)]
                    before = contributions[index]
                    contributions[index] = part if before is None else Explicit(before.explicit() + part.explicit())
        return RecordGradients(records, self.parameters, self.layers, contributions)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Forward passes in here are not captured."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1

    def close(self) -> None:
        """Remove every hook."""
        for handle in self._handles:
            handle.remove()

    def __enter__(self) -> PerRecordGradients:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _group(self) -> list[list[int]]:
        """The parameters of every layer; a shared parameter belongs to the first layer that owns it."""
        taken: set[int] = set()
        layers = []
        for owner in self.module.modules():
            mine = [
                self._indices[id(parameter)]
                for parameter in owner.parameters(recurse=False)
                if id(parameter) in self._indices and self._indices[id(parameter)] not in taken
            ]
            if mine:
                taken.update(mine)
                layers.append(mine)
        return layers

    def _whole(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if self._pauses or not torch.is_grad_enabled():
            return None
        with self.paused():
            output, capture = run_by_record(module, args, kwargs, "")
        if capture is None:
            return None
        for leaf in pytree.tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad and leaf.grad_fn is not None:
                leaf.grad_fn.metadata[self] = capture
        return output
