"""Ranks: the processes that train one network together; a process alone is the simplest of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn

from noiseproof.errors import UnsupportedError

if TYPE_CHECKING:
    from noiseproof.data.persons import Groups
    from noiseproof.privacy import Randomness


class Ranks:
    """What a training asks of the processes that take part in it; here there is one, which asks nobody.

    `noiseproof.run.distributed` has the ranks of torch.distributed.
    """

    rank: int = 0
    size: int = 1
    sharded: bool = False
    """Whether each rank has records of its own."""

    def randomness(self, rng: Randomness) -> tuple[Randomness, Randomness]:
        """What this rank draws samples and noise with."""
        return rng, rng

    def align(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give every rank the first one's values."""

    def agree(self, what: str, value: object) -> None:
        """Refuse to go on if ranks have different values of what must be the same everywhere."""

    def share(self, content: bytes) -> bytes:
        """What the first rank has; the others' own is not looked at."""
        return content

    def records(self, own: int) -> int:
        """How many records all ranks have together, if this one was given `own`."""
        return own

    def persons(self, ids: Groups) -> None:
        """Refuse persons, told by an id a record, who have records on more than one rank."""

    def part(self, draw: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The indices of this rank's part of a step's sample, which `draw` draws."""
        return draw()

    def summed(self, total: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' vectors."""
        return total

    def in_parts(self, vector: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """A vector that all ranks have alike, after each has changed (also in place) its own part of the coordinates."""
        return change(vector)

    def noised(self, total: torch.Tensor, noise: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """The sum of all ranks' vectors, with `noise` (which may work in place) added once to every coordinate."""
        return self.in_parts(self.summed(total), noise)


ALONE = Ranks()


def shared_by_ranks(module: nn.Module) -> bool:
    """Whether the network is one that several processes train together."""
    return isinstance(module, nn.parallel.DistributedDataParallel) or is_sharded(module)


def is_sharded(module: nn.Module) -> bool:
    """Whether parameters of the network lie in parts on several ranks."""
    return any(type(parameter).__name__ == "DTensor" for parameter in module.parameters())


def unwrapped(module: nn.Module) -> tuple[nn.Module, bool]:
    """The network inside a `DistributedDataParallel`, and whether it is one that ranks share.

    The wrapper is told to leave gradients alone: what it would average are raw gradients of private records, and the
    ranks sum what has been clipped.
    """
    if isinstance(module, nn.parallel.DistributedDataParallel):
        module.require_backward_grad_sync = False
        # Nor may a forward pass wait for the other ranks: one of them may have drawn no record at all.
        module.require_forward_param_sync = False
        return module.module, True
    if any(type(part).__name__.startswith("FullySharded") for part in module.modules()):
        raise UnsupportedError(
            "the network is wrapped in FullyShardedDataParallel, which keeps its parameters where no record's gradient can be "
            "told; shard it with torch.distributed.fsdp.fully_shard instead."
        )
    return module, is_sharded(module)


class Shards:
    """The parameters of a network that FSDP2 (`fully_shard`) keeps in parts, one on every rank.

    Activations are whole on their rank, and so is each record's gradient, from which its norm is taken. Only parameters are
    put together for it, and the noised gradient is cut into the parts that this rank keeps. FSDP itself is told to leave
    gradients alone.
    """

    def __init__(self, module: nn.Module) -> None:
        from torch.distributed.fsdp import FSDPModule

        self._parts = [part for part in module.modules() if isinstance(part, FSDPModule)]
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        for part in self._parts:
            part.set_requires_gradient_sync(False, recurse=False)
            # A backward pass may be run several times, on some ranks, for the checks.
            part.set_reshard_after_backward(False, recurse=False)
        if not self._parts:
            raise UnsupportedError(
                "the network's parameters are DTensors that no fully_shard has made, so that nothing is known of how records "
                "pass through them; use fully_shard or DistributedDataParallel."
            )

    @contextmanager
    def together(self) -> Iterator[None]:
        """While it lasts, the network has whole parameters; all ranks must come here alike."""
        for part in self._parts:
            part.unshard()
        try:
            yield
        finally:
            for part in self._parts:
                part.reshard()

    def part(self, parameter: nn.Parameter, gradient: torch.Tensor) -> torch.Tensor:
        """This rank's part of a gradient that all ranks have alike."""
        from torch.distributed.tensor import DTensor, distribute_tensor

        if not isinstance(parameter, DTensor):
            return gradient
        return distribute_tensor(gradient, parameter.device_mesh, parameter.placements, src_data_rank=None)
