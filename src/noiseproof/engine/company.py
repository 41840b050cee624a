"""A few of a batch's records, run by themselves: what a network makes of a record must not depend on its company.

A twin batch follows torch's operations in a batch of the same size. What it cannot see, this does: work done in numpy or
on other threads, what depends on how many records there are or at which place a record stands, backward passes of one's own
that bring other records in, what is remembered outside of torch, and parameters that are written past it.

Compared are the record's outputs, in full, and what the same errors in them give to every parameter: in full where that is a few
thousand numbers, else sums of some of its rows with secret signs and sizes. Each gradient is summed as soon as it is made, so
that the check holds one parameter's at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from random import SystemRandom
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle

from noiseproof.engine.checks import AT_ONCE
from noiseproof.engine.masks import random_states, set_random_states, told
from noiseproof.engine.per_record import PerRecordGradients
from noiseproof.engine.rules.rule import Hook, Replacing
from noiseproof.engine.twins import MIXED, TwinBatch, left_alone
from noiseproof.errors import UnsupportedError

_SECRET = SystemRandom()
_DROPPING = (nn.modules.dropout._DropoutNd, nn.RNNBase, nn.MultiheadAttention)
"""Layers that do nothing else in training than drop."""
_MOST, _SUMS = 2**12, 64
"""Of a parameter's gradient about so many numbers are compared at most, and so many sums of rows where it has more."""
_COMPANIES = (2, 3)
"""How many records are run by themselves: the one in question is the first of two, and the last of three."""


class Company:
    """Watches the network's next forward pass with gradients, and then runs a few of its records by themselves.

    Where nothing can be said, since a few records cannot be run or random numbers are drawn, the batch's twin runs the network
    as a whole.

    Args:
        engine: The engine of the network.
        twin: What follows the batch.
    """

    def __init__(self, engine: PerRecordGradients, twin: TwinBatch) -> None:
        self._engine, self._twin = engine, twin
        self._refusal: str | None = ""
        network = engine.module
        self._handles: list[RemovableHandle] = [
            network.register_forward_pre_hook(Hook(network, self._before), with_kwargs=True),
            network.register_forward_hook(Hook(network, self._after), with_kwargs=True),
        ]

    def leave(self) -> None:
        """Watch no longer."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def check(self) -> None:
        """Refuse the batch if a record did not come out the same."""
        if self._refusal:
            raise UnsupportedError(self._refusal)

    def _before(self, args: Any, kwargs: Any) -> None:
        if self._engine.recording:
            self._twin.take_up([leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)])

    def _after(self, args: Any, kwargs: Any, output: Any) -> None:
        if not self._engine.recording:
            return
        self.leave()
        dims = self._twin.record_dims([leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)])
        if dims is None:
            return
        with self._engine.paused():
            self._refusal = _refusal(
                self._engine.module, (args, kwargs), dims, self._twin.records, self._engine.parameters
            )
        if self._refusal is None:
            self._twin.run_whole()


def _refusal(
    network: nn.Module, given: Any, dims: Mapping[int, int], records: int, parameters: Sequence[nn.Parameter]
) -> str | None:
    """What is wrong if a record does not come out the same in two small companies, or what its output gives to parameters.

    The network is left as it was, but for what it adds to lists and the like.

    Args:
        network: The network.
        given: Its arguments and keyword arguments.
        dims: The dimension that counts records in tensors among them, by their identity.
        records: How many there are.
        parameters: The network's trainable parameters.

    Returns:
        A sentence; nothing in it if nothing is wrong, and None if it cannot be told.
    """
    if any(isinstance(module, torch.jit.ScriptModule) for module in network.modules()):
        return None
    record = _SECRET.randrange(records)
    others = [_SECRET.choice([other for other in range(records) if other != record]) for _ in range(3)]
    before, written = random_states(), _sums(network)
    outputs: list[list[torch.Tensor]] = []
    kept: list[list[torch.Tensor]] = []
    with left_alone(network) as begin, _disable_current_modes(), torch.enable_grad(), _without_dropout(network):
        try:
            for company in ([record, others[0]], [*others[1:], record]):
                begin()
                set_random_states(before)
                args, kwargs = tree_map(partial(_only, dims=dims, company=company), given)
                made = tree_leaves(network.forward(*args, **kwargs))
                outputs.append([leaf for leaf in made if isinstance(leaf, torch.Tensor)])
                kept.append(_released(network))
                if told(random_states()) != told(before):
                    return None
            pairs = _pairs(*outputs)
            gradients = _gradients(pairs, parameters)
        except Exception:  # whatever it is, it is the few's own trouble
            return None
        finally:
            set_random_states(before)
    allowed = 3 * _precision([*parameters, *(one for one, _ in pairs)]) ** 0.5
    # Some gradients are nothing but rounding of the others' (softmax does not change with its keys' bias).
    floor = max([allowed, *(0.1 * max(sizes) for _, *sizes in gradients)])
    if written != _sums(network) or not all(_close(one, other, 0.0) for one, other in zip(*kept, strict=True)):
        return (
            "the forward pass writes values of records into parameters or buffers, which are released without noise; keep "
            "nothing of the records there, and change parameters after the optimizer's step."
        )
    same = all(_close(one, other, allowed) for one, other in pairs) and all(
        off <= allowed * (sum(sizes) + floor) for off, *sizes in gradients
    )
    return "" if same else MIXED


def _only(leaf: Any, dims: Mapping[int, int], company: Sequence[int]) -> Any:
    """Some records of a tensor."""
    if id(leaf) not in dims:
        return leaf
    index = torch.tensor(company, device=leaf.device)
    return leaf.detach().index_select(dims[id(leaf)], index).requires_grad_(leaf.requires_grad)


def _pairs(ones: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What came out for the record in both companies."""
    found = []
    for one, other in zip(ones, others, strict=True):
        counting = [dim for dim, sizes in enumerate(zip(one.shape, other.shape, strict=True)) if sizes[0] != sizes[1]]
        if len(counting) == 1 and (one.shape[counting[0]], other.shape[counting[0]]) == _COMPANIES:
            found.append((one.select(counting[0], 0), other.select(counting[0], -1)))
    return found


def _gradients(
    pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], parameters: Sequence[nn.Parameter]
) -> list[tuple[float, float, float]]:
    """How far apart is, folded, what the same errors in both give to every parameter, and how large it is in each.

    Left out are parameters that are given what is not finite: another record that is not spoils the sum, though its errors are
    nothing.
    """
    there = [pair for pair in pairs if pair[0].requires_grad and pair[1].requires_grad]
    if not there:
        return []
    generator, seed = torch.Generator().manual_seed(_SECRET.getrandbits(63)), _SECRET.getrandbits(62)
    errors = [torch.randn(one.shape, generator=generator).to(one) for one, _ in there]
    ones, others = zip(*there, strict=True)
    first: dict[int, torch.Tensor] = {}
    found: list[tuple[float, float, float]] = []

    def compare(index: int, other: torch.Tensor) -> None:
        one = first.pop(index, torch.zeros((), device=other.device))
        if bool(one.isfinite().all() and other.isfinite().all()):
            found.append((_largest(one - other), _largest(one), _largest(other)))

    _fold(ones, errors, parameters, seed, first.__setitem__)
    _fold(others, errors, parameters, seed, compare)
    for index in list(first):
        compare(index, torch.zeros((), device=first[index].device))
    return found


def _largest(part: torch.Tensor) -> float:
    return float(part.abs().max()) if part.numel() else 0.0


def _fold(
    rows: Sequence[torch.Tensor],
    errors: Sequence[torch.Tensor],
    parameters: Sequence[nn.Parameter],
    seed: int,
    take: Callable[[int, torch.Tensor], None],
) -> None:
    """Hand the gradients to `take` with their parameters' places, each folded as soon as it is made and let go of."""

    def folding(index: int) -> Callable[[torch.Tensor], torch.Tensor]:
        def fold(gradient: torch.Tensor) -> torch.Tensor:
            take(index, folded(gradient, seed + index))
            return torch.zeros_like(gradient) if gradient.is_sparse else gradient.new_zeros(()).expand(gradient.shape)

        return fold

    handles = [parameter.register_hook(folding(index)) for index, parameter in enumerate(parameters)]
    try:
        torch.autograd.grad(rows, parameters, errors, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()


def folded(gradient: torch.Tensor, seed: int) -> torch.Tensor:
    """A gradient's rows times random signs and sizes, of many rows the sums of some neighbours: about `_MOST` numbers at most.

    Where two gradients differ so do these, by as much for their size: no row is in two sums or in none. Nothing as large as the
    gradient is written out.
    """
    if not gradient.dim():
        gradient = gradient.unsqueeze(0)
    while len(gradient) == 1 and gradient.dim() > 1 and not gradient.is_sparse:
        gradient = gradient[0]
    rows, row = gradient.shape[0], gradient.shape[1:]
    generator = torch.Generator().manual_seed(seed)
    weights = (torch.rand(rows, generator=generator) + 0.5) * (torch.randint(2, (rows,), generator=generator) * 2 - 1)
    weights = weights.to(gradient.device, torch.promote_types(gradient.dtype, torch.float32))
    few = gradient.numel() <= _MOST
    each = 1 if few else -(-rows // max(1, min(_SUMS, _MOST // row.numel())))
    if gradient.is_sparse:
        gradient = gradient.coalesce()
        places, values = gradient.indices()[0], gradient.values().to(weights)
        sums = values.new_zeros(-(-rows // each), *row)
        return sums.index_add_(0, places // each, values * weights[places].view(-1, *[1] * len(row)))
    if few:
        return gradient.to(weights) * weights.view(-1, *[1] * len(row))
    parts = [slice(start, start + each) for start in range(0, rows, each)]
    return torch.stack([torch.tensordot(weights[some], gradient[some].to(weights), dims=1) for some in parts])


def _close(one: torch.Tensor, other: torch.Tensor, allowed: float) -> bool:
    """Whether two tensors differ by no more than is allowed of the larger one, or of what is allowed."""
    one, other = one.detach().nan_to_num(), other.detach().nan_to_num()
    if not allowed or not (one.is_floating_point() or one.is_complex()):
        return torch.equal(one, other)
    return _largest(one - other) <= allowed * (_largest(one) + _largest(other) + allowed)


def _precision(tensors: Sequence[torch.Tensor]) -> float:
    """Of the shortest numbers that are computed with."""
    kinds = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    device = tensors[0].device.type
    if torch.is_autocast_enabled(device):
        kinds.add(torch.get_autocast_dtype(device))
    return max(torch.finfo(kind).eps for kind in kinds)


def _sums(network: nn.Module) -> list[tuple[float, ...]]:
    """What tells parameters from others; some numbers of them are widened at a time."""
    return [
        tuple(float(part.sum(dtype=torch.float64)) for part in parameter.detach().flatten().split(AT_ONCE))
        for parameter in network.parameters()
    ]


def _released(network: nn.Module) -> list[torch.Tensor]:
    """Buffers that are part of what is released."""
    own = network.state_dict()
    return [own[name].detach() for name, _ in network.named_buffers() if name in own]


@contextmanager
def _without_dropout(network: nn.Module) -> Iterator[None]:
    dropping = [module for module in network.modules() if isinstance(module, _DROPPING) and module.training]
    dropouts = [getattr(functional, name) for name in dir(functional) if "dropout" in name and not name.startswith("_")]
    attention = functional.scaled_dot_product_attention

    def attend(*args: Any, dropout_p: float = 0.0, **kwargs: Any) -> torch.Tensor:
        return attention(*args[:4], *((0.0, *args[5:]) if len(args) > 4 else ()), **kwargs)

    for module in dropping:
        module.training = False
    try:
        with Replacing({**dict.fromkeys(dropouts, lambda tensor, *_, **__: tensor), attention: attend}):
            yield
    finally:
        for module in dropping:
            module.training = True
