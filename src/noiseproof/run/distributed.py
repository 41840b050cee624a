"""One private training on several ranks of torch.distributed, with one sample and one noise for each step."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
import torch.distributed as dist

from noiseproof.data.persons import person_hashes
from noiseproof.engine.ranks import Ranks
from noiseproof.errors import NoiseproofError, SettingError

if TYPE_CHECKING:
    from noiseproof.data.persons import Groups
    from noiseproof.privacy import Randomness


Records = Literal["whole", "shards"]
"""What each rank is given: `whole`, the same records everywhere; `shards`, its own records, any number of them."""

_SAMPLING = 1 << 31
"""Children of the randomness below it are for noise, one a rank; from it on they are for samples."""


class Group(Ranks):
    """The ranks of torch.distributed's default process group (gloo, or NCCL for GPUs), each a process.

    Call `gradients.join(group)` on every rank; `batches`, `backward` and the optimizer are then used as in one process,
    and after every step all ranks have the same weights, bit for bit, and the same events.

    Formal guarantee
    ----------------
    A step is the same mechanism as in one process, so that `PrivateGradients`'s guarantee holds as it is. *Sample:* with
    `whole` rank 0 draws one Poisson sample of all records and each rank takes every size-th of it; with `shards` each
    draws one of its own records, independently, whose union is a Poisson sample of all, provided that a record is in
    one shard only. Of persons it is the same: they are sampled, and a person with records in two shards is refused.
    *Sensitivity:* a record's clipped gradient enters the sum over ranks once. *Noise:* the clipped sums
    are added up (all-reduce); then each rank adds noise of the full scale to its own part of the coordinates of the
    total, and the parts are gathered. So every coordinate is noised exactly once, whatever the number of ranks, after
    the last addition, as noise on a lattice (`Secure`) needs it. Assumes that all ranks are trusted and the network
    between them is private: raw sums pass over it. Unit, neighbours, reference: those of `PrivateGradients`.
    """

    def __init__(self, records: Records = "whole") -> None:
        if records not in get_args(Records):
            raise SettingError(f"ranks are given {' or '.join(get_args(Records))}, not {records!r}.")
        if not dist.is_initialized():
            raise SettingError("there is no process group; use `with distributed.start() as ranks:` under torchrun.")
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._whole = records == "whole"
        self.sharded = not self._whole
        # NCCL moves what lies on the GPU only.
        self._device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")

    def randomness(self, rng: Randomness) -> tuple[Randomness, Randomness]:
        """Children of `rng`: one to sample with (used by rank 0 alone for `whole`), and this rank's own for noise."""
        return rng.spawn(_SAMPLING if self._whole else _SAMPLING + 1 + self.rank), rng.spawn(self.rank)

    def align(self, tensors: Iterable[torch.Tensor]) -> None:
        """Give every rank the values of rank 0."""
        with _together():
            for tensor in tensors:
                there = tensor.to(self._device, copy=True).contiguous()
                dist.broadcast(there, 0)
                tensor.copy_(there)

    def agree(self, what: str, value: object) -> None:
        """Raise on all ranks if not all have the same `value`; it is compared by its `repr`."""
        digest = hashlib.sha256(repr(value).encode()).digest()
        own = torch.frombuffer(bytearray(digest), dtype=torch.int64).to(self._device)
        every = [torch.empty_like(own) for _ in range(self.size)]
        with _together():
            dist.all_gather(every, own)
        if any(not torch.equal(other, own) for other in every):
            raise SettingError(f"{what} must be the same on every rank; start all with the same settings and data.")

    def share(self, content: bytes) -> bytes:
        """The bytes of rank 0."""
        count = torch.tensor([len(content)], device=self._device)
        with _together():
            dist.broadcast(count, 0)
            buffer = torch.zeros(int(count), dtype=torch.uint8)
            if self.rank == 0 and content:
                buffer = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            there = buffer.to(self._device)
            dist.broadcast(there, 0)
        return there.cpu().numpy().tobytes()

    def records(self, own: int) -> int:
        """All ranks' records together; for `whole` all must have the same number."""
        if self._whole:
            self.agree("the number of records", own)
            return own
        count = torch.tensor([own], device=self._device)
        with _together():
            dist.all_reduce(count)
        return int(count)

    def persons(self, ids: Groups) -> None:
        """Refuse persons who have records in two shards; for `whole` all ranks must have the same ids."""
        own = torch.from_numpy(person_hashes(ids, "the array groups").view(np.int64))
        if self._whole:
            self.agree("whose each record is", hashlib.sha256(own.numpy().tobytes()).hexdigest())
            return
        own = own.unique()
        counts = [torch.zeros(1, dtype=torch.int64, device=self._device) for _ in range(self.size)]
        with _together():
            dist.all_gather(counts, torch.tensor([len(own)], device=self._device))
        most = max(int(count) for count in counts)
        every = [torch.zeros(most, dtype=torch.int64, device=self._device) for _ in counts]
        with _together():
            dist.all_gather(every, torch.nn.functional.pad(own, (0, most - len(own))).to(self._device))
        found = torch.cat([part[: int(count)] for part, count in zip(every, counts, strict=True)])
        if len(found.unique()) < len(found):
            raise SettingError(
                "a person has records on two ranks, or each rank numbers its persons anew; put all records of a person on one "
                "rank, and give ids that mean the same person everywhere."
            )

    def part(self, draw: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Every size-th record of the sample that rank 0 draws; of `shards`, this rank's own sample."""
        if not self._whole:
            return draw()
        sample = draw().to(self._device) if self.rank == 0 else torch.empty(0, dtype=torch.int64)
        count = torch.tensor([len(sample)], device=self._device)
        with _together():
            dist.broadcast(count, 0)
            if self.rank:
                sample = torch.empty(int(count), dtype=torch.int64, device=self._device)
            dist.broadcast(sample, 0)
        return sample[self.rank :: self.size].cpu()

    def summed(self, total: torch.Tensor) -> torch.Tensor:
        """The sum of all ranks' vectors."""
        there = total.to(self._device, copy=True)
        with _together():
            dist.all_reduce(there)
        return there.to(total.device)

    def in_parts(self, vector: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """The vector, after each rank has changed every size-th part of its coordinates."""
        width = -(-vector.numel() // self.size)
        padded = torch.nn.functional.pad(vector, (0, width * self.size - vector.numel()))
        own = change(padded[self.rank * width : (self.rank + 1) * width].clone()).to(self._device).contiguous()
        whole = own.new_empty(self.size, width)
        with _together():
            dist.all_gather(list(whole), own)
        return whole.flatten()[: vector.numel()].to(vector.device)


@contextmanager
def start(records: Records = "whole", *, minutes: float = 30.0) -> Iterator[Group]:
    """Join the other processes that torchrun started; a rank that waits `minutes` for another gives up.

    NCCL is used where there is a GPU, gloo elsewhere. In a script that `torchrun --nproc-per-node 2 train.py` starts:

    Examples:
        >>> with distributed.start() as ranks:  # doctest: +SKIP
        ...     gradients = PrivateGradients(module, max_grad_norm=1.0, noise_multiplier=1.1, sample_rate=0.01)
        ...     gradients.join(ranks)
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        raise SettingError("this process was not started by torchrun; use `torchrun --nproc-per-node N ...`.")
    backend = "gloo"
    if torch.cuda.is_available() and dist.is_nccl_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "nccl"
    dist.init_process_group(backend, timeout=timedelta(minutes=minutes))
    try:
        yield Group(records)
    finally:
        dist.destroy_process_group()


def launched() -> bool:
    """Whether torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def is_first_rank() -> bool:
    """Whether this process is the one of all ranks that prints and saves."""
    return not launched() or os.environ["RANK"] == "0"


@contextmanager
def _together() -> Iterator[None]:
    """State in a sentence that another rank is gone."""
    try:
        yield
    except RuntimeError as error:
        raise NoiseproofError(
            f"another rank ended or cannot be reached ({type(error).__name__}); start all ranks again, with --resume if "
            "there are checkpoints."
        ) from error
