"""`make_private`: an ordinary training loop, which stays as it is, becomes a private one."""

from __future__ import annotations

import functools
import hashlib
import logging
import math
import secrets
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.autograd import Variable
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader, default_collate
from torch.utils.hooks import RemovableHandle

from noiseproof.data.persons import Groups, group_array
from noiseproof.engine.batch_gradients import record_tensors
from noiseproof.engine.correlated import CorrelatedGradients
from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.engine.ranks import ALONE, Ranks, is_sharded, shared_by_ranks
from noiseproof.errors import NoiseproofError, SettingError, UnsupportedError
from noiseproof.integrations.loader import LoopSampler, OrderSampler, convert_loader, inner_loader
from noiseproof.integrations.losses import HalfBatch, RecordLosses
from noiseproof.privacy import Budget, Neighbours, Secure, accountants, calibration
from noiseproof.privacy.events import EventLog
from noiseproof.privacy.factorization import Participation, Strategy, Workload
from noiseproof.privacy.strategies import strategy
from noiseproof.releases.bundles import event_from_json, event_to_json
from noiseproof.run.checkpoints import Journal, JournaledLog

if TYPE_CHECKING:
    from noiseproof.privacy import Randomness
    from noiseproof.privacy.card import Unit
    from noiseproof.releases.release import ModelRelease

_LOGGER = logging.getLogger("noiseproof")

Reduction = Literal["mean", "sum"]
Mechanism = Literal["sgd", "mf"]
"""`sgd`: Poisson samples, fresh noise at every step; `mf`: the loader's own order, noise correlated over the steps."""
Preprocessing = Literal["public", "data"]
"""Whether all that came before the loader (vocabularies, scales, starting weights, settings) depends on no private record."""


class PrivateTraining:
    """A training loop of the user's own, made private; see `make_private`, which makes it.

    Formal guarantee
    ----------------
    That of `PrivateGradients`, or of `CorrelatedGradients.load`, for the steps that were taken, those of earlier processes
    that `load_state_dict` brought along included. Unit: record of the loader's data set, or person where `groups` were
    given. Neighbours: as given, add-or-remove by default. Assumptions: those of `PrivateGradients`; the loop feeds the model
    what the loader handed over; random numbers that the network draws (dropout) come from a generator that nobody else can
    predict, so do not seed torch in a training that counts.
    """

    def __init__(
        self,
        gradients: PrivateGradients,
        optimizers: Sequence[torch.optim.Optimizer],
        loader: DataLoader[Any],
        sampler: LoopSampler | OrderSampler,
        *,
        budget: Budget | None,
        neighbours: Neighbours,
        loss_reduction: Reduction,
        scaler: torch.amp.GradScaler | None,
        ahead: int,
        count: int,
        unit: Unit,
    ) -> None:
        self.gradients, self.optimizers, self.loader = gradients, optimizers, loader
        self.module = gradients.module
        self.budget, self.neighbours = budget, neighbours
        self.stepped = False
        """Whether the optimizers' last `step` took a step; it takes none before the last piece of a step's sample."""
        self._sampler, self._ahead = sampler, ahead
        self._reduction, self._scaler = loss_reduction, scaler
        self._id = secrets.token_hex(8)
        self._elsewhere: dict[str, EventLog] = {}
        """What other processes of this training have spent, by their ids."""
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        """What the network gave for the batch, with its graph, and what the loop was given instead."""
        self._losses_inside = self._called = False
        self._half: HalfBatch | None = None
        self._half_checks = 0
        self._paused = 0
        self._handles: list[RemovableHandle] = []
        self._own_steps: list[tuple[torch.optim.Optimizer, Any]] = []
        self.count, self.unit = count, unit
        """How many records, or persons, all ranks have, and which of them the guarantee is for."""
        self.record_shape: tuple[int, ...] = ()
        """The shape of what the network is given first of a record, once it was; () where records might be padded, since how
        long a batch is then tells how long its longest record is."""
        self._padded = getattr(loader, "collate_fn", None) is not default_collate
        self._guard()

    # ---- what users call ------------------------------------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Steps taken, by this process and those before it."""
        return len(self.events)

    @property
    def events(self) -> EventLog:
        """All that was spent, here and by the processes whose states were loaded."""
        every = EventLog()
        for log in (*self._elsewhere.values(), self.gradients.events):
            for event, count in log.runs:
                every.append(event, count)
        return every

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

    def backward(self, losses: torch.Tensor) -> None:
        """Instead of `loss.backward()`: one loss a record, (records,), not reduced.

        Raises:
            NoiseproofError: If they are not the losses of the batch that the loader handed over.
        """
        expected = self._physical()
        if losses.shape != (expected,):
            raise NoiseproofError(
                f"the batch has {expected} records, but the losses have shape {tuple(losses.shape)}; give one loss a "
                "record (reduction='none')."
            )
        reduction, self._reduction = self._reduction, "sum"
        if self._half is not None:
            self._half.leave()
            self._half = None
        try:
            losses.sum().backward()
        finally:
            self._reduction = reduction

    def paused(self) -> AbstractContextManager[None]:
        """While it lasts, the network is an ordinary one: for public or generated records, never for private ones."""
        return _Paused(self)

    def state_dict(self) -> dict[str, Any]:
        """What was spent, for a checkpoint, beside the model's and the optimizers' own; plain values throughout.

        A state knows every process that it descends from, so that loading an older one forgets nothing that is known here.
        With `mechanism="mf"` it also holds sums of gradients without noise: it is then as private as the records.
        """
        logs = {**self._elsewhere, self._id: self.gradients.events}
        correlated = {"correlated": self.gradients.state()} if isinstance(self.gradients, CorrelatedGradients) else {}
        return {
            **{name: {k: v for k, v in state.items() if k != "events"} for name, state in correlated.items()},
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
        """
        for name in ("sample_rate", "noise_multiplier", "max_grad_norm"):
            if state[name] != getattr(self.gradients, name):
                raise SettingError(f"the state is of a training with {name} {state[name]}; make this one the same.")
        for id, runs in state["spent"].items():
            log = EventLog()
            for event, count in runs:
                log.append(event_from_json(event), count)
            known = self.gradients.events if id == self._id else self._elsewhere.get(id, EventLog())
            if len(log) > len(known):
                self._elsewhere[id] = log
        if isinstance(self.gradients, CorrelatedGradients):
            self.gradients.restore({**state["correlated"], "steps": self.gradients.steps})
        self._count_down()

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
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for optimizer, step in self._own_steps:
            optimizer.step = step  # type: ignore[method-assign]
        self.gradients.close()
        self._sampler.steps = 0
        if isinstance(self.gradients.events, JournaledLog):
            self.gradients.events.close()

    # ---- batches --------------------------------------------------------------------------------------------------

    def hand_over(self, batches: Iterator[Any]) -> Iterator[Any]:
        """The loader's batches, each noted when it is handed to the loop."""
        self._forget()
        try:
            for batch in batches:
                self._settle()
                drawn = self._sampler.drawn.popleft()
                if self.gradients.pending > self._ahead:
                    raise NoiseproofError(
                        "a batch was handed over but no `backward` came before the next; call it once for each batch, "
                        "since what is accounted for must be what ran."
                    )
                tensors = record_tensors(batch, max(drawn.records, 1))
                if not tensors:
                    raise UnsupportedError(
                        f"no tensor of the batch has {max(drawn.records, 1)} records in its first dimension; let the "
                        "collate_fn put one record after the other there."
                    )
                self.gradients.hand_over(tensors, drawn.records, last=drawn.last, owners=drawn.owners)
                yield batch
        except BaseException:  # the loop was left, or has failed: what it did not take stays unused
            self._forget()
            raise

    def _forget(self) -> None:
        self._pairs, self._losses_inside, self._called = [], False, False
        if self._half is not None:
            self._half.leave()
            self._half = None
        self.gradients.forget_waiting()

    def _physical(self) -> int:
        """Records of the batch in hand; an empty sample comes as one record, which counts for nothing."""
        if self.gradients.waiting is None:
            raise NoiseproofError(
                "the network is trained on something that its loader did not hand over; take batches from the loader that "
                "`make_private` was given (with accelerate: the prepared one), one `backward` each."
            )
        return max(self.gradients.waiting, 1)

    # ---- what the loop does to the network -----------------------------------------------------------------------

    def _guard(self) -> None:
        """Put hooks on the network and the optimizers. They are functions, so that copies of the module hold none of this."""
        here = weakref.ref(self)

        def before(module: nn.Module, args: Any, kwargs: Any) -> None:
            training = here()
            if training is not None and module is training.module:
                training._before_forward(args, kwargs)

        def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            training = here()
            if training is None or module is not training.module:
                return output
            return training._after_forward(output)

        def failed(module: nn.Module, args: Any, output: Any) -> None:
            training = here()
            if training is not None and module is training.module:
                training._inside.leave()

        def raw(parameter: torch.Tensor) -> None:
            training = here()
            if training is not None and not training._paused:
                parameter.grad = None
                raise UnsupportedError(
                    "a gradient without noise has come to a parameter: the loss uses parameters outside of the model's "
                    "forward pass (a regularisation, a part called by itself). Use the optimizer's weight_decay, put all of it "
                    "into the model's forward, or compute what is public while `paused()`."
                )

        self._inside = RecordLosses(self._cut_losses)
        self._handles = [
            self.module.register_forward_pre_hook(before, with_kwargs=True, prepend=True),
            self.module.register_forward_hook(after, with_kwargs=True),
            self.module.register_forward_hook(failed, always_call=True),
            *(parameter.register_post_accumulate_grad_hook(raw) for parameter in self.gradients.parameters),
        ]
        self._own_steps = [(optimizer, optimizer.step) for optimizer in self.optimizers]
        for optimizer, own in self._own_steps:
            optimizer.step = MethodType(_private_step(here, own), optimizer)  # type: ignore[method-assign]
        self._planned = self.gradients.most_steps

    def _before_forward(self, args: Any, kwargs: Any) -> None:
        self._settle()
        if self._watches() and self.gradients.waiting is not None:
            records = self._physical()
            if not self.record_shape and not self._padded:
                self.record_shape = next(
                    (tuple(leaf.shape[1:]) for leaf in record_tensors((args, kwargs), records)), ()
                )
            self._inside.enter(records)

    def _after_forward(self, output: Any) -> Any:
        self._inside.leave()
        if not self._watches():
            return output
        if self.gradients.waiting is None:
            if self.module.training and any(_differentiable(leaf) for leaf in tree_leaves(output)):
                self._physical()  # says what is wrong
            return tree_map(_detached, output)  # an evaluation: whatever comes of it stays away from the parameters
        records = self._physical()
        if self._losses_inside:
            # The loss was computed inside, from records' own losses; nothing else may lead back to the parameters.
            return tree_map(
                lambda leaf: _detached(leaf) if isinstance(leaf, torch.Tensor) and leaf.dim() else leaf, output
            )

        def gate(leaf: Any) -> Any:
            if not _differentiable(leaf):
                return leaf
            if leaf.dim() == 0 or len(leaf) != records:
                raise UnsupportedError(
                    f"the network gave an output of shape {tuple(leaf.shape)} for {records} records; its first dimension must "
                    "count them. A loss that the network computes itself must be a torch.nn.functional loss over its batch."
                )
            return self._cut(leaf)

        gated = tree_map(gate, output)
        if (
            self._pairs
            and self._half is None
            and self._reduction == "mean"
            and self._half_checks < _HALF_CHECKS
            and records > 1
        ):
            self._half = HalfBatch(records, [cut for _, cut in self._pairs])
            self._half.enter()
        return gated

    def _watches(self) -> bool:
        return torch.is_grad_enabled() and not self._paused

    def _cut(self, made: torch.Tensor) -> torch.Tensor:
        """A leaf in the place of what the network made: raw gradients go no further than to it."""
        cut = made.detach().requires_grad_()
        cut.register_hook(self._arrived)
        self._pairs.append((made, cut))
        return cut

    def _cut_losses(self, losses: torch.Tensor) -> torch.Tensor:
        self._losses_inside = True
        return self._cut(losses).mean()

    def _arrived(self, gradient: torch.Tensor) -> None:
        if not self._called:
            self._called = True
            Variable._execution_engine.queue_callback(self._finish)

    def _finish(self) -> None:
        """All gradients of a `loss.backward()` have come to where the network's outputs were cut off."""
        pairs, inside, half = self._pairs, self._losses_inside, self._half
        self._pairs, self._losses_inside, self._called = [], False, False
        records = self._physical()
        arrived = [(made, cut.grad) for made, cut in pairs if cut.grad is not None]
        factor = 1.0 if self._reduction == "sum" else float(records)
        if self._scaler is not None:
            factor /= self._scaler.get_scale()
        weights = [_wide(gradient) * factor for _, gradient in arrived]
        if inside:
            weights = _shares(weights)
        elif half is not None:
            self._half_checks += half.check()
        with torch.enable_grad():
            losses = None
            if self.gradients.waiting:
                # With what came back held fixed, the gradients of these are those of the records' own losses.
                parts = [_wide(made) * weight for (made, _), weight in zip(arrived, weights, strict=True)]
                losses = torch.stack([part.reshape(records, -1).sum(1) for part in parts]).sum(0)
            # Autograd will put back what follows operations now; `_settle` ends it later.
            with _disable_current_modes():
                complete = self.gradients.backward(losses)
        if complete and self._scaler is not None:
            for parameter in self.gradients.parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(self._scaler.get_scale())

    def _settle(self) -> None:
        """End what followed operations for the checks of a batch that is done."""
        if self._half is not None and self._half.done:
            self._half.leave()
            self._half = None
        self.gradients.settle()

    def _delta(self, delta: float | None) -> float:
        if delta is None and self.budget is None:
            raise SettingError("this training was given its noise, not a budget; name the delta.")
        return self.budget.delta if delta is None else delta  # type: ignore[union-attr]


_HALF_CHECKS = 3
"""Batches whose loss is also computed for half of the records, to see that it is a mean over them."""


def _private_step(here: Any, own: Any) -> Any:
    taken = 0

    def step(optimizer: torch.optim.Optimizer, closure: Any = None) -> Any:
        nonlocal taken
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        training = here()
        if training is None:
            raise NoiseproofError("the private training of this optimizer is gone; keep what `make_private` returned.")
        training._settle()
        training.stepped = training.gradients.steps > taken
        if training.stepped:
            taken = training.gradients.steps
            own()
        elif not training.gradients.in_step:
            raise NoiseproofError("there is no new private gradient to step with; call `loss.backward()` first.")
        return loss

    # A scheduler that was made before looks for what it has left there.
    return functools.update_wrapper(step, own)


class _Paused:
    def __init__(self, training: PrivateTraining) -> None:
        self._training, self._inner = training, training.gradients.paused()

    def __enter__(self) -> None:
        self._training._paused += 1
        self._inner.__enter__()

    def __exit__(self, *reason: Any) -> None:
        self._training._paused -= 1
        self._inner.__exit__(*reason)


def _differentiable(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.requires_grad


def _detached(leaf: Any) -> Any:
    return leaf.detach() if _differentiable(leaf) else leaf


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _shares(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What each of a network's own losses is multiplied by: its share of the loop's loss, the same for every record.

    Whatever else the loop divides its loss by (labels in the batch, batches of a step) is left out: it is not the record's.
    """
    found = [float(gradient[0]) for gradient in gradients]
    for gradient, share in zip(gradients, found, strict=True):
        if not torch.allclose(gradient, torch.full_like(gradient, share)):
            raise UnsupportedError("the loop weighs losses that the network has averaged; let it weigh none of them.")
    total = math.fsum(found) or 1.0
    return [torch.full_like(gradient, share / total) for gradient, share in zip(gradients, found, strict=True)]


def make_private(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    loader: DataLoader[Any],
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    epochs: int | None = None,
    noise_multiplier: float | None = None,
    max_grad_norm: float = 1.0,
    accumulation_steps: int = 1,
    max_physical_batch_size: int | None = None,
    loss_reduction: Reduction = "mean",
    neighbours: Neighbours = "add-or-remove",
    scaler: torch.amp.GradScaler | None = None,
    seed: int | None = None,
    ranks: Ranks | None = None,
    journal: str | Path | None = None,
    prefetch: int = 0,
    groups: Groups | None = None,
    max_records_per_person: int = 8,
    mechanism: Mechanism = "sgd",
) -> PrivateTraining:
    """Make an ordinary training loop private, which stays as it is: `for batch in loader`, `loss.backward()`, `step()`.

    >>> model = torch.nn.Linear(4, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> data = torch.utils.data.TensorDataset(torch.randn(100, 4), torch.randint(2, (100,)))
    >>> loader = DataLoader(data, batch_size=10, shuffle=True)
    >>> engine = make_private(model, optimizer, loader, epsilon=3, delta=1e-5, epochs=2)
    >>> for epoch in range(2):
    ...     for x, y in loader:
    ...         optimizer.zero_grad()
    ...         loss = torch.nn.functional.cross_entropy(model(x), y)
    ...         loss.backward()
    ...         optimizer.step()
    >>> engine.epsilon() <= 3
    True

    From now on the loader, changed in place, hands over Poisson samples of its data set, by its own workers and collate_fn,
    with its batch size as the expected one. (A sample without records comes as one record that counts for nothing.) What the
    model gives is cut off from it: `loss.backward()` brings each record's gradient up to there, and from there on it is
    clipped, summed and noised once, so that no gradient without noise is ever in `.grad`. The optimizer's `step` takes a step
    when a whole sample has come, and refuses where there is no new private gradient.

    Args:
        model: The network; also inside DistributedDataParallel or from `torch.compile` (training steps are then not compiled).
        optimizer: Its optimizer, or several; what they do to noised gradients is theirs.
        loader: A `DataLoader` of a map-style data set with a batch size.
        epsilon: What `epochs` epochs may spend at `delta`; further steps are refused. Instead of `noise_multiplier`.
        delta: See `epsilon`.
        epochs: How often the loader will be run through.
        noise_multiplier: The noise, where there is no `epsilon`.
        max_grad_norm: The L2 norm that each record's gradient is clipped to.
        accumulation_steps: Batches whose gradients the loop adds up before it steps; they are pieces of one sample then.
            Do not divide the loss by their number: records are clipped one by one.
        max_physical_batch_size: The most records that the loader hands over at once, for bounded memory; a step's sample then
            comes in as many pieces as it needs, and `step` does nothing before the last (`engine.stepped` tells).
        loss_reduction: Whether the loop's loss is the `mean` or the `sum` of its records' losses. A loss that the model
            computes itself (Hugging Face) becomes the mean of the records' own means.
        neighbours: When two data sets are neighbours.
        scaler: The `GradScaler` of a loop that uses one.
        seed: For research: reproducible randomness, so that a release is a rehearsal.
        ranks: The processes that share the training; found by itself for DistributedDataParallel.
        journal: A file in which every step is noted before its gradient exists, so that not even a crash, or a second
            process that goes on from the same checkpoint, forgets what was spent.
        prefetch: How many batches a framework takes from the loader before it trains on them.
        groups: Whose each record of the loader's data set is, an id a record. The unit is then a person with all their
            records: persons are sampled, the loader's batch size is the expected number of persons, and clipped is the mean
            of a person's gradients.
        max_records_per_person: With `groups`, how many records of a person a step takes at most, chosen uniformly.
        mechanism: `mf` leaves the loader its own order (`shuffle=False`, or the shuffle that it draws now, in every epoch)
            and correlates the noise over the steps, see `CorrelatedGradients`; for `neighbours="replace-one"` and
            `epochs` known beforehand. Nothing rests on sampling then.

    Returns:
        The engine: `epsilon()`, `state_dict()`, `release()`.

    Raises:
        SettingError: If the settings do not go together, or an optimizer has parameters that are not the model's.
        UnsupportedError: If the loader or the network cannot be made private; the message says what can be done.

    Formal guarantee
    ----------------
    That of `PrivateTraining`, at the noise with which `epochs` epochs of steps spend (epsilon, delta).
    """
    from noiseproof.privacy import Reproducible

    if mechanism == "mf" and (epochs is None or neighbours != "replace-one"):
        raise SettingError(
            "mechanism='mf' needs the number of epochs, and neighbours='replace-one': in a loader's own order one record "
            "more would move all that follow."
        )

    if (epsilon is None) == (noise_multiplier is None) or (epsilon is not None and (delta is None or epochs is None)):
        raise SettingError("give epsilon with delta and epochs, or noise_multiplier.")
    if accumulation_steps < 1 or (max_physical_batch_size is not None and max_physical_batch_size < 1):
        raise SettingError("accumulation_steps and max_physical_batch_size must be 1 or more.")
    optimizers = [
        getattr(one, "optimizer", one) for one in (optimizer if isinstance(optimizer, Sequence) else [optimizer])
    ]
    if any(isinstance(one, torch.optim.LBFGS) for one in optimizers):
        raise UnsupportedError(
            "LBFGS looks at a batch several times a step, each of which would have to be paid for; use SGD or Adam."
        )
    model = _eager_in_training(model)
    own = {id(parameter) for parameter in model.parameters()}
    if any(
        id(parameter) not in own for one in optimizers for group in one.param_groups for parameter in group["params"]
    ):
        raise SettingError(
            "an optimizer has parameters that are not the model's, which would be updated without noise."
        )
    inner = inner_loader(loader)
    if ranks is None:
        ranks = _ranks_of(model)
    if max_physical_batch_size is not None and is_sharded(model):
        raise UnsupportedError(
            "the ranks of a sharded network must run it equally often, but a sample may come in more pieces on one than on "
            "another; bound what is in memory by accumulation_steps instead of max_physical_batch_size."
        )
    records = len(inner.dataset)  # type: ignore[arg-type]
    numbers = None if groups is None else group_array(groups, records, "the loader's data set")
    count = ranks.records(records if numbers is None else int(numbers.max()) + 1)
    batch_size = (inner.batch_size or 1) * accumulation_steps * ranks.size
    rate = min(1.0, batch_size / count)
    steps = math.ceil(1 / rate)
    budget = None if epsilon is None else Budget(epsilon, delta or 0.0, neighbours)
    if noise_multiplier is None:
        assert budget is not None
        assert epochs is not None
        mechanisms = (1.0, 1) if mechanism == "mf" else (rate, epochs * steps)
        noise_multiplier = calibration.sigma(budget.epsilon, budget.delta, *mechanisms, neighbours=neighbours).sigma
    rng: Randomness = Secure() if seed is None else Reproducible(seed)
    clipped: dict[str, Any] = {"max_grad_norm": max_grad_norm, "noise_multiplier": noise_multiplier, "rng": rng}
    gradients: PrivateGradients
    sampler: LoopSampler | OrderSampler
    if mechanism == "mf":
        if ranks is not ALONE or groups is not None:
            raise UnsupportedError(
                "neither several ranks nor persons can share a loader's own order; take mechanism='sgd', or one process."
            )
        assert epochs is not None
        steps = math.ceil(len(inner.batch_sampler) / accumulation_steps)  # type: ignore[arg-type]
        gradients = CorrelatedGradients(model, _strategy(optimizers, epochs, steps), sample_rate=1.0, **clipped)
        gradients.expected_batch = float(batch_size)
        sampler = OrderSampler(inner, gradients, pieces=accumulation_steps, most=max_physical_batch_size)
    else:
        gradients = PrivateGradients(model, sample_rate=rate, **clipped)
        if ranks is not ALONE:
            gradients.join(ranks)
        gradients.expected_batch = rate * count
        gradients.most_steps = None if epochs is None else epochs * steps
        sampler = LoopSampler(
            records,
            rate,
            steps,
            gradients.randomness[0],
            ranks,
            pieces=accumulation_steps,
            most=max_physical_batch_size,
            persons=None if groups is None else gradients.person_sampler(groups, records, max_records_per_person),
        )
    training = PrivateTraining(
        gradients,
        optimizers,
        loader,
        sampler,
        budget=budget,
        neighbours=neighbours,
        loss_reduction=loss_reduction,
        scaler=scaler,
        ahead=prefetch + (inner is not loader),
        count=count,
        unit="record" if groups is None else "person",
    )
    if journal is not None and ranks.rank == 0:
        training.keep_journal(Path(journal))
    convert_loader(inner, sampler, training)
    batches = (
        f"keeps one order of its {count} records for all {epochs} epochs"
        if mechanism == "mf"
        else f"draws Poisson samples of about {batch_size} of {count} {training.unit}s in place of its batches, {steps} an epoch"
    )
    _LOGGER.warning(
        "noiseproof.make_private: the loader now %s; noise multiplier %.4g, clipping norm %g.",
        batches,
        noise_multiplier,
        max_grad_norm,
    )
    return training


def _strategy(optimizers: Sequence[torch.optim.Optimizer], epochs: int, steps: int) -> Strategy:
    """Of dp-mf's default kind, for so many epochs of so many steps with the optimizer's momentum."""
    momenta = {group.get("momentum", 0.0) for optimizer in optimizers for group in optimizer.param_groups}
    participation = Participation(epochs * steps, epochs, steps)
    return strategy(
        "banded", participation, bands=min(16, steps), workload=Workload(momenta.pop() if len(momenta) == 1 else 0.0)
    )


def _eager_in_training(model: nn.Module) -> nn.Module:
    """The network inside one of `torch.compile`, which is run as it is where gradients are wanted.

    A compiled graph has no layers any more whose gradients could be told apart; evaluations stay compiled.
    """
    eager = getattr(model, "_orig_mod", None)
    if not isinstance(eager, nn.Module):
        return model
    compiled = model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        return eager(*args, **kwargs) if torch.is_grad_enabled() else compiled(*args, **kwargs)

    model.forward = forward
    return eager


def _ranks_of(model: nn.Module) -> Ranks:
    if not shared_by_ranks(model):
        return ALONE
    from noiseproof.run.distributed import Group

    return Group()
