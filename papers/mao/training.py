"""Training a collection of convolutional networks one by one, each kept in a file of its own, so that there can be more later."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import nn

from noiseproof.data import Dataset
from noiseproof.errors import SettingError
from noiseproof.files import write_whole
from noiseproof.methods.parameters import Collection
from noiseproof.methods.parameters.collection import ParameterLayout
from noiseproof.networks import Network, Training
from noiseproof.parallel import tasks
from noiseproof.releases.release import describe_network
from papers.mao.plans import Precision


def train_one(
    network: Network,
    dataset: Dataset,
    training: Training,
    *,
    seed: int,
    row: int,
    path: Path,
    precision: Precision,
    stages: Sequence[int] | None = None,
    start: int | None = None,
) -> dict[int, torch.Tensor]:
    """One network's parameters after so many epochs, kept in a file of its own: what is there is not trained again.

    With bfloat16 products and convolutions run under torch's autocast; weights, their updates and losses stay float32. It
    takes some 40% of float32's time on processors that have such products, and twice that time on others. What is rounded
    differs, so that the same seed gives another network.

    Args:
        network: The architecture.
        dataset: The private records.
        training: Batch size, rate and momentum of SGD, and the epochs where there are no `stages`.
        seed: Of all networks of a collection.
        row: Which of them; its shuffles and dropout follow from seed and row.
        path: Where it is kept.
        precision: Of products and convolutions.
        stages: Epochs after which parameters are wanted, rising.
        start: Seed of the initial weights; `seed` if None.

    Returns:
        The parameters by stage.
    """
    stages = (training.epochs,) if stages is None else stages
    rest = {name: value for name, value in asdict(training).items() if name not in ("loss", "epochs")}
    belongs = json.dumps(
        [dataset.fingerprint(), describe_network(network), rest, seed, start, precision], sort_keys=True
    )
    kept: set[int] = set()
    if path.exists():
        with safe_open(path, "pt") as file:
            if file.metadata()["belongs"] != belongs:
                raise SettingError(f"{path} is a network from other records or settings; choose another folder.")
            kept = set(map(int, file.keys()))
            if kept >= set(stages):
                return {stage: file.get_tensor(str(stage)) for stage in stages}
    # A training passes through the same stages whichever of them are kept.
    wanted = sorted(kept | set(stages))
    module = network.build(seed if start is None else start)
    found = _train(module, dataset, training, wanted, seed << 16 | row, precision == "bfloat16")
    write_whole(path, save({str(stage): vector for stage, vector in found.items()}, {"belongs": belongs}))
    return {stage: found[stage] for stage in stages}


def train_stages(
    network: Network,
    dataset: Dataset,
    models: int,
    training: Training,
    *,
    seed: int,
    path: Path,
    precision: Precision,
    stages: Sequence[int] | None = None,
    workers: int = 1,
) -> dict[int, Collection]:
    """The collections of `models` networks from one start, by stage; files are named after `path` (see `train_one`)."""
    layout = ParameterLayout.of(network.build())
    common = (network, dataset, training, {"seed": seed, "precision": precision, "stages": stages}, path)
    found = dict(tasks.run(_row, range(models), common=common, jobs=workers))
    rows = [found[row] for row in range(models)]
    return {stage: Collection(torch.stack([row[stage] for row in rows]), layout) for stage in rows[0]}


def _row(
    network: Network, dataset: Dataset, training: Training, options: Mapping[str, Any], path: Path, row: int
) -> dict[int, torch.Tensor]:
    return train_one(network, dataset, training, row=row, path=numbered(path, row), **options)


def numbered(path: Path, row: int) -> Path:
    """The file of one network of many."""
    return path.with_name(f"{path.name}-{row}.safetensors")


def _train(
    module: nn.Module, dataset: Dataset, training: Training, stages: Sequence[int], seed: int, rounded: bool
) -> dict[int, torch.Tensor]:
    # oneDNN's convolutions are fastest with channels last.
    module.train().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(module.parameters(), lr=training.lr, momentum=training.momentum, fused=True)
    layout, found = ParameterLayout.of(module), {}
    with torch.random.fork_rng([]):  # dropout draws from torch's own generator
        torch.manual_seed(seed)
        for epoch in range(max(stages)):
            for batch in torch.randperm(len(dataset)).split(training.batch_size):
                records = dataset.features[batch].contiguous(memory_format=torch.channels_last)
                with torch.autocast("cpu", torch.bfloat16, enabled=rounded):
                    logits = module(records)
                loss = nn.functional.cross_entropy(logits.float(), dataset.labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            if epoch + 1 in stages:
                found[epoch + 1] = layout.flatten(module)
    return found
