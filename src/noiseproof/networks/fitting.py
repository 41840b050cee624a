"""Fitting many networks at once without privacy: shadow models, teachers, collections."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import nn

from noiseproof.errors import DataError, SettingError
from noiseproof.networks.network import Network
from noiseproof.networks.stacked import StackedNetwork
from noiseproof.parallel import tasks
from noiseproof.parallel.tasks import spread_out
from noiseproof.progress import SILENT, Progress
from noiseproof.settings import BelowOne, Count, NonNegative, Positive, check_fields
from noiseproof.tensors import default_device, seeded_generator

StackedLoss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""(k, batch, classes) logits, (k, batch) labels, (k, batch) shares -> (k,) losses.

A record's share is 1 / (its network's batch size), and 0 where a network's batch is shorter than the others', so that
`(losses * shares).sum(1)` is a mean."""

# Shuffles and dropout must not replay the numbers that initialised the weights from the same seed.
_SHUFFLES = 0x5DEECE66D


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """Each network's mean cross-entropy over its batch."""
    losses = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return (losses.view_as(shares) * shares).sum(1)


@dataclass(frozen=True)
class Training:
    """How networks are trained without privacy. The defaults are those of Lu et al., Table 4, but for `l2`.

    Raises:
        SettingError: If a value is out of its range, or momentum is given to Adam.

    Examples:
        >>> from noiseproof.networks import Training
        >>> Training(epochs=20, optimizer="sgd", lr=0.1, momentum=0.9).batch_size
        100
    """

    epochs: Annotated[int, Ge(0)] = 100
    """Passes over a network's records; 0 leaves the initial weights."""
    batch_size: Count = 100
    """Records of a step; the last step of an epoch takes what is left."""
    lr: Positive = 1e-3
    """The learning rate."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Torch's Adam or SGD."""
    momentum: BelowOne = 0.0
    """That of `sgd`, in [0, 1)."""
    l2: NonNegative = 0.0
    """Adds `l2 * ||W||^2` over the kernels, not the biases, to the loss (Keras's convention: half of what torch calls weight
    decay)."""
    loss: StackedLoss = cross_entropy
    """Each network's loss, of (k, batch, classes) logits, (k, batch) labels and each record's share in its batch."""

    def __post_init__(self) -> None:
        check_fields("training", self)
        if self.momentum and self.optimizer != "sgd":
            raise SettingError(f"momentum is for the optimizer sgd, not for {self.optimizer}.")


def fit_stack(
    network: Network,
    features: torch.Tensor,
    labels: torch.Tensor,
    members: Sequence[torch.Tensor],
    training: Training | None = None,
    *,
    seeds: Sequence[int] | None = None,
    start: StackedNetwork | None = None,
    progress: Progress = SILENT,
) -> StackedNetwork:
    """Train one network for each of `members`, all at once; the j-th sees the records at the indices `members[j]` only.

    Every network takes ceil(records / batch_size) steps an epoch over its own shuffles, and is done when it has had all
    its epochs: it ends as if it had been trained alone, up to rounding, whatever the others are.

    Args:
        network: What each of them is.
        features: All records, (records, *input_shape).
        labels: Their labels, (records,).
        members: For each network the indices of its records, int64.
        training: How to train; `Training()` by default.
        seeds: For each network what its initial weights, shuffles and dropout follow from; its place j by default.
        start: Other initial weights, as many networks as there are members.
        progress: Hears of every step.

    Returns:
        The trained networks, in the order of `members`.

    Raises:
        SettingError: If members, seeds and initial weights do not go together.
        DataError: If there are more or fewer labels than records.

    Formal guarantee
    ----------------
    None: nothing here is noised, and the networks are to be kept on the trusted side. But a record influences the networks
    it is a member of and no other, whatever it holds (up to rounding, where it changes how wide the largest batch is).

    Examples:
        >>> import torch
        >>> from noiseproof.networks import Network, Training, fit_stack
        >>> features, labels = torch.rand(20, 4), torch.arange(20) % 2
        >>> halves = [torch.arange(10), torch.arange(10, 20)]
        >>> teachers = fit_stack(Network("linear", (4,), 2), features, labels, halves, Training(epochs=2, batch_size=5))
        >>> teachers.logits(features).shape  # both networks' answers to all records
        torch.Size([2, 20, 2])
    """
    training = training or Training()
    seeds = range(len(members)) if seeds is None else seeds
    _check(features, labels, members, seeds, start)
    start = start or StackedNetwork.of(network, seeds)
    # In the order of falling length the networks that are still in training are always the first ones, and slices of
    # the stack stay views: who is done costs nothing and stays as it is.
    schedule = _Schedule(members, training, seeds, whole=start.needs_whole_batches)
    order = torch.tensor(schedule.order)
    stack = {
        name: value.to(features.device).index_select(0, order.to(features.device))
        for name, value in start.parameters.items()
    }
    networks = StackedNetwork(network, stack)
    active = len(members)
    weights = {name: value.requires_grad_() for name, value in stack.items()}
    optimizer = _optimizer(weights, training)
    with progress.task("training networks", schedule.steps) as task:
        for step in range(schedule.steps):
            if schedule.active(step) < active:
                active = schedule.active(step)
                weights = _keep_first(active, weights, optimizer)
            indices, shares = schedule.batch(step, active, features.device)
            records = features.index_select(0, indices.flatten())
            # What fills a short batch up is zero, not a record, which might be another network's, or not be finite.
            if (empty := shares == 0).any():
                records[empty.flatten()] = 0
            there = labels.index_select(0, indices.flatten()).view(indices.shape)
            logits = networks.forward(
                records.view(*indices.shape, *features.shape[1:]), weights, schedule.generators[:active]
            )
            losses = training.loss(logits, there.where(~empty, 0), shares)
            optimizer.zero_grad(set_to_none=True)
            losses.sum().backward()
            optimizer.step()
            task.advance()
    back = order.argsort().to(features.device)
    return StackedNetwork(network, {name: value.detach().index_select(0, back) for name, value in stack.items()})


class _Schedule:
    """Which records each network sees at each step. Networks are in the order `order`: the longest training first."""

    def __init__(
        self, members: Sequence[torch.Tensor], training: Training, seeds: Sequence[int], whole: bool = False
    ) -> None:
        # Dropout draws masks for as many records as a batch is wide, and a layer that mixes records sees those that fill
        # it up: were the width that of the largest batch at hand, a network would depend on the others.
        self._whole = whole
        self.order = sorted(range(len(members)), key=lambda j: -math.ceil(len(members[j]) / training.batch_size))
        self._members = [members[j].cpu() for j in self.order]
        self._width = training.batch_size
        self._sizes = torch.tensor([len(records) for records in self._members])
        self._turns = (self._sizes + self._width - 1) // self._width
        self._totals = (self._turns * training.epochs).tolist()
        self.steps = max(self._totals)
        self.generators = [seeded_generator(seeds[j] ^ _SHUFFLES) for j in self.order]
        self._epoch = torch.zeros(len(members), int(self._turns.max()) * self._width, dtype=torch.int64)

    def active(self, step: int) -> int:
        """How many networks are still in training."""
        return sum(total > step for total in self._totals)

    def batch(self, step: int, active: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices (active, batch) of the records, and each one's share in its network's batch."""
        turn = step % self._turns[:active]
        for j in (turn == 0).nonzero().flatten().tolist():
            records = self._members[j]
            self._epoch[j, : len(records)] = records[torch.randperm(len(records), generator=self.generators[j])]
        sizes = (self._sizes[:active] - turn * self._width).clamp(max=self._width)
        width = torch.arange(self._width if self._whole else int(sizes.max()))
        indices = self._epoch[:active].gather(1, turn[:, None] * self._width + width)
        shares = (width < sizes[:, None]) / sizes[:, None]
        return indices.to(device), shares.to(device)


def _optimizer(weights: dict[str, torch.Tensor], training: Training) -> torch.optim.Optimizer:
    """torch's own: each works element by element, and so on each network alone."""
    kernels = [value for value in weights.values() if value.ndim > 2]
    others = [value for value in weights.values() if value.ndim <= 2]
    groups: list[dict[str, Any]] = [{"params": kernels, "weight_decay": 2 * training.l2}, {"params": others}]
    if training.optimizer == "adam":
        return torch.optim.Adam(groups, lr=training.lr, fused=True)
    return torch.optim.SGD(groups, lr=training.lr, momentum=training.momentum, fused=True)


def _keep_first(
    active: int, weights: dict[str, torch.Tensor], optimizer: torch.optim.Optimizer
) -> dict[str, torch.Tensor]:
    """Go on with the first `active` networks only: views of their weights and of what the optimizer remembers."""
    kept = {id(value): value.detach()[:active].requires_grad_() for value in weights.values()}
    for group in optimizer.param_groups:
        for value in group["params"]:
            memory = optimizer.state.pop(value, {})
            optimizer.state[kept[id(value)]] = {
                key: part[:active] if isinstance(part, torch.Tensor) and part.ndim else part
                for key, part in memory.items()
            }
        group["params"] = [kept[id(value)] for value in group["params"]]
    return {name: kept[id(value)] for name, value in weights.items()}


def _check(
    features: torch.Tensor,
    labels: torch.Tensor,
    members: Sequence[torch.Tensor],
    seeds: Sequence[int],
    start: StackedNetwork | None,
) -> None:
    if not members:
        raise SettingError("there is no network to train: give at least one set of members.")
    if len(seeds) != len(members) or (start is not None and len(start) != len(members)):
        raise SettingError(f"{len(members)} networks need as many seeds and initial weights.")
    if len(features) != len(labels):
        raise DataError(f"{len(features)} records cannot have {len(labels)} labels.")
    for j, records in enumerate(members):
        if records.ndim != 1 or records.dtype != torch.int64 or not len(records):
            raise SettingError(f"the members of network {j} must be a list of at least one index.")
        if int(records.min()) < 0 or int(records.max()) >= len(features):
            raise SettingError(f"the members of network {j} are not all among the {len(features)} records.")


TOGETHER = 4
"""Networks in a stack where stacks are placed on processes or machines: always as many, so that sums do not depend."""


def fit_stacks(
    network: Network,
    features: torch.Tensor,
    labels: torch.Tensor,
    members: Sequence[torch.Tensor],
    training: Training | None = None,
    *,
    seeds: Sequence[int],
    progress: Progress = SILENT,
) -> StackedNetwork:
    """As `fit_stack`; within a `placed` block in stacks of four, on its processes or its cluster.

    Outside one, and within another task, all are trained as one in this process. What comes out of `placed` blocks does
    not depend on the number of processes or machines; from one stack of all it may differ by rounding.

    Formal guarantee
    ----------------
    None: training is without noise. Each network sees its own members' records alone.
    """
    if not spread_out():
        return fit_stack(network, features, labels, members, training, seeds=seeds, progress=progress)
    places = range(0, len(members), TOGETHER)
    work = [(list(members[start : start + TOGETHER]), list(seeds[start : start + TOGETHER])) for start in places]
    common = (network, features.cpu(), labels.cpu(), training or Training())
    parts = tasks.collect(_fit, work, common=common, progress=progress, description="stacks of networks")
    names = parts[0].keys()
    return StackedNetwork(network, {name: torch.cat([part[name] for part in parts]) for name in names})


def _fit(
    network: Network,
    features: torch.Tensor,
    labels: torch.Tensor,
    training: Training,
    task: tuple[list[torch.Tensor], list[int]],
) -> dict[str, torch.Tensor]:
    members, seeds = task
    device = default_device()
    trained = fit_stack(network, features.to(device), labels.to(device), members, training, seeds=seeds)
    return {name: value.detach().cpu() for name, value in trained.parameters.items()}
