"""Training a collection: M networks from one start, as one batched network or one after another, kept as they are done."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from noiseproof.data import Dataset
from noiseproof.errors import SettingError
from noiseproof.methods.parameters.collection import Collection, ParameterLayout
from noiseproof.networks import Network, StackedNetwork, Training, fit_stack
from noiseproof.networks.fitting import TOGETHER
from noiseproof.parallel import tasks
from noiseproof.parallel.tasks import spread_out
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import describe_network
from noiseproof.tensors import default_device, seeded_generator

_TOGETHER = 1 << 24
"""Parameters that are trained together: dense networks gain from it until they no longer fit a cache."""


def train_collection(
    network: Network,
    dataset: Dataset,
    models: int,
    training: Training,
    *,
    seed: int = 0,
    shards: Sequence[torch.Tensor] | None = None,
    start: Collection | None = None,
    path: Path | None = None,
    workers: int = 1,
    progress: Progress = SILENT,
) -> Collection:
    """Train `models` networks from the one start `network.build(seed)`; only order of batches and dropout differ.

    With different starts hidden units would be permuted, and a coordinate would mean something else in each network.
    Dense networks are trained as one, others one after another or in `workers` processes; in a `placed` block a few at a
    time, where that says.

    Args:
        network: The architecture.
        dataset: The private records.
        models: How many networks, at least 2.
        training: Epochs, batch size, optimizer and loss of each.
        seed: Of the common start, and of each network's shuffles and dropout.
        shards: The indices of the records that each network is trained on (on none, it stays as it started); None trains
            all on all records.
        start: Each network's own start instead: a collection to be trained further.
        path: A file that keeps the rows as they are finished; if it holds some of them already, it is completed.
        workers: Processes for networks that cannot be trained as one.
        progress: Where to report networks that are done.

    Returns:
        The networks, a row each; memory-mapped where there is a `path`.

    Raises:
        SettingError: If numbers or `start` do not fit, or the file is of other records or settings.
        NoiseproofError: If the file is not a whole collection.

    Formal guarantee
    ----------------
    None: nothing is noised, and the networks are to be kept on the trusted side. Row j depends on no records but its
    shard's, and that not on how many networks there are.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> network = npf.Network("linear", (4,), 2)
        >>> training = npf.networks.Training(epochs=1, optimizer="sgd", lr=0.1)
        >>> collection = train_collection(network, records, 3, training)
        >>> len(collection), collection.parameters
        (3, 10)
    """
    if models < 2 or workers < 1:
        raise SettingError(f"a collection needs at least 2 networks and 1 worker, not {models} and {workers}.")
    module = network.build(seed)
    layout = ParameterLayout.of(module)
    if start is not None and (start.layout != layout or len(start) != models):
        raise SettingError("the start must be a collection of as many networks of the same architecture.")
    if shards is not None and len(shards) != models:
        raise SettingError(f"{models} networks need as many shards, not {len(shards)}.")
    if path is None:
        collection = Collection(torch.empty(models, layout.size), layout, torch.zeros(models, dtype=torch.uint8))
    else:
        belongs = _belongs(network, dataset, models, training, seed, shards, start)
        if path.exists():
            collection = Collection.open(path, writable=True, belongs=belongs)
        else:
            collection = Collection.create(path, models, layout, belongs)
    assert collection.done is not None
    first = layout.flatten(module)
    everyone = torch.arange(len(dataset))
    seeds = torch.randint(2**62, (models,), generator=seeded_generator(seed)).tolist()
    if seed >> 63:  # of a secure run: each as long as the first
        seeds = [seed << 62 | own for own in seeds]
    todo = [j for j in range(models) if not collection.done[j]]
    together = max(1, _TOGETHER // layout.size) if _dense(module) else 1
    if spread_out():
        together = min(together, TOGETHER)
    jobs: list[_Job] = []
    for begin in range(0, len(todo), together):
        group = todo[begin : begin + together]
        starts = torch.stack([first if start is None else start.rows[j] for j in group])
        members = [everyone if shards is None else shards[j] for j in group]
        jobs.append((group, starts, members, [seeds[j] for j in group]))
    with progress.task("training networks", models) as task:
        task.advance(models - len(todo))
        for group, rows in _run(network, dataset, training, jobs, workers):
            # The row first, then that it is done: what is interrupted in between is trained again.
            collection.rows[group] = rows
            collection.done[group] = 1
            task.advance(len(group))
    return collection


_Job = tuple[list[int], torch.Tensor, list[torch.Tensor], list[int]]
"""Which networks, their starts, their records, their seeds."""


def _run(
    network: Network, dataset: Dataset, training: Training, jobs: Sequence[_Job], workers: int
) -> Iterator[tuple[list[int], torch.Tensor]]:
    if not spread_out() and workers == 1:
        for job in jobs:
            yield job[0], _train(network, dataset, training, job)
        return
    chosen = None if spread_out() else workers
    for place, rows in tasks.run(_train, jobs, common=(network, dataset, training), jobs=chosen):
        yield jobs[place][0], rows


def _train(network: Network, dataset: Dataset, training: Training, job: _Job) -> torch.Tensor:
    """The rows of one job after their training."""
    _, begin, members, seeds = job
    taught = [place for place, records in enumerate(members) if len(records)]
    rows = begin.clone()
    if taught and training.epochs:
        layout = ParameterLayout.of(network.build())
        device = default_device()
        trained = fit_stack(
            network,
            dataset.features.to(device),
            dataset.labels.to(device),
            [members[place] for place in taught],
            training,
            seeds=[seeds[place] for place in taught],
            start=StackedNetwork(network, layout.unflatten(begin[taught])),
        ).to("cpu")
        rows[taught] = torch.cat([trained.parameters[name].flatten(1) for name, _ in layout.tensors], dim=1)
    return rows


_DENSE = (nn.Sequential, nn.Flatten, nn.Linear, nn.Dropout, nn.LayerNorm)
_ACTIVATIONS = (nn.Tanh, nn.ReLU, nn.ELU, nn.GELU, nn.Sigmoid, nn.Softplus)


def _dense(module: nn.Module) -> bool:
    """Whether batched products carry the network, so that many cost little more than one."""
    return all(isinstance(layer, _DENSE + _ACTIVATIONS) for layer in module.modules())


def _belongs(
    network: Network,
    dataset: Dataset,
    models: int,
    training: Training,
    seed: int,
    shards: Sequence[torch.Tensor] | None,
    start: Collection | None,
) -> dict[str, Any]:
    cut = None
    if shards is not None:
        cut = _digest(torch.cat([*shards, torch.tensor([len(records) for records in shards])]))
    return {
        "records": dataset.fingerprint(),
        "network": describe_network(network),
        "models": models,
        "training": [getattr(training, name) for name in ("epochs", "batch_size", "lr", "optimizer", "momentum", "l2")],
        "seed": seed,
        "shards": cut,
        "start": None if start is None else _digest(start.rows),
    }


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
