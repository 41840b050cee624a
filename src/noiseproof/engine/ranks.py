"""Ranks: the processes that train one network together; a process alone is the simplest of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import nn

from noiseproof.errors import UnsupportedError

if TYPE_CHECKING:
    from noiseproof.privacy import Randomness


class Ranks:
    """What a training asks of the processes that take part in it; here there is one, which asks nobody.

    `noiseproof.run.distributed` has the ranks of torch.distributed.
    """

    rank: int = 0
    size: int = 1

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

    def part(self, draw: Callable[[], torch.Tensor]) -> torch.Tensor:
        """The indices of this rank's part of a step's sample, which `draw` draws."""
        return draw()

    def noised(self, total: torch.Tensor, noise: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """The sum of all ranks' vectors, with `noise` (which may work in place) added once to every coordinate."""
        return noise(total)


ALONE = Ranks()


def shared_by_ranks(module: nn.Module) -> bool:
    """Whether the network is one that several processes train together."""
    return isinstance(module, nn.parallel.DistributedDataParallel)


def unwrapped(module: nn.Module) -> tuple[nn.Module, bool]:
    """The network inside a `DistributedDataParallel`, and whether there was one; sharded networks are refused.

    The wrapper is told to leave gradients alone: what it would average are raw gradients of private records, and the
    ranks sum what has been clipped.
    """
    if isinstance(module, nn.parallel.DistributedDataParallel):
        module.require_backward_grad_sync = False
        # Nor may a forward pass wait for the other ranks: one of them may have drawn no record at all.
        module.require_forward_param_sync = False
        return module.module, True
    if any(type(part).__name__.startswith(("FSDP", "FullySharded")) for part in module.modules()) or any(
        type(parameter).__name__ == "DTensor" for parameter in module.parameters()
    ):
        raise UnsupportedError(
            "the network's parameters are sharded (FSDP, DTensor), but clipping needs each record's whole gradient on its "
            "rank; use the plain module or DistributedDataParallel, with micro_batch_size for memory."
        )
    return module, False
