"""`make_private`: an ordinary training loop, which stays as it is, becomes a private one."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from noiseproof.data.persons import Groups, group_array
from noiseproof.engine import CorrelatedGradients, PrivateGradients
from noiseproof.engine.ranks import ALONE, Ranks, is_sharded, shared_by_ranks
from noiseproof.errors import SettingError, UnsupportedError
from noiseproof.integrations.loader import LoopSampler, OrderSampler, convert_loader, inner_loader
from noiseproof.integrations.streams import Ids, Plan, StreamSampler, plan
from noiseproof.integrations.training import PrivateTraining
from noiseproof.integrations.watch import Reduction
from noiseproof.privacy import Budget, Neighbours, Reproducible, Secure, calibration
from noiseproof.privacy.factorization import Participation, Strategy, Workload
from noiseproof.privacy.strategies import strategy

if TYPE_CHECKING:
    from noiseproof.privacy import Randomness

_LOGGER = logging.getLogger("noiseproof")

Mechanism = Literal["sgd", "mf"]
"""`sgd`: Poisson samples, fresh noise at every step; `mf`: the loader's own order, noise correlated over the steps."""


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
    records: int | None = None,
    ids: Ids | None = None,
) -> PrivateTraining:
    """Make an ordinary training loop private, which stays as it is: `for batch in loader`, `loss.backward()`, `step()`.

    Examples:
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
        loader: A `DataLoader` with a batch size, of a map-style data set; with `mechanism="mf"` also of an iterable one.
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
        records: How many records an iterable data set gives in each of its `epochs` passes, each of them once.
        ids: From a batch of an iterable data set to the ids of its records, 0 to `records` - 1. Without them a record's place
            in the stream is its id: each pass must then give the same records in the same order (which is checked), by at
            most one worker.

    Returns:
        The engine: `epsilon()`, `state_dict()`, `release()`.

    Raises:
        SettingError: If the settings do not go together, or an optimizer has parameters that are not the model's.
        UnsupportedError: If the loader or the network cannot be made private; the message says what can be done.

    Formal guarantee
    ----------------
    That of `PrivateTraining`, at the noise with which `epochs` epochs of steps spend (epsilon, delta).
    """
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
    inner = inner_loader(loader, as_they_come=mechanism == "mf")
    stream = isinstance(inner.dataset, IterableDataset)
    if not stream and (records, ids) != (None, None):
        raise SettingError(
            "`records` and `ids` are for iterable data sets; those of a map-style one are seen by themselves."
        )
    if ranks is None:
        ranks = _ranks_of(model)
    if max_physical_batch_size is not None and is_sharded(model):
        raise UnsupportedError(
            "the ranks of a sharded network must run it equally often, but a sample may come in more pieces on one than on "
            "another; bound what is in memory by accumulation_steps instead of max_physical_batch_size."
        )
    planned = plan(inner, records, ids, accumulation_steps) if stream else None
    records = records if stream else len(inner.dataset)  # type: ignore[arg-type]
    assert records is not None
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
    sampler: LoopSampler | OrderSampler | StreamSampler
    if mechanism == "mf":
        if ranks is not ALONE:
            raise UnsupportedError(
                "several ranks cannot share a loader's own order; take mechanism='sgd', or one process."
            )
        if groups is not None:
            raise UnsupportedError(
                "a loader's own order has a person's records in several batches of an epoch, which the noise does not cover; "
                "take mechanism='sgd', or dp-mf by `train` or by `CorrelatedGradients.batches(groups=)`, which place persons."
            )
        assert epochs is not None
        pieces: dict[str, Any] = {"pieces": accumulation_steps, "most": max_physical_batch_size}
        if planned is None:
            steps = math.ceil(len(inner.batch_sampler) / accumulation_steps)  # type: ignore[arg-type]
            planned = Plan(steps, steps)
        participation = Participation(epochs * planned.most, epochs, planned.steps)
        gradients = CorrelatedGradients(model, _strategy(optimizers, participation), sample_rate=1.0, **clipped)
        gradients.expected_batch = float(batch_size)
        if stream:
            sampler = StreamSampler(inner, gradients, planned, records=records, ids=ids, passes=epochs, **pieces)
        else:
            sampler = OrderSampler(inner, gradients, **pieces)
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


def _strategy(optimizers: Sequence[torch.optim.Optimizer], participation: Participation) -> Strategy:
    """Of dp-mf's default kind, with the optimizer's momentum."""
    momenta = {group.get("momentum", 0.0) for optimizer in optimizers for group in optimizer.param_groups}
    bands = min(16, participation.separation)
    return strategy(
        "banded", participation, bands=bands, workload=Workload(momenta.pop() if len(momenta) == 1 else 0.0)
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
