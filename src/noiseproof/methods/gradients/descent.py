"""The training loop that all methods at the gradients share, and its parts: augmentations, optimizers, saved states.

Whatever an optimizer does to noised gradients is post-processing, and so are learning rates that decay and weights that are
averaged: both depend on the noised gradients and on public numbers alone. What they remember lies in the optimizer's own
state, so that its `state_dict` is all of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from annotated_types import Ge
from torch import nn
from torch.nn import functional

from noiseproof.engine.batch_gradients import BatchGradients
from noiseproof.errors import SettingError
from noiseproof.networks.dropout import RecordRandomness
from noiseproof.networks.objectives import Objective
from noiseproof.progress import SILENT, Progress
from noiseproof.settings import Count, check_fields

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.privacy import Randomness
    from noiseproof.run.checkpoints import Checkpoints


@dataclass(frozen=True)
class Augmentations:
    """Augmentation multiplicity (De et al. 2022): a record's loss is the mean over `count` random changes of its picture.

    Formal guarantee
    ----------------
    None is needed: pictures are changed by numbers of that record's own (`RecordRandomness`), so that its loss, and the
    gradient that is clipped, still depend on that record and public state alone. More of them cost time and no privacy.
    """

    count: Count = 1
    shift: Annotated[int, Ge(0)] = 0
    """The most pixels that a picture is moved by, in each direction; what comes in from outside is 0."""
    flip: bool = False
    """Whether a picture is flipped, left to right, by a coin."""

    def __post_init__(self) -> None:
        check_fields("augmentations", self)
        if self.count > 1 and not self:
            raise SettingError(f"{self.count} augmentations of a record are all the same; give a shift or a flip.")

    def __bool__(self) -> bool:
        return bool(self.shift or self.flip)

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse records that are no pictures, or too small ones, if they are to be augmented."""
        if self and (len(shape) != 3 or min(shape[1:]) <= self.shift):
            raise SettingError(
                f"augmentations shift and flip pictures larger than the shift; records of shape {shape} are not."
            )

    def losses(
        self,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        features: torch.Tensor,
        labels: torch.Tensor,
        words: Callable[[int], torch.Tensor],
    ) -> torch.Tensor:
        """Each record's loss, the mean over its augmentations; `words(count)` draws numbers below 2^32 for each record."""
        if not self:
            return loss(features, labels)
        return torch.stack([loss(self.augment(features, words(3)), labels) for _ in range(self.count)]).mean(0)

    def augment(self, pictures: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        """Each picture changed once, by its three numbers."""
        records, channels, height, width = pictures.shape
        device = pictures.device
        coins, *moves = words.to(device).T
        if self.flip:
            pictures = torch.where((coins < 2**31)[:, None, None, None], pictures.flip(-1), pictures)
        if not self.shift:
            return pictures
        padded = functional.pad(pictures, [self.shift] * 4)
        down, right = ((move * (2 * self.shift + 1) >> 32)[:, None] for move in moves)
        rows = down + torch.arange(height, device=device)
        columns = right + torch.arange(width, device=device)
        record = torch.arange(records, device=device)[:, None, None, None]
        channel = torch.arange(channels, device=device)[None, :, None, None]
        return padded[record, channel, rows[:, None, :, None], columns[:, None, None, :]]


OptimizerName = Literal["sgd", "adam", "adagrad", "adadelta"]
LrSchedule = Literal["constant", "linear", "cosine"]
"""How the learning rate goes from its start towards 0 at the last step, if it does."""

_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
}


def make_optimizer(
    name: OptimizerName, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.0
) -> torch.optim.Optimizer:
    """The torch optimizer of that name; `momentum` is SGD's alone."""
    options: dict[str, Any] = {"momentum": momentum} if name == "sgd" else {}
    return _OPTIMIZERS[name](parameters, lr=lr, **options)  # type: ignore[call-arg]


def lr_share(schedule: LrSchedule, done: float) -> float:
    """The share of the learning rate that is left when that share of the steps has been taken."""
    if schedule == "constant":
        return 1.0
    return 1 - done if schedule == "linear" else (1 + math.cos(math.pi * done)) / 2


def schedule_lr(optimizer: torch.optim.Optimizer, schedule: LrSchedule, steps: int) -> None:
    """Let the learning rate decay over `steps` steps: the share of it that is left depends on the step alone."""
    if schedule == "constant":
        return
    for group in optimizer.param_groups:
        group["start"], group["taken"] = group["lr"], 0

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            group["lr"] = group["start"] * lr_share(schedule, group["taken"] / steps)
            group["taken"] += 1

    optimizer.register_step_pre_hook(before)


def average_weights(optimizer: torch.optim.Optimizer, share: float, steps: int) -> None:
    """Keep the mean of the weights after each of the last `share` of `steps` steps, for `take_average`."""
    if share == 0:
        return
    first = steps - max(1, math.ceil(share * steps))
    for group in optimizer.param_groups:
        group["seen"] = 0

    def after(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            group["seen"] += 1
            if (count := group["seen"] - first) < 1:
                continue
            for parameter in group["params"]:
                state = optimizer.state[parameter]
                if "average" not in state:
                    state["average"] = torch.zeros_like(parameter)
                state["average"].lerp_(parameter.detach(), 1 / count)

    optimizer.register_step_post_hook(after)


def take_average(optimizer: torch.optim.Optimizer) -> None:
    """Put the averaged weights, where there are any, in the place of the last ones."""
    with torch.no_grad():
        for parameter, state in optimizer.state.items():
            if "average" in state:
                parameter.copy_(state["average"])


Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class TrainingState:
    """A network in training, as tensors and plain values: its weights, its optimizer, its gradients' sampler and noise.

    What was spent is not part of it: that is the log of `gradients.events`, which is never put back. Nor are dropout masks
    and augmentations, which follow from the step's number and a key.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    gradients: BatchGradients

    def capture(self) -> tuple[Tensors, dict[str, Any]]:
        """The state between two steps."""
        tensors: Tensors = {f"module.{name}": value for name, value in self.module.state_dict().items()}
        optimizer = self.optimizer.state_dict()
        numbers: dict[str, Any] = {}
        for index, memory in optimizer["state"].items():
            for key, value in memory.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"optimizer.{index}.{key}"] = value
                else:
                    numbers[f"{index}.{key}"] = value
        state = {name: value for name, value in self.gradients.state().items() if name != "spent"}
        tensors |= {f"gradients.{name}": value for name, value in state.items() if isinstance(value, torch.Tensor)}
        copies = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        return copies, {
            "optimizer": {"groups": optimizer["param_groups"], "numbers": numbers},
            "gradients": {name: value for name, value in state.items() if not isinstance(value, torch.Tensor)},
            "randomness": [rng.state() for rng in self.gradients.randomness],
        }

    def restore(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        """Put a captured state back."""
        self.module.load_state_dict(
            {name.removeprefix("module."): value for name, value in tensors.items() if name.startswith("module.")}
        )
        memory: dict[int, dict[str, Any]] = {}
        kept = {name.removeprefix("optimizer."): value for name, value in tensors.items() if name[0] == "o"}
        for name, value in {**kept, **values["optimizer"]["numbers"]}.items():
            index, _, key = name.partition(".")
            memory.setdefault(int(index), {})[key] = value
        self.optimizer.load_state_dict({"state": memory, "param_groups": values["optimizer"]["groups"]})
        remembered = {name.removeprefix("gradients."): tensor for name, tensor in tensors.items() if name[0] == "g"}
        self.gradients.restore({**values["gradients"], **remembered})
        # Secure randomness has no state, so that a training with it may go on with more ranks, or fewer.
        for rng, state in zip(self.gradients.randomness, values["randomness"], strict=False):
            rng.restore(state)


AfterStep = Callable[[int, float], None]
"""Called after every step with the number of steps taken and the batch's mean loss (a private value: keep it inside)."""

_NONE, _CLASSES = Augmentations(), Objective()


def descend(
    module: nn.Module,
    gradients: BatchGradients,
    optimizer: torch.optim.Optimizer,
    dataset: Dataset,
    steps: int,
    *,
    rng: Randomness,
    objective: Objective = _CLASSES,
    micro_batch_size: int | None = None,
    progress: Progress = SILENT,
    description: str = "training",
    after_step: AfterStep | None = None,
    augmentations: Augmentations = _NONE,
    checkpoints: Checkpoints | None = None,
    batching: Mapping[str, Any] | None = None,
) -> None:
    """Take `steps` steps of descent with these gradients.

    Args:
        module: The network, in the state that training starts from; it is left in evaluation.
        gradients: What makes each step's gradient of the records' losses, and logs what it costs.
        optimizer: What takes the steps.
        dataset: The private records.
        steps: How many steps to take.
        rng: Where the key of dropout masks and augmentations comes from.
        objective: What the records' losses are.
        micro_batch_size: Records whose gradients are in memory at once; None takes a step's records together.
        progress: Where to report steps.
        description: What to call the training there.
        after_step: Called after every step.
        augmentations: Changes of pictures over which a record's loss is averaged.
        checkpoints: Where to save states; a training that was begun there goes on, and steps that a crash lost have been
            charged for and are not taken again.
        batching: What `gradients.batches` is told besides: whose the records are, where persons are sampled.
    """
    device = next(module.parameters()).device
    augmentations.check(dataset.public.shape)
    random = RecordRandomness(rng, module, gradients.ranks.rank)

    def loss(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return objective.losses(module(features), labels)

    module.train()
    with (
        random.installed(),
        progress.task(description, steps) as task,
        checkpoints.watching(gradients.ranks.rank) if checkpoints is not None else nullcontext(),
    ):
        charged = 0
        if checkpoints is not None:
            checkpoints.begin(TrainingState(module, optimizer, gradients))
            charged = min(len(gradients.events), steps)
            task.advance(charged)
        total, records = 0.0, 0
        batches = gradients.batches(
            dataset.features.to(device),
            dataset.labels.to(device),
            torch.arange(len(dataset), device=device),
            steps=steps - charged,
            micro_batch_size=micro_batch_size,
            **(batching or {}),
        )
        for features, labels, indices in batches:
            losses = None
            if len(labels):
                random.begin(gradients.steps, indices)
                losses = augmentations.losses(loss, features, labels, random.words)
                total, records = total + float(losses.detach().sum()), records + len(labels)
            if gradients.backward(losses):
                optimizer.step()
                mean = total / records if records else float("nan")
                task.advance(loss=mean)
                if after_step is not None:
                    after_step(gradients.steps, mean)
                total, records = 0.0, 0
                if checkpoints is not None:
                    checkpoints.after_step()
        if checkpoints is not None:
            checkpoints.save()
        gradients.ranks.agree("what was spent", gradients.events.runs)
    module.eval()
