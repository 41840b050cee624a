"""Batches and the gradients of their steps: sampling, micro-batches, checks, one event a step."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Required, TypedDict

import torch
from torch import nn
from torch.utils.data import DataLoader

from noiseproof.data.lazy import in_memory
from noiseproof.data.persons import Groups, group_array
from noiseproof.engine.checks import FIRST, is_due
from noiseproof.engine.clipping import RecordGradients
from noiseproof.engine.collating import record_tensors, with_empty_batches
from noiseproof.engine.company import Company
from noiseproof.engine.contributions import full_precision
from noiseproof.engine.masks import Masks
from noiseproof.engine.per_record import PerRecordGradients
from noiseproof.engine.persons import Owners, PersonSampler, Reduction
from noiseproof.engine.ranks import ALONE, Ranks, Shards, is_sharded, unwrapped
from noiseproof.engine.sampling import PoissonSampler, check_loader
from noiseproof.engine.twins import TwinBatch
from noiseproof.errors import NoiseproofError, SettingError, UnsupportedError
from noiseproof.privacy.events import DpEvent, EventLog

if TYPE_CHECKING:
    from noiseproof.privacy import Randomness


class Sampling(TypedDict, total=False):
    """What every kind of `BatchGradients` takes besides its own settings."""

    sample_rate: Required[float]
    rng: Required[Randomness]
    group_size: int


class Waiting(NamedTuple):
    """A batch whose losses are to come."""

    records: int
    last: bool
    tensors: Sequence[torch.Tensor]
    owners: Owners | None = None
    """Whose the records are, where persons are sampled."""


class BatchGradients(ABC):
    """Turns per-record losses into the `.grad` of a step, for any torch optimizer and a loop of your own.

    `batches` draws the records, `backward` takes their losses; after the last micro-batch of a step it writes `.grad`
    and returns True. A step is logged in `events` before its gradient is visible. Losses that do not come from a batch
    drawn here are refused: what is accounted for must be what ran.
    """

    shareable: ClassVar[bool] = False
    """Whether several ranks can take a step together, each with a part of its records."""

    def __init__(
        self,
        module: nn.Module,
        *,
        sample_rate: float,
        rng: Randomness,
        group_size: int = 1,
    ) -> None:
        if not 0 < sample_rate <= 1:
            raise SettingError(f"the sampling rate must lie in (0, 1], not {sample_rate}.")
        self.sample_rate, self.group_size = sample_rate, group_size
        self.events = EventLog()
        self._id = secrets.token_hex(8)
        self._known: dict[str, int] = {}
        """How many events of other objects are in the log, by their ids: those of states that were restored."""
        self.steps = 0
        self.most_steps: int | None = None
        """Steps after which no more are taken, if a budget was planned for so many."""
        self.expected_batch = 0.0
        """Records a step draws on average, by which sums are divided. A public constant: if it is not set before the first
        batch, it is taken from the number of records, which is then taken to be public."""
        self._rng = self._sampling = rng
        self.ranks: Ranks = ALONE
        module, self._wrapped = unwrapped(module)
        self._shards = Shards(module) if is_sharded(module) else None
        with self._whole():
            self._engine = PerRecordGradients(module, check=False)  # checked here, batch by batch, up to the losses
        self.coordinates = sum(parameter.numel() for parameter in self._engine.parameters)
        self._reduction: Reduction = "mean"
        self._waiting: deque[Waiting] = deque()
        """The micro-batches that were handed over and whose losses are still to come, in order."""
        self.in_step = False
        """Whether some micro-batches of a step have come, and not yet its last."""
        self._records_in_step = 0
        self._sum: torch.Tensor | None = None
        self._masks = Masks(rng)
        self._checked = 0
        self._twin: TwinBatch | None = None
        """What follows the batch that is out now, if it is one to be checked."""
        self._company: Company | None = None
        self._left: TwinBatch | None = None
        self._before: TwinBatch | None = None
        """What followed the batch before, if that was checked: what is still there of it is followed on."""

    @property
    def share(self) -> float:
        """The share of all records that a step draws on average."""
        return self.sample_rate

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        """The parameters that are trained, as the optimizer has them."""
        return self._engine.parameters if self._shards is None else self._shards.parameters

    def join(self, ranks: Ranks) -> None:
        """Share this training with other ranks: call it on each of them before the first batch.

        Every step's sample is then taken of all ranks' records together, each rank clips its part, and the noise is added
        once to the sum over ranks; all have the same gradient and the same events. Weights become those of rank 0.
        """
        if not self.shareable:
            raise UnsupportedError(
                f"{type(self).__name__} cannot be shared among ranks, since it does more to a batch than clip and sum its "
                "records; train it in one process."
            )
        if self.steps or self._waiting:
            raise NoiseproofError("ranks join a training before its first batch, not in the middle of it.")
        self.ranks = ranks
        self._sampling, self._rng = ranks.randomness(self._rng)
        self._masks = Masks(self._sampling, ranks.rank)
        ranks.agree("the sampling rate and the number of parameters", (self.sample_rate, self.coordinates))
        module = self._engine.module
        # Parts of sharded parameters make up one and the same whole on every rank.
        parameters = [] if self._shards is not None else [parameter.detach() for parameter in module.parameters()]
        ranks.align([*parameters, *module.buffers()])

    def batches(
        self,
        *tensors: torch.Tensor,
        steps: int,
        micro_batch_size: int | None = None,
        groups: Groups | None = None,
        max_records_per_person: int = 8,
        reduction: Reduction = "mean",
    ) -> Iterator[tuple[torch.Tensor, ...]]:
        """Poisson batches of the records in `tensors` (equal first dimensions), for `steps` steps.

        With `micro_batch_size` a step comes in pieces of at most that many records, so that memory stays bounded: step the
        optimizer when `backward` returns True. An empty batch is yielded like any other: call `backward` with its
        losses, or with None if the network cannot take zero records; the step is then noise alone.

        With `groups` the unit is a person: persons are sampled, and clipped is the mean (or sum) of the gradients of some
        of a person's records, chosen uniformly and afresh for every step. What was said of records, but for sizes of
        pieces, then holds of persons: the sampling rate is a person's, sums are divided by the expected number of persons,
        and the guarantee is for one person with all their records.

        Args:
            tensors: The private records.
            steps: How many steps to draw batches for.
            micro_batch_size: Records in memory at once; a person's are never cut apart, so that it may be exceeded by
                `max_records_per_person`.
            groups: Whose each record is, an id a record. Where ranks have shards, ids must mean the same person on all.
            max_records_per_person: How many records of a person a step takes at most.
            reduction: Whether a person's gradient is the mean over those records, or their sum.

        Yields:
            The records of each (micro-)batch, in an order of no meaning.

        Raises:
            SettingError: If the tensors do not have the same number of records, or a person's lie on two ranks.
            DataError: If `groups` does not fit the records, or lacks a person.
        """
        records = {len(tensor) for tensor in tensors}
        if len(records) != 1 or records == {0}:
            raise SettingError("give tensors with the same number of records, at least one.")
        count, device = records.pop(), tensors[0].device
        size = micro_batch_size or count
        if groups is None:
            sampler = self._sampler(count, steps)
            self._expect(sampler.records)
        else:
            persons = self.person_sampler(groups, count, max_records_per_person)
            self._expect(persons.persons)
        self._reduction = reduction
        for _ in range(steps):
            owned: Sequence[Owners | None] = ()
            if groups is None:
                drawn = sampler.draw().to(device)
                pieces = drawn.split(size) if drawn.shape[0] > size else (drawn,)
                owned = [None] * len(pieces)
            else:
                drawn, owners = persons.draw(self.sample_rate)
                owned = owners.split(size)
                pieces = drawn.to(device).split([len(each.owners) for each in owned if each is not None])
            self.forget_waiting()
            for piece, whose in zip(pieces, owned, strict=True):
                # Read here where records are on disk: layers' inputs are looked at again for norms.
                batch = tuple([in_memory(tensor.index_select(0, piece)) for tensor in tensors])
                waiting = Waiting(piece.shape[0], piece is pieces[-1], batch, whose)
                yield from self._given(batch, waiting)
                del batch, waiting  # before the next is gathered

    def load(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Batches of a loader, if it samples with `PoissonSampler` at this rate.

        An empty batch has the shapes of the others, with no record: call `backward` with its losses, or with None.

        Raises:
            UnsupportedError: If the loader samples in another way.
        """
        records = len(loader.dataset)  # type: ignore[arg-type]
        check_loader(loader, self.sample_rate, records, self.ranks)
        self._expect(records)
        for batch in with_empty_batches(loader):
            first = batch
            while not isinstance(first, torch.Tensor):
                first = next(iter(first.values())) if isinstance(first, Mapping) else first[0]
            self.forget_waiting()
            yield from self._given(batch, Waiting(len(first), True, record_tensors(batch, len(first))))

    def backward(self, losses: torch.Tensor | None) -> bool:
        """Take one loss a record of the batch that was drawn last.

        Args:
            losses: One loss a record, (records,), not reduced; None for an empty batch.

        Returns:
            True when the step is complete and its gradient stands in `.grad`, False if micro-batches are to come.

        Raises:
            NoiseproofError: If these are not the losses of the batch that was drawn.
            UnsupportedError: If no gradient can be had for each record by itself; nothing is released then.
        """
        twin, company = self._leave_twin(), self._company
        self._masks.end()
        if not self._waiting:
            raise NoiseproofError(
                "these losses belong to no batch drawn by `batches` or `load`; the sampling that is accounted for must be "
                "the one that ran, so draw the records there and call `backward` once for each batch."
            )
        if self.most_steps is not None and self.steps >= self.most_steps:
            raise NoiseproofError(
                "all steps that the budget was planned for have been taken, earlier processes' included."
            )
        expected, last, _, owners = self._waiting[0]
        found = 0 if losses is None else (losses.shape[0] if losses.dim() == 1 else -1)
        if found != expected:
            raise NoiseproofError(
                f"the batch has {expected} records, but the losses have shape "
                f"{None if losses is None else tuple(losses.shape)}; give one loss a record (reduction='none')."
            )
        self._waiting.popleft()
        if not self.in_step:
            for parameter in self.parameters:
                parameter.grad = None  # the last step's, which would be held beside all that this one needs
        if losses is not None and expected > 0:
            if twin is not None:
                twin.check(losses)
                twin.put_away()
                self._checked += 1
            thoroughly = twin is not None and (self._checked == 1 or self._checked > FIRST)
            owners = None if owners is None else owners.to(losses.device)
            if owners is not None and self._reduction == "mean":
                losses = losses / owners.counts[owners.owners]
            with self._whole():
                gradients = self._engine.backward(losses, check=thoroughly)
            if twin is not None and company is not None:
                company.check()
            with full_precision():
                self._accumulate(gradients if owners is None else gradients.by_person(owners))
            del gradients  # before noise is drawn, which takes memory of its own
            self._records_in_step += expected if owners is None else owners.persons
        self.in_step = not last
        if not last:
            return False
        if self.steps == 0:
            self.ranks.agree("what a step costs", self._event())
        self.events.append(self._event())
        for parameter, gradient in zip(self.parameters, self._engine.split(self._finish()), strict=True):
            if gradient.dtype != parameter.dtype:
                gradient = gradient.to(parameter.dtype)
            parameter.grad = gradient if self._shards is None else self._shards.part(parameter, gradient)
        self.steps += 1
        self._records_in_step = 0
        return True

    @property
    def module(self) -> nn.Module:
        """The network, without what DistributedDataParallel puts around it."""
        return self._engine.module

    @property
    def pending(self) -> int:
        """How many batches were handed over whose losses are to come."""
        return len(self._waiting)

    @property
    def waiting(self) -> int | None:
        """How many records the batch has whose losses come next; None if none was handed over."""
        return self._waiting[0].records if self._waiting else None

    def hand_over(
        self, tensors: Sequence[torch.Tensor], records: int, *, last: bool = True, owners: Owners | None = None
    ) -> None:
        """Say that a batch was drawn as is accounted for, and that its losses are to come; for loaders.

        Args:
            tensors: What the batch consists of, records first; for the checks that no record's loss depends on others.
            records: How many there are, which may be none.
            last: Whether it is the last piece of its step's sample.
            owners: Whose they are, where persons were drawn.
        """
        self._waiting.append(Waiting(records, last, tensors, owners))
        self.settle()

    def forget_waiting(self) -> None:
        """Drop batches whose losses never came, and what an interrupted step has left: the next step is a new one."""
        self._leave_twin()
        self._waiting.clear()
        self._records_in_step, self._sum, self.in_step = 0, None, False

    def _whole(self) -> AbstractContextManager[None]:
        """While it lasts, parameters that are sharded among ranks are whole."""
        return nullcontext() if self._shards is None else self._shards.together()

    @property
    def randomness(self) -> tuple[Randomness, ...]:
        """What samples and noise are drawn with."""
        return (self._rng,) if self._sampling is self._rng else (self._sampling, self._rng)

    def state(self) -> dict[str, Any]:
        """What must be remembered between two steps, besides weights and randomness; what was spent is part of it."""
        return {"steps": self.steps, "expected_batch": self.expected_batch, "spent": (self._id, self.events.runs)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state` gave; what either side has spent stays spent.

        A state of this object brings nothing that it does not know. What another object has spent is added to what this
        one has, once; where both have it from a third, it counts twice rather than not at all.
        """
        self.steps, self.expected_batch = int(state["steps"]), state["expected_batch"]
        by, runs = state.get("spent", (self._id, ()))
        if by != self._id:
            known = self._known.get(by, 0)
            for event, count in runs:
                self.events.append(event, max(count - known, 0))
                known = max(known - count, 0)
            self._known[by] = max(self._known.get(by, 0), sum(count for _, count in runs))

    def paused(self) -> AbstractContextManager[None]:
        """While it lasts, forward passes are not watched: for generated or public records in the same step."""
        return self._engine.paused()

    def close(self) -> None:
        """Take the hooks off the module."""
        self._engine.close()

    def _sampler(self, records: int, steps: int) -> PoissonSampler:
        """What `batches` draws its steps' records with."""
        return PoissonSampler(records, self.sample_rate, steps, self._sampling, self.ranks)

    def person_sampler(self, groups: Groups, records: int, max_records_per_person: int) -> PersonSampler:
        """What draws persons for this training's steps, of which each has its records on one rank."""
        self.ranks.persons(groups)
        numbers = group_array(groups, records, "the training")
        return PersonSampler(numbers, max_records_per_person, self._sampling, self.ranks, self._rng)

    def _expect(self, records: int) -> None:
        if self._wrapped and self.ranks is ALONE:
            raise NoiseproofError(
                "the network is shared by ranks (DistributedDataParallel, FSDP), but these gradients know of no other, so each "
                "would add noise of its own; call `join(ranks)` first, with `ranks` from noiseproof.run.distributed."
            )
        together = self.ranks.records(records)
        self.expected_batch = self.expected_batch or self.share * together

    def _given(self, batch: Any, waiting: Waiting) -> Iterator[Any]:
        """The batch, whose losses must have come before the next is drawn."""
        self._waiting.append(waiting)
        self.settle()
        try:
            yield batch
        except GeneratorExit:
            # Whoever drew the batch does not want any more; its losses could not be checked.
            self.forget_waiting()
            raise
        finally:
            self._leave_twin()
        if self._waiting:
            raise NoiseproofError(
                "a batch was drawn but `backward` was not called with its losses; call it once for each."
            )

    def settle(self) -> None:
        """Let a twin follow the batch whose losses come next, if it is one to be checked, and no other any more.

        For loops whose `backward` is called while autograd runs, which puts back what follows operations.
        """
        if self._left is not None:
            self._left.leave()
            self._left = None
        if self._twin is None and self._waiting:
            records, _, tensors, _ = self._waiting[0]
            before, self._before = self._before, None
            due = records > 1 and is_due(self._checked, second=before is not None and before.first)
            self._masks.begin(self.steps, look=due)
            if due:
                self._twin = TwinBatch(tensors, records, self._checked, self._engine.module, before)
                if self._shards is None:
                    self._company = Company(self._engine, self._twin)
                self._twin.enter()

    def _leave_twin(self) -> TwinBatch | None:
        twin, self._twin = self._twin, None
        if self._company is not None:
            self._company.leave()
        if twin is not None:
            twin.leave()
            self._left = self._before = twin
        return twin

    def _add(self, vector: torch.Tensor) -> None:
        self._sum = vector if self._sum is None else self._sum.add_(vector)

    def _take_sum(self) -> torch.Tensor:
        total, self._sum = self._sum, None
        return self._engine.zeros() if total is None else total

    @abstractmethod
    def _accumulate(self, gradients: RecordGradients) -> None:
        """Take in a micro-batch's per-record gradients."""

    @abstractmethod
    def _event(self) -> DpEvent:
        """What the step that is about to be finished does to the records."""

    @abstractmethod
    def _finish(self) -> torch.Tensor:
        """The step's gradient as one vector, parameter after parameter; resets what was accumulated."""
