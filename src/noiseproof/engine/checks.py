"""Checks that every record's loss and gradient are its own; what mixes records is refused before anything is released.

Three of them. *Layers* known to mix records are refused by name. *Separation* runs a backward pass twice with other
weights on the losses: a layer's error at record i must scale with the i-th weight and with nothing else. A *twin batch*
runs, beside every operation between the drawing of a batch and its losses, the same operation on a batch in which only
some records are the same: those must have the same losses to the last digits, and no buffer may depend on records at
all. This finds what no gradient shows: detached statistics, ranks, masks, mixed inputs, weights on losses.

A twin batch follows torch's operations. Where the network reads a number off the batch (`x.max().item()`) that is another
for the twin, or takes shapes from values, its forward pass is run again on the twin; where the loop puts such a number back as
it is (`losses / losses.mean().item()`), the twin gets its own. What is not seen: numbers that the loop takes out of torch and
changes in Python before it puts them back, work done in numpy, and a dependence on the mere size of the batch
(`losses / len(losses)`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import SystemRandom
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from noiseproof.engine.clipping import RecordGradients
from noiseproof.engine.contributions import NOTHING
from noiseproof.engine.graph import Following
from noiseproof.errors import UnsupportedError

_SECRET = SystemRandom()
FIRST = 3
"""Batches of two records or more that are checked for certain."""
EVERY = 128
"""One batch in so many is checked later on, at times that nobody knows."""


def is_due(checked: int) -> bool:
    """Whether the batch that comes next is to be checked, after so many that were."""
    return checked < FIRST or _SECRET.randrange(EVERY) == 0


def check_gradient(found: RecordGradients, expected: Sequence[torch.Tensor]) -> None:
    """Refuse a record's gradient that is not what autograd gives for its loss alone, clipped or not."""
    vector = torch.cat([gradient.flatten().double().cpu() for gradient in expected])
    length = float(vector.norm())
    if not math.isfinite(length):
        return
    size = max(length, math.sqrt(float(found.squared_norms())))
    tolerance = 1e-2 if all(gradient.dtype in (torch.float32, torch.float64) for gradient in expected) else 0.2
    own = torch.cat([gradient[0].flatten().double().cpu() for gradient in found.materialise()])
    if max(length, float(own.norm())) ** 2 < NOTHING:
        return  # float32 knows no squares of such numbers, and nothing clips them
    clip = max(length / 2, 1e-30)
    clipped = found.clipped_vector(clip).double().cpu()
    wrong = float((own - vector).norm()) > tolerance * size or float(clipped.norm()) > clip * (1 + 1e-6)
    if wrong or float((clipped - vector / 2).norm()) > tolerance * size:
        raise UnsupportedError(
            "a record's gradient is not the one that autograd gives for its loss alone; a layer's rule does not fit what the "
            "layer computes, or the loss depends on other records."
        )


class Separation:
    """The test for one graph: `Separation(...)` before the graph's own backward pass, `check` with its errors."""

    def __init__(self, losses: torch.Tensor, targets: Sequence[Any], followed: Following) -> None:
        # Powers of two, because scaling by them is exact: a separate error comes out scaled to the bit.
        exponents = torch.randint(4, losses.shape, generator=torch.Generator().manual_seed(1))
        self._followed = followed
        self._uses = [use for use in followed.uses for _ in use.targets]
        self._weights = (2.0**exponents).to(losses)
        # Only lengths are kept, so that the test does not hold every error twice.
        self._lengths = self._lengths_of(
            torch.autograd.grad(losses, targets, self._weights, retain_graph=True, allow_unused=True)
        )

    def check(self, errors: Sequence[torch.Tensor | None]) -> None:
        """Refuse a network whose errors do not scale record by record."""
        for use, found, length in zip(self._uses, self._lengths, self._lengths_of(errors), strict=True):
            if found is None or length is None:
                continue
            expected = length * self._weights.to(length)
            # Mixing moves errors by at least about one over the records; sums in another order by far less.
            precision = torch.finfo(length.dtype).eps
            floor = precision * float(expected.nan_to_num(0.0, 0.0).max())
            if not torch.allclose(found, expected, rtol=64 * precision, atol=floor, equal_nan=True):
                raise self._followed.mixed(use.behind)

    def _lengths_of(self, errors: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The length of every record's error, (B,), for each use."""
        return [
            None if error is None else use.place.lengths(error) for use, error in zip(self._uses, errors, strict=True)
        ]


_FACTORIES = ("empty", "zeros", "ones", "full", "new_empty", "new_zeros", "new_ones", "new_full", "scalar_tensor")
"""Operations that take of a tensor its shape alone (these, and with "_like")."""


class TwinBatch(TorchDispatchMode):
    """Runs every operation on a batch also on a twin, in which some records are kept and one stands for all others.

    What is random comes out the same for both. It is entered when a batch has been drawn and left when its losses are there.
    """

    def __init__(self, batch: Sequence[torch.Tensor], records: int, turn: int, network: nn.Module) -> None:
        super().__init__()
        self._network, self._records = network, records
        self._handles: list[RemovableHandle] = []
        self._random: tuple[torch.Tensor, list[torch.Tensor]] | None = None
        """While the network runs: the states of torch's generators before."""
        self._read = self._differs = False
        self._numbers: dict[float, float] = {}
        """Numbers that the loop took out of torch, and what they are for the twin."""
        # Many kept records show what depends on ranks; few, and not those with extremes, what depends on extremes.
        count = max(1, records // (2 if turn % 2 else 8))
        extremes = {
            int(pick(tensor.detach().flatten(1).nan_to_num()) // max(1, tensor[0].numel()))
            for tensor in batch
            for pick in (torch.argmax, torch.argmin)
            if tensor.is_floating_point() and tensor.dim() > 1 and tensor.numel()
        }
        choice = [record for record in range(records) if record not in extremes]
        self.kept = torch.tensor(sorted(_SECRET.sample(choice if len(choice) >= count else range(records), count)))
        rows = torch.full((records,), int(self.kept[_SECRET.randrange(count)]))
        rows[self.kept] = self.kept
        self._twins = WeakTensorKeyDictionary()
        for tensor in batch:
            self._twins[tensor] = tensor.detach()[rows.to(tensor.device)]
        self.failed = False
        """Whether an operation could not be run on the twin, so that nothing can be said."""

    def enter(self) -> None:
        """Follow operations from now on; one that an interrupted step has left is not followed any more."""
        before = _get_current_dispatch_mode()
        if isinstance(before, TwinBatch):
            before.leave()
        self._handles = [
            self._network.register_forward_pre_hook(self._before_network),
            self._network.register_forward_hook(self._after_network, with_kwargs=True),
        ]
        self.__enter__()

    def leave(self) -> None:
        """Stop following operations."""
        for handle in self._handles:
            handle.remove()
        if _get_current_dispatch_mode() is self:
            self.__exit__(None, None, None)

    def check(self, losses: torch.Tensor) -> None:
        """Refuse losses of kept records that differ from their twins', and buffers that depend on records."""
        released = {**dict(self._network.named_parameters()), **self._network.state_dict(keep_vars=True)}
        for name, value in released.items():
            if isinstance(value, torch.Tensor) and value in self._twins:
                raise UnsupportedError(
                    f"the forward pass writes values of records into {name}, which is part of what is released, without "
                    "noise; keep nothing of the records in buffers (or make them persistent=False)."
                )
        twin = None if self.failed else self._twins.get(losses)
        if self._differs or (twin is not None and not self._same(losses, twin)):
            raise UnsupportedError(
                "a record's loss depends on which other records are in the batch (normalised, ranked, weighted or mixed with "
                "them, in the network, its inputs or the losses), so clipping bounds nothing; compute each by itself."
            )

    def _same(self, found: torch.Tensor, twin: torch.Tensor) -> bool:
        """Whether kept records have the same values."""
        kept = self.kept.to(found.device)
        values, expected = found.detach()[kept], twin.detach()[kept]
        if not found.is_floating_point():
            return torch.equal(values, expected)
        precision = torch.finfo(found.dtype).eps
        floor = precision * float(expected.nan_to_num(0.0, 0.0, 0.0).abs().max())
        return torch.allclose(values, expected, rtol=64 * precision, atol=16 * floor, equal_nan=True)

    def _before_network(self, *_: Any) -> None:
        others = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        self._random, self._read = (torch.get_rng_state(), others), False

    def _after_network(self, network: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        before, self._random = self._random, None
        if not self._read or before is None:
            return
        again, more = self._twin_of((args, kwargs))
        values = [(buffer, buffer.detach().clone()) for buffer in network.buffers()]
        with _disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices=range(len(before[1]))):
            torch.set_rng_state(before[0])
            torch.cuda.set_rng_state_all(before[1])
            try:
                twin = network.forward(*again, **more)
            except Exception:  # it is the twin's own trouble, again
                self.failed = True
                return
            finally:
                for buffer, value in values:
                    buffer.copy_(value)
        for left, right in zip(tree_leaves(output), tree_leaves(twin), strict=True):
            if isinstance(left, torch.Tensor) and left.shape[:1] == (self._records,) == right.shape[:1]:
                self._differs = self._differs or not self._same(left, right)
                self._twins[left] = right
        self.failed = False

    def _twin_of(self, values: Any) -> Any:
        return tree_map(self._twin_of_leaf, values)

    def _twin_of_leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return self._twins.get(leaf, leaf)
        return self._numbers.get(leaf, leaf) if isinstance(leaf, float) else leaf

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        twins = self._twins
        followed = any(isinstance(leaf, torch.Tensor) and leaf in twins for leaf in tree_leaves((args, kwargs)))
        name = func._schema.name.split("::")[-1]
        if not followed or self.failed or name.removesuffix("_like") in _FACTORIES:
            return func(*args, **kwargs)
        # Also what is written by keyword (`out=`): without a twin of its own the twin would write into the batch's.
        arguments = func._schema.arguments
        given = {argument.name: value for argument, value in zip(arguments, args, strict=False)} | kwargs
        written = [
            value
            for argument in arguments
            if argument.alias_info is not None and argument.alias_info.is_write
            if isinstance(value := given.get(argument.name), torch.Tensor)
        ]
        for value in written:
            if value not in twins:
                self._follow_base(value)
        twin_args, twin_kwargs = self._twin_of((args, kwargs))
        output = func(*args, **kwargs)
        results = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        try:
            if torch.Tag.nondeterministic_seeded not in func.tags:
                twin = func(*twin_args, **twin_kwargs)
                if not results and twin != output:  # a number for Python
                    self._read = self._read or self._random is not None
                    if isinstance(output, float) and not output.is_integer():  # which may come back as it is
                        self._numbers[output] = twin
                others = [leaf for leaf in tree_leaves(twin) if isinstance(leaf, torch.Tensor)]
            elif name == "native_dropout" and len(results) == 2:
                share = 1 - (args[1] or 0.0)
                others = [twin_args[0] * results[1] / share if share else results[0], results[1]]
            else:
                others = results
        except Exception:  # whatever it is, it is the twin's own trouble
            self.failed = True
            self._read = self._random is not None  # the network as a whole may run
            return output
        for result, other in zip(results, others, strict=True):
            if not any(result is value for value in written):
                twins[result] = other
            elif other is result:  # random numbers, written in place
                twins[result].copy_(result)
        return output

    def _follow_base(self, value: torch.Tensor) -> None:
        """Give a tensor that is about to be written into a twin of its own; if it is a view, of all that it is part of."""
        base = value if value._base is None else value._base
        if base not in self._twins:
            self._twins[base] = base.detach().clone()
        if value is not base:
            self._twins[value] = self._twins[base].as_strided(value.size(), value.stride(), value.storage_offset())


def refuse_mixing_layers(network: nn.Module) -> None:
    """Raise `UnsupportedError` for the first layer that mixes records, naming it and its replacement."""
    for path, layer in network.named_modules():
        reason = _reason(layer)
        if reason is not None:
            raise UnsupportedError(f"the layer {path or 'network'} ({type(layer).__name__}) {reason}.")


def _reason(layer: nn.Module) -> str | None:
    if any(is_lazy(parameter) for parameter in layer.parameters(recurse=False)):
        return "has no parameters yet; run one batch through the network first"
    if isinstance(layer, _InstanceNorm):
        if not layer.track_running_stats:
            return None
        channels = layer.num_features
        return (
            "keeps statistics over all records; replace it by "
            f"GroupNorm({channels}, {channels}), or build it with track_running_stats=False"
        )
    if isinstance(layer, _BatchNorm) and (layer.training or not layer.track_running_stats):
        channels = layer.num_features
        return (
            "normalises over the records of a batch, so that no record has a gradient of its own; replace it by "
            f"GroupNorm({math.gcd(channels, 32)}, {channels}), or freeze its statistics by calling its eval()"
        )
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        if layer.max_norm is not None:
            return "rescales its rows by the records that it sees; build it with max_norm=None"
        if layer.scale_grad_by_freq:
            return (
                "divides gradients by how many records look up a row, which mixes them; build it with "
                "scale_grad_by_freq=False"
            )
    return None
