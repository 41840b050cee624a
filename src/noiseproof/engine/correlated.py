"""Private gradients whose noise is correlated over the steps: a guarantee that needs no sampling, or less of it."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from noiseproof.data.persons import Groups, group_array
from noiseproof.engine.batch_gradients import Sampling, Waiting
from noiseproof.engine.collating import SeparateCollate, record_tensors
from noiseproof.engine.persons import PersonSampler
from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.engine.ranks import ALONE
from noiseproof.engine.sampling import PoissonSampler
from noiseproof.errors import NoiseproofError, SettingError, UnsupportedError
from noiseproof.privacy import Gaussian
from noiseproof.privacy.events import DpEvent, NoOpDpEvent, sampled_gaussian
from noiseproof.privacy.factorization import Banded, Participation, Strategy
from noiseproof.privacy.streams import Stream

if TYPE_CHECKING:
    from noiseproof.privacy import Neighbours
    from noiseproof.privacy.card import Unit


class CyclicSampler(PoissonSampler):
    """Batches in rounds: every record has one place in a round, and each step draws from the next place.

    Places are drawn once, by a coin of each record's own, so that a record more or less moves nobody else. At rate 1 a
    record is in every batch of its place; below, each batch is a Poisson sample of its place.

    Formal guarantee
    ----------------
    Two steps that a record takes part in are at least a round apart, and a round holds at most one of them.
    """

    def __init__(self, gradients: CorrelatedGradients, records: int, steps: int, places: torch.Tensor) -> None:
        super().__init__(records, gradients.sample_rate, steps, gradients.randomness[0], gradients.ranks)
        self._gradients, self._places = gradients, places

    def draw(self) -> torch.Tensor:
        """One step's indices, sorted."""
        return self.ranks.part(self._of_place)

    def _of_place(self) -> torch.Tensor:
        here = (self._places == self._gradients.position % self._gradients.blocks).nonzero()[:, 0]
        if self.sample_rate == 1 or not len(here):
            return here
        return here[self._rng.poisson_sample(len(here), self.sample_rate)]


class CyclicPersons(PersonSampler):
    """Persons in rounds, as `CyclicSampler` has records; of each at most so many records, chosen afresh at every visit.

    Formal guarantee
    ----------------
    That of `CyclicSampler`, of persons.
    """

    def __init__(self, gradients: CorrelatedGradients, groups: torch.Tensor, max_records_per_person: int) -> None:
        sampling, choosing = gradients.randomness[0], gradients.randomness[-1]
        super().__init__(groups, max_records_per_person, sampling, gradients.ranks, choosing)
        self._rounds = gradients._sampler(self.persons, 0)

    def sample(self, rate: float) -> torch.Tensor:
        """The persons of the next place, by their numbers; of several ranks, this one's part of them."""
        return self._rounds.draw()


class Visits:
    """Who took part when, so that a visit too early or too many is refused before anything of it is released."""

    def __init__(self, participation: Participation, records: int) -> None:
        self.participation = participation
        self.last = torch.full((records,), -participation.separation, dtype=torch.int64)
        """The step of each record's last visit."""
        self.counts = torch.zeros(records, dtype=torch.int64)

    def check(self, ids: torch.Tensor, step: int) -> None:
        """Refuse a step's records if one of them is not due.

        Raises:
            NoiseproofError: If one was there less than the separation ago, or has taken part as often as it may.
        """
        if ids.dim() != 1 or (len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(self.last)):
            raise NoiseproofError(
                f"the ids of a batch must be whole numbers from 0 to {len(self.last) - 1}, one a record."
            )
        if len(ids.unique()) != len(ids) or bool((step - self.last[ids] < self.participation.separation).any()):
            raise NoiseproofError(
                f"a record came again after fewer than {self.participation.separation} steps, which the noise does not "
                "cover; visit all records in the same order in every epoch (shuffle=False, or one fixed shuffle)."
            )
        if self.participation.fixed and bool(
            ((self.counts[ids] > 0) & ((step - self.last[ids]) % self.participation.separation > 0)).any()
        ):
            raise NoiseproofError(
                f"a record came at another place in its epoch of {self.participation.separation} steps than before, which the "
                "noise does not cover; visit all records in the same order in every epoch."
            )
        if bool((self.counts[ids] >= self.participation.times).any()):
            raise NoiseproofError(f"a record was to take part more than {self.participation.times} times.")

    def add(self, ids: torch.Tensor, step: int) -> None:
        """Note that these records took part."""
        self.last[ids] = step
        self.counts[ids] += 1


class CorrelatedGradients(PrivateGradients):
    """`PrivateGradients` with the noise of a matrix factorization instead of fresh noise at every step.

    Examples:
        >>> from noiseproof.privacy.factorization import Participation
        >>> from noiseproof.privacy.strategies import strategy
        >>> network = torch.nn.Linear(4, 2)
        >>> twice = strategy("banded", Participation(steps=10, times=2, separation=5))
        >>> engine = CorrelatedGradients(network, twice, max_grad_norm=1.0, noise_multiplier=2.0)
        >>> for x, y in engine.batches(torch.randn(100, 4), torch.randint(2, (100,)), steps=10):
        ...     losses = torch.nn.functional.cross_entropy(network(x), y, reduction="none")
        ...     if engine.backward(losses):
        ...         torch.optim.SGD(network.parameters(), lr=0.1).step()
        >>> 1 < engine.epsilon(delta=1e-5) < 3
        True

    Args:
        module: The network.
        strategy: How noise is correlated, and how often and how close together a record takes part.
        max_grad_norm: The L2 norm that each record's gradient is clipped to.
        noise_multiplier: The noise on C G has the standard deviation noise_multiplier * max_grad_norm times the
            strategy's sensitivity (with sampling: times the largest norm of its columns).
        sample_rate: The share of a round's place that each batch draws; 1 takes all of it and needs no secret sample.
        sampling: The rest as for `PrivateGradients`.

    Raises:
        SettingError: If the strategy has no proof for a sampling rate below 1: that takes bands within the separation.

    Formal guarantee
    ----------------
    At rate 1 all steps together are *one* Gaussian mechanism with noise multiplier sigma on C G, charged in full before
    the first step; by whatever order a loop visits the records, as long as none takes part more than `times` times or
    closer together than `separation` (batches drawn here keep to that by construction). Below, for a strategy of at most
    `separation` bands, the columns of steps in different rounds are orthogonal, so that every round is a Poisson-sampled
    Gaussian mechanism of its own, charged before its first step (Choquette-Choo et al. 2023, theorem 4). The rest is
    post-processing, see `Stream.release`. Unit: record, or person where `batches` is told whose records are: then persons
    have places, and a person's gradient is clipped. Neighbours: add-or-remove, since each one's place in a round is
    its own (replace-one doubles the sensitivity; the accountant is told). Steps that a crash lost have been charged and
    are not taken again: their rows of C are left out, which only takes squares away from the norm that sensitivity bounds.
    Assumes what `PrivateGradients` assumes, but for rate 1 nothing of how records are sampled.
    """

    def __init__(
        self,
        module: nn.Module,
        strategy: Strategy,
        *,
        max_grad_norm: float,
        noise_multiplier: float,
        **sampling: Unpack[Sampling],
    ) -> None:
        sampling.setdefault("sample_rate", 1.0)
        participation = strategy.participation
        if sampling["sample_rate"] < 1 and not (
            isinstance(strategy, Banded) and strategy.bands <= participation.separation
        ):
            raise SettingError(
                "sampling is accounted for with banded strategies of at most as many bands as participations are apart; "
                "take one, or sample_rate=1."
            )
        if sampling.get("group_size", 1) > 1:
            raise SettingError(
                "correlated noise is accounted for by persons who are visited as one, not by their records."
            )
        super().__init__(module, max_grad_norm=max_grad_norm, noise_multiplier=noise_multiplier, **sampling)
        self.strategy = strategy
        self.unit: Unit = "record"
        """Who has a place in a round: a record, or a person where `batches` is told whose records are."""
        self.most_steps = participation.steps
        self.offset = 0
        """Events that something else logged before the first step."""
        self.own_order = False
        """Whether a loader's own order was taken, so that the guarantee is for replace-one."""
        self.visits: Visits | None = None
        self._coming: deque[torch.Tensor] = deque()
        """Of streams: whose records the batches are that were handed over, in order."""
        self._here: list[torch.Tensor] = []
        """Of a stream: whose records the step has had so far."""
        self._stream: Stream | None = None
        self.places: torch.Tensor | None = None
        """Each record's place in a round: drawn with the first batch, or its batch in a loader's own order. Private."""

    @property
    def position(self) -> int:
        """The step of the strategy that comes next: all that were charged before have been taken, or were lost."""
        return len(self.events) - self.offset

    @property
    def blocks(self) -> int:
        """How many steps a round of `batches` has."""
        return min(self.strategy.participation.separation, self.strategy.participation.steps)

    @property
    def facts(self) -> dict[str, Any]:
        """What a card says of who takes part when."""
        order = "fixed order" if self.sample_rate == 1 else "a Poisson sample of one place a step"
        visits = f"each {self.unit} at most {self.strategy.participation.most} times, {self.blocks} steps apart"
        return {"sampler": f"{order}, {visits}", "sensitivity": self.strategy.sensitivity}

    def state(self) -> dict[str, Any]:
        """Also the gradients and releases that later steps refer to, and each record's place in a round: all private."""
        if self.ranks.sharded:
            raise UnsupportedError(
                "a training with correlated noise whose records lie on different ranks cannot be interrupted, since each "
                "record's place in a round is known to its rank alone; give every rank all records."
            )
        stream = self._stream or self.strategy.start(self.coordinates, self._engine.zeros())
        own = {f"stream.{name}": value for name, value in stream.state().items()}
        own["places"] = torch.empty(0, dtype=torch.int64) if self.places is None else self.places
        if self.visits is not None:
            own |= {"visits.last": self.visits.last, "visits.counts": self.visits.counts}
        return {**super().state(), **own, "own_order": self.own_order, "released": stream.step}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state that `state` gave. Steps that were charged after it are left out, not taken again."""
        super().restore(state)
        self.own_order = self.own_order or bool(state["own_order"])
        if len(state["places"]):
            if self.own_order and self.places is not None:
                self._keep_order(state["places"])
            self.places = state["places"]
        saved = {name.removeprefix("stream."): value for name, value in state.items() if name.startswith("stream.")}
        self._stream = self.strategy.start(self.coordinates, self._engine.zeros())
        self._stream.restore(saved, int(state["released"]))
        if "visits.last" in state:
            before = self.visits
            self.visits = Visits(self.strategy.participation, len(state["visits.last"]))
            # What this object has seen itself, if later, stays seen.
            self.visits.last = torch.maximum(
                state["visits.last"], state["visits.last"] if before is None else before.last
            )
            self.visits.counts = torch.maximum(
                state["visits.counts"], state["visits.counts"] if before is None else before.counts
            )

    @property
    def share(self) -> float:
        """The share of all records that a step draws on average: those of one place."""
        return self.sample_rate / self.blocks

    def load(
        self,
        loader: DataLoader[Any],
        ids: Callable[[Any], torch.Tensor] | None = None,
        *,
        records: int | None = None,
    ) -> Iterator[Any]:
        """An ordinary loader's batches, in its own order; a record that comes too early or too often is refused.

        A map-style loader's order is noted when it is first given (`shuffle=False`, or one fixed shuffle), and every
        epoch must have it; an epoch that was left, or that a checkpoint lies in, goes on where it was.

        Args:
            loader: Visits the records in the same order in every epoch; each batch is a step.
            ids: From a batch to the ids of its records, 0 to records - 1, for data sets that are iterable; those of
                map-style data sets are seen by themselves.
            records: How many records there are, where `ids` is given.

        Yields:
            The loader's batches; call `backward` with the losses of each.

        Raises:
            NoiseproofError: If a record takes part too early or too often, or the order is another than before;
                nothing of that step is released.

        Formal guarantee
        ----------------
        The class's at rate 1, for replace-one neighbours alone: one record more or less would move the others to other
        batches. So `epsilon` must be asked for replace-one from then on.
        """
        if self.sample_rate < 1:
            raise SettingError("a loader's own order has no sampling that could be accounted for; take sample_rate=1.")
        if ids is None:
            if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
                raise SettingError(
                    "give `ids` and `records`: whose the records of an iterable data set are cannot be seen."
                )
            order = self.declare(loader.batch_sampler, len(loader.dataset))  # type: ignore[arg-type]
            loader = copy.copy(loader)
            rest = order[self.position % len(order) :]
            loader.__dict__["batch_sampler"] = rest  # a DataLoader forbids to change it; this copy has not begun
        elif records is None:
            raise SettingError("say how many `records` there are.")
        else:
            self.follow_visits(records)
            loader = copy.copy(loader)
        loader.collate_fn = SeparateCollate(loader.collate_fn)
        self.expected_batch = self.expected_batch or float(loader.batch_size or (records or 0) / self.blocks)
        for number, batch in enumerate(loader):
            self.forget_waiting()
            if ids is None:
                self.check_turn(len(order))
                size = len(rest[number])
            else:
                whose = ids(batch)
                self.expect_visits(whose)
                size = len(whose)
            yield from self._given(batch, Waiting(size, True, record_tensors(batch, size)))

    def follow_visits(self, records: int) -> None:
        """From now on every batch says whose records it has (`expect_visits`); those of a stream cannot be seen beforehand.

        Raises:
            NoiseproofError: If steps were taken that this object does not know, so that nobody can say who is due.
        """
        if self._stream is not None and self._stream.step < self.position:
            raise NoiseproofError(
                "steps were taken after this state that it does not know, so nobody can say whose records are due; go on "
                "from the newest checkpoint, or train anew."
            )
        if self.visits is not None and len(self.visits.last) != records:
            raise SettingError(f"this training has {len(self.visits.last)} records, and not {records}.")
        self.own_order, self.visits = True, self.visits or Visits(self.strategy.participation, records)

    def expect_visits(self, ids: torch.Tensor) -> None:
        """Note whose records the batch has that is handed over next; they are checked when its losses come."""
        if ids.dim() != 1:
            raise NoiseproofError(f"the ids of a batch must be one a record, and not of the shape {tuple(ids.shape)}.")
        self._coming.append(ids.detach().cpu())

    def backward(self, losses: torch.Tensor | None) -> bool:
        """See `BatchGradients.backward`; of a stream a record that comes too early or too often is refused here.

        Raises:
            NoiseproofError: If one does; nothing of the step is released.
        """
        waiting = self.pending
        if self.visits is None or not waiting:
            return super().backward(losses)
        if not self._coming:
            raise NoiseproofError(
                "this training was told whose records a stream's batches have; say it of all of them."
            )
        self.visits.check(torch.cat([*self._here, self._coming[0]]), self.position)
        self._here.append(self._coming[0])
        try:
            return super().backward(losses)
        finally:
            if self.pending < waiting:
                self._coming.popleft()
            else:
                self._here.pop()  # these were not the batch's losses; others may come

    def forget_waiting(self) -> None:
        """See `BatchGradients.forget_waiting`."""
        super().forget_waiting()
        self._coming.clear()
        self._here.clear()

    def declare(self, batches: Iterable[Sequence[int]], records: int) -> list[list[int]]:
        """Note the order in which records come in every epoch: the batches of one epoch, each a step.

        Args:
            batches: The records of each step of an epoch.
            records: How many there are.

        Returns:
            The batches.

        Raises:
            NoiseproofError: If an epoch has a record twice or is shorter than the strategy's separation, or if another
                order was declared before.
        """
        if self.ranks is not ALONE:
            raise UnsupportedError("several ranks cannot share a loader's own order; give `batches` the records.")
        order = [[int(index) for index in batch] for batch in batches]
        places = torch.full((records,), -1, dtype=torch.int64)
        for number, batch in enumerate(order):
            places[batch] = number
        if int((places >= 0).sum()) != sum(map(len, order)):
            raise NoiseproofError("a record came again within one epoch, which the noise does not cover.")
        if len(order) < self.blocks:
            raise NoiseproofError(
                f"an epoch of {len(order)} batches has a record come again after fewer than {self.blocks} steps, which the "
                "noise does not cover."
            )
        if self.strategy.participation.fixed and len(order) != self.blocks:
            raise NoiseproofError(f"the noise is for epochs of {self.blocks} batches, and this one has {len(order)}.")
        self._keep_order(places)
        self.own_order, self.places = True, places
        return order

    def _keep_order(self, places: torch.Tensor) -> None:
        if self.places is not None and not torch.equal(self.places, places):
            raise NoiseproofError(
                "the records come in another order than in the first epoch, so that one may come too early, which the noise "
                "does not cover; use shuffle=False, or one fixed shuffle (a generator with the same seed in every process)."
            )

    def check_turn(self, epoch: int) -> None:
        """Refuse the next step of a declared order, of so many steps an epoch, if its records have come often enough."""
        if self.position // epoch >= self.strategy.participation.most:
            raise NoiseproofError(f"a record was to take part more than {self.strategy.participation.most} times.")

    def epsilon(self, delta: float, *, accountant: str = "pld", neighbours: Neighbours = "add-or-remove") -> float:
        """The epsilon of the steps taken so far; for records in a loader's own order under replace-one alone."""
        if self.own_order and neighbours != "replace-one":
            raise SettingError(
                "records came in a loader's own order, where one more would move all that follow; ask for "
                "neighbours='replace-one'."
            )
        return super().epsilon(delta, accountant=accountant, neighbours=neighbours)

    def person_sampler(self, groups: Groups, records: int, max_records_per_person: int) -> PersonSampler:
        """What draws each step's persons: every person has one place in a round, as every record has otherwise."""
        self.ranks.persons(groups)
        self.unit = "person"
        return CyclicPersons(self, group_array(groups, records, "the training"), max_records_per_person)

    def _sampler(self, records: int, steps: int) -> PoissonSampler:
        participation = self.strategy.participation
        if participation.most < -(-participation.steps // self.blocks):
            raise SettingError(
                f"batches visit every record once in {self.blocks} steps, and the strategy is for {participation.times} "
                f"visits in {participation.steps} steps; make it for more, or draw the records yourself."
            )
        if self.own_order:
            raise NoiseproofError("this training has a loader's own order; go on with that loader.")
        if self.places is None:
            self.places = (self._sampling.uniform((records,)) * self.blocks).long().clamp_(max=self.blocks - 1)
        return CyclicSampler(self, records, steps, self.places)

    def _event(self) -> DpEvent:
        if self.position >= self.strategy.participation.steps:
            raise NoiseproofError(f"all {self.strategy.participation.steps} steps of the strategy have been charged.")
        first = self.position % self.blocks == 0 if self.sample_rate < 1 else self.position == 0
        return sampled_gaussian(self.sample_rate, self.noise_multiplier) if first else NoOpDpEvent()

    def _finish(self) -> torch.Tensor:
        if self.visits is not None:
            self.visits.add(torch.cat(self._here), self.position - 1)
            self._here.clear()
        total = self.ranks.summed(self._take_sum())
        if self._stream is None:
            self._stream = self.strategy.start(total.numel(), total)
        lost = self.position - 1 - self._stream.step  # this step's event has been logged
        if lost < 0:
            raise NoiseproofError("this step of the strategy has been released before; resume a training only once.")
        self._stream.skip(lost)
        sensitivity = self.strategy.sensitivity
        if isinstance(self.strategy, Banded) and self.sample_rate < 1:  # each round is a mechanism of its own
            sensitivity = self.strategy.largest_column
        mechanism = Gaussian(sensitivity * self.max_grad_norm / self.expected_batch, self.noise_multiplier)
        # Rounding to a lattice adds to every sum of gradients: one a step, of a tree up to two.
        scale = mechanism.scale(self._rng, 2 * self.coordinates * self.strategy.participation.steps)

        def noised(query: torch.Tensor) -> torch.Tensor:
            return self.ranks.in_parts(query, lambda part: self._rng.add_gaussian(part, scale, out=part))

        return self._stream.release(total, noised)
