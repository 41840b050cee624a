"""A twin of a batch, followed beside it: a record's loss must be the same whoever else is in the batch.

A twin batch runs, beside every operation between the drawing of a batch and its losses, the same operation on a batch in which
only some records are the same: those must have the same losses to the last digits, and no buffer may depend on records at
all. This finds what no gradient shows: detached statistics, ranks, masks, mixed inputs, weights on losses.

What is still there of a batch when the next is drawn is followed on, so that a network or a loop that remembers records from
one batch to the next (the last batch's mean, a stateful LSTM) is found as well.

It follows torch's operations. Where the network reads a number off the batch (`x.max().item()`) that is another
for the twin, or takes shapes from values, its forward pass is run again on the twin; where the loop puts such a number back as
it is (`losses / losses.mean().item()`), the twin gets its own. What the network does outside of torch, `company` finds; what
the loop does there is not seen.

A twin takes as much memory as what it is the twin of. So a large operation is first tried on its twin in pieces of some
records: where each comes out as those records do in the batch, to the bit, the twin is these rows of the batch's own result and
is not kept.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from random import SystemRandom
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakIdRef, WeakTensorKeyDictionary

from noiseproof.engine.masks import random_states, set_random_states
from noiseproof.errors import UnsupportedError

MIXED = (
    "a record's loss depends on which other records are in the batch (normalised, ranked, weighted or mixed with them, in the "
    "network, its inputs or the losses), on how many they are or on batches before, so clipping bounds nothing; compute each "
    "by itself."
)
_SECRET = SystemRandom()
_FACTORIES = ("empty", "zeros", "ones", "full", "new_empty", "new_zeros", "new_ones", "new_full", "scalar_tensor")
"""Operations that take of a tensor its shape alone (these, and with "_like")."""


FEWEST, MOST, ROWS, WORTH = 8, 16, 32, 2**18
"""A twin is tried in so many pieces at least, and in up to so many of so many rows; and the bytes of a batch in an operation for
which that is worth it."""


def _holders(tensor: Any) -> int:
    """How many hold a tensor in Python, besides the one name that the caller has for it."""
    torchs = 1 if tensor._use_count() > 1 else 0
    return sys.getrefcount(tensor) - 3 - torchs  # two names, an argument, and one for all of torch


_Numbers: TypeAlias = dict[tuple[nn.Module, str], float]
"""Numbers that modules have as attributes."""


def _numbers_of(network: nn.Module) -> _Numbers:
    return {
        (module, name): value
        for module in network.modules()
        for name, value in vars(module).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


@contextmanager
def left_alone(network: nn.Module) -> Iterator[Callable[..., None]]:
    """In the end the network's attributes and buffers are those of before, but for what it has added to lists and the like.

    What is given begins a pass: with the buffers of before, and with numbers, those of before if not given. What else the
    network keeps goes from pass to pass.
    """
    attributes = [
        (module, dict(vars(module)), dict(module._buffers))
        for module in network.modules()
        if not isinstance(module, torch.jit.ScriptModule)  # which has none that Python could change
    ]
    before = _numbers_of(network)

    def begin(numbers: _Numbers = before) -> None:
        for module, name in _numbers_of(network).keys() - numbers.keys():
            del vars(module)[name]
        for (module, name), value in numbers.items():
            vars(module)[name] = value
        for module, _, buffers in attributes:
            for name, own in buffers.items():
                module._buffers[name] = None if own is None else own.detach().clone()

    try:
        yield begin
    finally:
        for module, own, buffers in attributes:
            vars(module).clear()
            vars(module).update(own)
            module._buffers.clear()
            module._buffers.update(buffers)


def _counts_references() -> bool:
    """Whether references are counted as `_holders` takes it, which is up to torch and Python; else no twin is dropped."""
    held: Any = torch.ones(2, requires_grad=True) * 2
    kept = held * held, [held]
    reference, before = WeakIdRef(held), _holders(held)
    del held
    kept[1].clear()
    held = reference()
    return held is not None and (before, _holders(held)) == (1, 0)


class TwinBatch(TorchDispatchMode):
    """Runs every operation on a batch also on a twin, in which some records are kept and one stands for all others.

    What is random comes out the same for both. It is entered when a batch has been drawn and left when its losses are there.
    """

    def __init__(
        self,
        batch: Sequence[torch.Tensor],
        records: int,
        turn: int,
        network: nn.Module,
        before: TwinBatch | None = None,
        dim: int = 0,
    ) -> None:
        super().__init__()
        self._network, self.records = network, records
        self.first = before is None
        """Whether the batch before had no twin."""
        self._handles: list[RemovableHandle] = []
        self._random: tuple[Any, ...] | None = None
        """While the network runs: the states of generators before."""
        self._start: _Numbers = {}
        """The network's own numbers before it ran."""
        self._read = self._unsure = self._differs = False
        self._numbers: dict[float, float] = {} if before is None else dict(before._numbers)
        """Numbers that the loop took out of torch, and what they are for the twin."""
        self._sources: list[float] = [records]
        """What the batch says of itself in numbers: how many records it has, and what the loop took out of torch."""
        self._factors: dict[int, float] = {}
        """By what numbers the loop multiplies or divides what is followed, by the operation's place."""
        self._last = (self._sources, self._factors) if before is None else (before._sources, before._factors)
        self._place = 0
        self._remembered: _Numbers = {} if before is None else before._keeps
        """Numbers that the network has kept of the batch before, as they would be for its twin."""
        self._keeps: _Numbers = {}
        # Many kept records show what depends on ranks; few, and not those with extremes, what depends on extremes.
        count = max(1, records // (2 if turn % 2 else 8))
        extremes = {
            int(
                pick(most(tensor.detach().movedim(dim, 0).flatten(1), 1).nan_to_num())
            )  # of numbers a record, not of a copy of the batch
            for tensor in batch
            for most, pick in ((torch.amax, torch.argmax), (torch.amin, torch.argmin))
            if tensor.is_floating_point() and tensor.dim() > 1 and tensor.numel()
        }
        choice = [record for record in range(records) if record not in extremes]
        self.kept = torch.tensor(sorted(_SECRET.sample(choice if len(choice) >= count else range(records), count)))
        rows = torch.full((records,), int(self.kept[_SECRET.randrange(count)]))
        rows[self.kept] = self.kept
        self._rows = rows
        self._twins = WeakTensorKeyDictionary()
        self._lazy = WeakTensorKeyDictionary()
        """Tensors whose twins are some of their own rows, made again whenever they are needed: these rows."""
        if before is not None:
            before._let_go()
            for tensor, own in list(before._lazy.items()):
                self._lazy[tensor] = own
            for tensor, twin in list(before._twins.items()):
                self._twins[tensor] = twin.detach()  # a network may be copied with what follows it
        for tensor in batch:
            self._lazy[tensor] = rows.to(tensor.device)
        self._given = WeakTensorKeyDictionary({tensor: (tensor._version, self._lazy[tensor]) for tensor in batch})
        """The batch: which version of it is here, and the rows that make up its twin."""
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
        if _COUNTS_REFERENCES:
            layers = [
                layer
                for layer in self._network.modules()
                if layer is not self._network and not isinstance(layer, torch.jit.ScriptModule)
            ]
            self._handles += [layer.register_forward_pre_hook(self._let_go) for layer in layers]
            self._handles += [layer.register_forward_hook(self._let_go) for layer in layers]
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
            if isinstance(value, torch.Tensor) and self._follows(value):
                raise UnsupportedError(
                    f"the forward pass writes values of records into {name}, which is part of what is released, without "
                    "noise; keep nothing of the records in buffers (or make them persistent=False)."
                )
        twin = None if self.failed else self._twins.get(losses)
        if self._differs or self._scaled() or (twin is not None and not self._same(losses, twin)):
            raise UnsupportedError(MIXED)

    def _scaled(self) -> bool:
        """Whether a factor changed from batch to batch exactly as one of the batches' own numbers did."""
        sources, factors = self._last
        changed = [
            (value, factors[place])
            for place, value in self._factors.items()
            if place in factors and value and factors[place] and value != factors[place]
        ]
        own = [
            (mine, theirs)
            for numbers in zip(self._sources, sources, strict=False)
            if all(numbers)
            for mine, theirs in (numbers, (self.records / numbers[0], sources[0] / numbers[1]))
            if mine != theirs
        ]
        return any(
            math.isclose(ratio, power, rel_tol=1e-6)
            for value, before in changed
            for mine, theirs in own
            for ratio, power in ((value / before, mine / theirs), (value / before, theirs / mine))
        )

    def take_up(self, tensors: Sequence[torch.Tensor]) -> None:
        """Follow what the network is given if it was made in numpy and the like, so that nothing of it is followed."""
        if not any(self._follows(tensor) for tensor in tensors):
            for tensor in tensors:
                if tensor.dim() and len(tensor) == self.records:
                    self._lazy[tensor] = self._rows.to(tensor.device)

    def record_dims(self, tensors: Sequence[torch.Tensor]) -> dict[int, int] | None:
        """The dimension that counts records in those of some tensors that are followed; None if it cannot be told."""
        found = {}
        for tensor in tensors:
            if self._follows(tensor) and tensor.dim():
                dims = [dim for dim, size in enumerate(tensor.shape) if size == self.records]
                if not dims or (len(dims) > 1 and tensor not in self._lazy):
                    return None
                found[id(tensor)] = dims[0]
        return found or None

    def run_whole(self) -> None:
        """Run the network that has just run on the twin as well, though nothing shows that it has to."""
        self._unsure = True

    def put_away(self) -> None:
        """Keep of the batch's own twin only how to make it again, once the losses were checked."""
        for tensor, (version, rows) in list(self._given.items()):
            if tensor in self._twins and tensor._version == version and self._twins[tensor]._version == 0:
                del self._twins[tensor]
                self._lazy[tensor] = rows

    def _follows(self, tensor: torch.Tensor) -> bool:
        return tensor in self._twins or tensor in self._lazy

    def _settle(self, tensor: torch.Tensor, *, written: bool = False) -> None:
        """Make a twin for good, with all that shares its memory, before something is written into it or has a part in it."""
        if tensor not in self._lazy and (not written or tensor in self._twins):
            return
        memory = _memory(tensor)
        family = [each for each in list(self._lazy) if memory is not None and _memory(each) == memory]
        if tensor not in self._lazy and not family:
            return
        rows = {each: self._lazy.pop(each) for each in family or [tensor]}
        if len(rows) == 1 and tensor in rows:
            self._twins[tensor] = tensor.detach()[rows[tensor]]
            return
        everyone = list({**rows, tensor: None})  # by identity
        begin = min(each.storage_offset() for each in everyone)
        size = max(each.storage_offset() + _extent(each) for each in everyone) - begin
        whole = tensor.detach().as_strided([size], [1], begin).clone()
        places = {each: (each.shape, each.stride(), each.storage_offset() - begin) for each in everyone}
        for each, own in rows.items():
            whole.as_strided(*places[each]).copy_(each.detach()[own])
        whole = whole.data  # nothing was written into it yet, as far as its versions tell
        for each, place in places.items():
            self._twins[each] = whole.as_strided(*place)

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
        self._random, self._read, self._start = random_states(), False, _numbers_of(self._network)

    def _after_network(self, network: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        before, self._random = self._random, None
        if before is None:
            return
        if self._remembered:
            again, _ = self._run_again(before, (args, kwargs), self._remembered)
            self._differs = self._differs or not self._alike(output, again)
        # A network that is run as a whole for no other reason might not come out twice the same.
        if self._read or (self._unsure and self._alike(output, self._run_again(before, (args, kwargs))[0])):
            twin, left = self._run_again(before, self._twin_of((args, kwargs)))
            if twin is not None:
                numbers = _numbers_of(network)
                self._differs = self._differs or not self._alike(output, twin)
                for real, other in self._by_record(output, twin):
                    self._twins[real] = other
                self._keeps = {
                    place: left[place] for place in numbers.keys() & left.keys() if left[place] != numbers[place]
                }
            self.failed = (self.failed or self._read) and twin is None
        if _COUNTS_REFERENCES:
            self._let_go()

    def _run_again(
        self, before: tuple[Any, ...], given: Any, remembered: _Numbers | None = None
    ) -> tuple[Any, _Numbers]:
        """What the network gives if it is run from where it began, and the numbers it leaves; with what another left in it.

        It is left as it was. Nothing comes out if it cannot be run.
        """
        after = random_states()
        with _disable_current_modes(), torch.no_grad(), left_alone(self._network) as begin:
            begin({**self._start, **(remembered or {})})
            set_random_states(before)
            try:
                return self._network.forward(*given[0], **given[1]), _numbers_of(self._network)
            except Exception:  # it is the twin's own trouble, again
                return None, {}
            finally:
                set_random_states(after)

    def _by_record(self, output: Any, twin: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [
            (real, other)
            for real, other in zip(tree_leaves(output), tree_leaves(twin), strict=True)
            if isinstance(real, torch.Tensor) and real.shape[:1] == (self.records,) == other.shape[:1]
        ]

    def _alike(self, output: Any, twin: Any) -> bool:
        return twin is None or all(self._same(real, other) for real, other in self._by_record(output, twin))

    def tells_apart(self, args: Any, kwargs: Any, dim: int = 0, counting: Mapping[int, int] | None = None) -> bool:
        """Whether what the network makes of a record depends on others, by passes of its own that leave nothing behind.

        Args:
            args: What the network is given.
            kwargs: By keyword.
            dim: The dimension that counts records in what of it the batch consists of.
            counting: The dimension that counts records in the outputs to compare, by their places; if not given, the first of
                all that have as many.
        """
        with torch.no_grad():
            twin = tree_map(partial(self._turned_twin_of, dim=dim), (args, kwargs))
        outputs = []
        for given in ((args, kwargs), twin):
            buffers = {name: buffer.detach().clone() for name, buffer in self._network.named_buffers()}
            with torch.no_grad(), torch.random.fork_rng():
                try:
                    outputs.append(tree_leaves(torch.func.functional_call(self._network, buffers, *given)))
                except Exception:  # the network's own trouble, or the twin's
                    return counting is not None
        if counting is None:
            counting = dict.fromkeys(range(len(outputs[0])), 0)
        return any(
            isinstance(left, torch.Tensor)
            and left.shape == right.shape
            and place in counting
            and left.shape[counting[place] :][:1] == (self.records,)
            and not self._same(left.movedim(counting[place], 0), right.movedim(counting[place], 0))
            for place, (left, right) in enumerate(zip(*outputs, strict=False))
        )

    def _turned_twin_of(self, leaf: Any, dim: int) -> Any:
        rows = self._lazy.get(leaf) if isinstance(leaf, torch.Tensor) else None
        return leaf if rows is None else leaf.detach().index_select(dim, rows)

    def _let_go(self, *_: Any) -> None:
        """Drop the twins of what nobody can compute with any more, though the graph keeps it for the backward pass.

        Else a checked step would hold all activations twice. This is called where a layer begins or ends, when no operation
        that is made of others holds what Python does not know of.
        """
        for reference in self._twins.keyrefs():
            tensor = reference()
            if tensor is not None and _holders(tensor) == 0:
                del self._twins[tensor]

    def _twin_of(self, values: Any) -> Any:
        return tree_map(self._twin_of_leaf, values)

    def _twin_of_leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            rows = self._lazy.get(leaf)
            return self._twins.get(leaf, leaf) if rows is None else leaf.detach()[rows]
        return self._numbers.get(leaf, leaf) if isinstance(leaf, float) else leaf

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        twins = self._twins
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        followed = any(self._follows(leaf) for leaf in tensors)
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
        # Attention counts as random though it mostly drops nothing.
        dropout = [argument.default_value for argument in arguments if argument.name == "dropout_p"]
        draws = torch.Tag.nondeterministic_seeded in func.tags and given.get("dropout_p", *dropout or [None]) != 0
        if name == "_unsafe_view" or any(result.alias_info is not None for result in func._schema.returns):
            if not written and (views := self._views_by_row(func, tensors, args, kwargs)) is not None:
                return views
            for leaf in tensors:
                self._settle(leaf)
        for value in written:
            self._settle(value, written=True)
            if value not in twins:
                self._follow_base(value)
        if self._random is None and name.rstrip("_") in ("mul", "div") and torch._C._current_graph_task_id() < 0:
            self._note_factor(args)  # but not what a backward pass, or what is hung on it, multiplies by
        if written:
            twin_args, twin_kwargs = self._twin_of((args, kwargs))
            output = func(*args, **kwargs)
        else:
            output = func(*args, **kwargs)
            plain = func.namespace == "aten" and not draws
            if plain and (rows := self._rows_of(func, args, kwargs, output)) is not None:
                for result in tree_leaves(output):
                    if result.shape[:1] == rows.shape:
                        self._lazy[result] = rows.to(result.device)
                return output
            twin_args, twin_kwargs = self._twin_of((args, kwargs))
        results = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
        try:
            if not draws:
                twin = func(*twin_args, **twin_kwargs)
                if not results and self._random is None and isinstance(output, int | float):
                    self._sources.append(output)
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

    def _views_by_row(self, func: Any, tensors: Sequence[torch.Tensor], args: Any, kwargs: Any) -> Any:
        """What a view gives if its twin is known without being kept, since each of its rows has numbers of one record alone."""
        if len(tensors) != 1 or (rows := self._lazy.get(tensors[0])) is None or func._schema.name == "aten::as_strided":
            return None
        output = func(*args, **kwargs)
        results = tree_leaves(output)
        found = [_rows_of_view(result, tensors[0], rows) for result in results]
        if any(own is None for own in found):
            return None
        for result, own in zip(results, found, strict=True):
            self._lazy[result] = own
        return output

    def _rows_of(self, func: Any, args: Any, kwargs: Any, output: Any) -> torch.Tensor | None:
        """The rows if the operation makes of some rows of the twin, by themselves, to the bit what it makes of them in the batch.

        Then its twin is known without being kept. A row is a record or, where records are folded, a part of one. Anything else
        (results that are no rows, shapes that are given, sums in another order, records that others have a part in) is run on
        the whole twin.
        """
        results = tree_leaves(output)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and self._follows(leaf)]
        if any(result.alias_info is not None for result in func._schema.returns) or not all(
            isinstance(leaf, torch.Tensor) for leaf in results
        ):
            return None
        known = [own for leaf in given if (own := self._lazy.get(leaf)) is not None] or [self._rows]
        rows = known[0]
        of_records = [leaf.shape[:1] == rows.shape for leaf in results]
        if not any(of_records) or any(leaf.shape[:1] != rows.shape for leaf in given):
            return None
        if not all(own is rows or torch.equal(own, rows) for own in known):
            return None
        if sum(leaf.numel() * leaf.element_size() for leaf in (*given, *results)) < WORTH:
            return None

        def piece(leaf: Any, some: slice, others: bool) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return self._numbers.get(leaf, leaf) if isinstance(leaf, float) else leaf
            if not self._follows(leaf):
                return leaf[some] if others and leaf.shape[:1] == rows.shape else leaf
            own = self._lazy.get(leaf)
            return self._twins[leaf][some] if own is None else leaf.detach()[own[some]]

        def fits(some: slice, others: bool) -> bool:
            some_args, some_kwargs = tree_map(partial(piece, some=some, others=others), (args, kwargs))
            try:
                found = tree_leaves(func(*some_args, **some_kwargs))
            except Exception:  # it has no meaning for some records
                return False
            del some_args, some_kwargs
            # What has no row for each record must be the same whichever records there are.
            wanted = zip(of_records, results, strict=True)
            return all(
                _equal(own, result.detach()[rows[some]] if each else result)
                for own, (each, result) in zip(found, wanted, strict=True)
            )

        step = -(-len(rows) // min(MOST, max(FEWEST, len(rows) // ROWS)))
        pieces = [slice(start, start + step) for start in range(0, len(rows), step)]
        # What does not depend on the batch may still have a row for each of the rows (positions, looked up for everyone).
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        ways = (
            (False, True)
            if any(leaf.shape[:1] == rows.shape for leaf in leaves if not self._follows(leaf))
            else (False,)
        )
        return rows if any(all(fits(some, others) for some in pieces) for others in ways) else None

    def _note_factor(self, args: tuple[Any, ...]) -> None:
        self._place += 1
        for factor in args:
            if isinstance(factor, torch.Tensor) and factor.dim() == 0 and factor.is_cpu and not self._follows(factor):
                factor = factor.item()
            if isinstance(factor, int | float):
                self._factors[self._place] = factor

    def _follow_base(self, value: torch.Tensor) -> None:
        """Give a tensor that is about to be written into a twin of its own; if it is a view, of all that it is part of."""
        base = value if value._base is None else value._base
        if base not in self._twins:
            self._twins[base] = base.detach().clone()
        if value is not base:
            self._twins[value] = self._twins[base].as_strided(value.size(), value.stride(), value.storage_offset())


def _memory(tensor: torch.Tensor) -> int | None:
    """Where a tensor's numbers are, and those of its views; None if that cannot be told."""
    plain = type(tensor) in (torch.Tensor, nn.Parameter) and tensor.layout is torch.strided
    return tensor.untyped_storage().data_ptr() or None if plain else None


def _extent(tensor: torch.Tensor, first: int = 0) -> int:
    """From the first number of a tensor, or of its dimensions from `first` on, to behind its last."""
    places = list(zip(tensor.shape, tensor.stride(), strict=True))[first:]
    return 1 + sum((size - 1) * stride for size, stride in places) if all(size for size, _ in places) else 0


def _rows_of_view(view: Any, tensor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor | None:
    """The rows that make up a view's twin, if those are known of what it is a view of, and none has numbers of two records."""
    if not isinstance(view, torch.Tensor) or (memory := _memory(tensor)) is None or _memory(view) != memory:
        return None
    if any(each.is_conj() or each.is_neg() or not each.dim() for each in (view, tensor)) or view.dtype != tensor.dtype:
        return None
    apart, ahead = tensor.stride(0), view.storage_offset() - tensor.storage_offset()
    if (len(view), view.stride(0)) == (len(tensor), apart):  # parts of its rows, turned or not
        inside = _extent(tensor, 1) <= apart and ahead >= 0 and ahead + _extent(view, 1) <= apart
        return rows if inside else None
    if ahead or not view.numel() or not (view.is_contiguous() and tensor.is_contiguous()):
        return None
    if view.numel() != tensor.numel():
        return None
    each, more = apart // max(1, view.stride(0)), view.stride(0) // max(1, apart)
    if each > 1 and len(view) == each * len(tensor):  # what was folded with records
        return (rows.unsqueeze(1) * each + torch.arange(each, device=rows.device)).flatten()
    if more > 1 and len(tensor) == more * len(view):  # and is not any more
        first = rows[::more] // more
        folded = (first.unsqueeze(1) * more + torch.arange(more, device=rows.device)).flatten()
        return first if torch.equal(folded, rows) else None
    return None


def _equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors are the same to the bit, but for kinds of what is not a number."""
    if left.shape != right.shape:
        return False
    return torch.equal(left, right) or bool(((left == right) | ((left != left) & (right != right))).all())


_COUNTS_REFERENCES = _counts_references()
