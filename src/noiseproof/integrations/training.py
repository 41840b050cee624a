"""`PrivateTraining`: what a loop that was made private has spent, and what leaves it."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from noiseproof.engine.correlated import CorrelatedGradients
from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.integrations.streams import STATED, StreamSampler
from noiseproof.integrations.watch import WatchedLoop
from noiseproof.privacy import Budget, EventLog, Neighbours, accountants
from noiseproof.privacy.events import event_from_json, event_to_json
from noiseproof.run.journal import Journal, JournaledLog

if TYPE_CHECKING:
    from noiseproof.privacy.card import Unit
    from noiseproof.releases.release import ModelRelease

Preprocessing = Literal["public", "data"]
"""Whether all that came before the loader (vocabularies, scales, starting weights, settings) depends on no private record."""


class PrivateTraining(WatchedLoop):
    """A training loop of the user's own, made private; see `make_private`, which makes it.

    Args:
        *watched: The private gradients, the optimizers, the loader and its sampler.
        budget: What the training may spend; None where it was given its noise instead.
        neighbours: When two data sets are neighbours.
        count: How many records, or persons, all ranks have.
        unit: Which of them the guarantee is for: `record` or `person`.
        **options: How the loop's loss is reduced, its `GradScaler`, and how many batches are taken ahead.

    Examples:
        >>> import torch
        >>> from noiseproof import make_private
        >>> model = nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> data = torch.utils.data.TensorDataset(torch.randn(100, 4), torch.randint(2, (100,)))
        >>> loader = torch.utils.data.DataLoader(data, batch_size=10)
        >>> engine = make_private(model, optimizer, loader, epsilon=3, delta=1e-5, epochs=1)
        >>> for x, y in loader:
        ...     optimizer.zero_grad()
        ...     nn.functional.cross_entropy(model(x), y).backward()
        ...     optimizer.step()
        >>> engine.steps, engine.epsilon() <= 3
        (10, True)
        >>> engine.release(preprocessing="public").card.verdict
        'proven'

    Formal guarantee
    ----------------
    That of `PrivateGradients`, or of `CorrelatedGradients.load`, for the steps that were taken, those of earlier processes
    that `load_state_dict` brought along included. Unit: record of the loader's data set, or person where `groups` were
    given. Neighbours: as given, add-or-remove by default. Assumptions: those of `PrivateGradients`; the loop feeds the model
    what the loader handed over; random numbers that the network draws (dropout) come from a generator that nobody else can
    predict, so do not seed torch in a training that counts.
    """

    def __init__(
        self, *watched: Any, budget: Budget | None, neighbours: Neighbours, count: int, unit: Unit, **options: Any
    ) -> None:
        super().__init__(*watched, **options)
        self.budget, self.neighbours = budget, neighbours
        self.count, self.unit = count, unit
        """How many records, or persons, all ranks have, and which of them the guarantee is for."""
        self._id = secrets.token_hex(8)
        self._elsewhere: dict[str, EventLog] = {}
        """What other processes of this training have spent, by their ids."""
        self._planned = self.gradients.most_steps

    @property
    def steps(self) -> int:
        """Steps taken, by this process and those before it."""
        return len(self.events)

    @property
    def stated(self) -> tuple[str, ...]:
        """What the guarantee takes from whoever began the training, besides what every loop's does."""
        return (STATED,) if isinstance(self._sampler, StreamSampler) else ()

    @property
    def events(self) -> EventLog:
        """All that was spent, here and by the processes whose states were loaded."""
        logs = (*self._elsewhere.values(), self.gradients.events)
        return EventLog(run for log in logs for run in log.runs)

    def epsilon(self, delta: float | None = None, *, accountant: str = "pld") -> float:
        """The epsilon of the steps taken so far; reading it changes nothing.

        Args:
            delta: Where the budget's is not meant.
            accountant: A name of `noiseproof.privacy.accountants`.

        Returns:
            The epsilon at `delta`, under this training's neighbours.
        """
        terms = {"accountant": accountant, "neighbours": self.neighbours}
        return accountants.epsilon(self.events.event, self._delta(delta), **terms).epsilon

    def state_dict(self) -> dict[str, Any]:
        """What was spent, for a checkpoint, beside the model's and the optimizers' own; plain values throughout.

        A state knows every process that it descends from, so that loading an older one forgets nothing that is known here.
        With `mechanism="mf"` it also holds sums of gradients without noise: it is then as private as the records.
        """
        logs = {**self._elsewhere, self._id: self.gradients.events}
        correlated = {"correlated": self.gradients.state()} if isinstance(self.gradients, CorrelatedGradients) else {}
        stream = {"stream": self._sampler.state()} if isinstance(self._sampler, StreamSampler) else {}
        return {
            **stream,
            **{name: {k: v for k, v in state.items() if k != "spent"} for name, state in correlated.items()},
            "spent": {
                id: [[event_to_json(event), count] for event, count in log.runs] for id, log in logs.items() if len(log)
            },
            "sample_rate": self.gradients.sample_rate,
            "noise_multiplier": self.gradients.noise_multiplier,
            "max_grad_norm": self.gradients.max_grad_norm,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, in a new process or after going back: what either side has spent stays spent.

        Args:
            state: What `state_dict` gave.

        Raises:
            SettingError: If it is of a training with other noise, clipping or sampling.
            NoiseproofError: If it is another process's state of a training with `mechanism="mf"`, and this one does not have
                its journal: a second process that goes on from it would release steps that the first has released.
        """
        for name in ("sample_rate", "noise_multiplier", "max_grad_norm"):
            if state[name] != getattr(self.gradients, name):
                raise SettingError(f"the state is of a training with {name} {state[name]}; make this one the same.")
        if isinstance(self.gradients, CorrelatedGradients):
            self._check_journal(state["spent"])
        for id, runs in state["spent"].items():
            log = EventLog((event_from_json(event), count) for event, count in runs)
            known = self.gradients.events if id == self._id else self._elsewhere.get(id, EventLog())
            if len(log) > len(known):
                self._elsewhere[id] = log
        if isinstance(self.gradients, CorrelatedGradients):
            self.gradients.restore({**state["correlated"], "steps": self.gradients.steps})
        if isinstance(self._sampler, StreamSampler):
            self._sampler.restore(state["stream"])
        self._count_down()

    def _check_journal(self, spent: Mapping[str, Any]) -> None:
        before = sum(count for id, runs in spent.items() if id != self._id for _, count in runs)
        kept = len(self.gradients.events) if isinstance(self.gradients.events, JournaledLog) else 0
        if before > kept:
            raise NoiseproofError(
                "a training with correlated noise goes on in another process only with the journal that it was begun with "
                "(`journal=`), since two that go on from one checkpoint would release the same steps twice."
            )

    def keep_journal(self, file: Path) -> None:
        """Note every step from now on in a file, before its gradient exists; what is in it already has been spent."""
        journal = Journal(file)
        # Whoever writes to one journal is one process to states: all that any of them has spent is in the file.
        self._id = f"journal-{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:16]}"
        self.gradients.events = JournaledLog(journal, journal.spends())
        self._count_down()

    def _count_down(self) -> None:
        """Leave as many steps as were planned, less those that were ever taken."""
        if isinstance(self.gradients, CorrelatedGradients):
            self.gradients.offset = -sum(map(len, self._elsewhere.values()))
        if self._planned is not None:
            self.gradients.most_steps = max(0, self._planned - len(self.events) + self.gradients.steps)

    def release(
        self,
        *,
        delta: float | None = None,
        preprocessing: Preprocessing | None = None,
        classes: Iterable[str] = (),
        notes: Iterable[str] = (),
        shape: tuple[int, ...] | None = None,
        module: nn.Module | None = None,
    ) -> ModelRelease:
        """The network as it is now, with the card of what ran; `save` writes its bundle.

        Args:
            delta: Where the budget's is not meant, or there is no budget.
            preprocessing: `public` declares that nothing before the loader was made from the private records: no
                vocabulary, scale, starting weight or setting. Otherwise nothing is proven, and the card says why.
            classes: The names of the outputs, where they are classes.
            notes: What a reader of the card must know besides.
            shape: The public shape of a record, as the network is given it. Needed where the loader has a collate_fn of its
                own, which may pad records: how long they are is private, and nothing is stated then.
            module: Where the network is sharded: one of the same architecture that is not, to hold its weights. All ranks
                must come here then.

        Returns:
            The release. Load its bundle by `load_bundle(path, module=...)` with a module of the same architecture.

        Formal guarantee
        ----------------
        The class's, stated on the card as `train` states it.
        """
        from noiseproof.integrations.release import release_of

        given = {"preprocessing": preprocessing, "classes": tuple(classes), "notes": tuple(notes), "module": module}
        return release_of(self, self._delta(delta), self.record_shape if shape is None else shape, **given)  # type: ignore[arg-type]

    def close(self) -> None:
        """Take everything off the model, the optimizers and the loader's batches: they are ordinary again, the loader empty."""
        super().close()
        if isinstance(self.gradients.events, JournaledLog):
            self.gradients.events.close()

    def _delta(self, delta: float | None) -> float:
        if delta is None and self.budget is None:
            raise SettingError("this training was given its noise, not a budget; name the delta.")
        return self.budget.delta if delta is None else delta  # type: ignore[union-attr]


class TrainedWithin:
    """What a foreign trainer gets of the private training inside it, its `engine`."""

    engine: PrivateTraining | None = None

    def epsilon(self, delta: float | None = None) -> float:
        """The epsilon of the steps taken so far; see `PrivateTraining.epsilon`."""
        return self._training.epsilon(delta)

    def release(self, *, preprocessing: Preprocessing | None = None, **options: Any) -> ModelRelease:
        """The trained network with its card; see `PrivateTraining.release`."""
        return self._training.release(preprocessing=preprocessing, **options)

    @property
    def _training(self) -> PrivateTraining:
        if self.engine is None:
            raise NoiseproofError("nothing has been trained yet; train first.")
        return self.engine
