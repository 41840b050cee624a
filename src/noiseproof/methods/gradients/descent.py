"""Views: random shifts and mirror images of a record's picture, whose losses are averaged before anything is clipped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.nn import functional

from noiseproof.engine.private_gradients import BatchGradients
from noiseproof.errors import SettingError
from noiseproof.progress import SILENT, Progress

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.run.checkpoints import Checkpoints


@dataclass(frozen=True)
class Views:
    """Augmentation multiplicity (De et al. 2022): a record's loss is the mean over `count` random views of it.

    Formal guarantee
    ----------------
    None is needed: the views are drawn for each record by itself, so that its loss, and the gradient that is clipped,
    still depend on that record and public state alone. More views cost time and no privacy.
    """

    count: int = 1
    shift: int = 0
    """The most pixels that a view is moved by, in each direction; what comes in from outside is 0."""
    mirror: bool = False
    """Whether a view is mirrored, left to right, by a coin."""

    def __post_init__(self) -> None:
        if self.count < 1 or self.shift < 0:
            raise SettingError(f"views must be 1 or more and their shift 0 or more, not {self.count} and {self.shift}.")
        if self.count > 1 and not (self.shift or self.mirror):
            raise SettingError(f"{self.count} views of a record are all the same; give a shift, or mirror them.")

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse records that are no pictures, if views are to differ from them."""
        if (self.shift or self.mirror) and (len(shape) != 3 or min(shape[1:]) <= self.shift):
            raise SettingError(
                f"views are shifted and mirrored pictures, larger than the shift; records of shape {shape} are not."
            )

    def losses(
        self, loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], features: torch.Tensor, labels: torch.Tensor
    ) -> torch.Tensor:
        """Each record's loss, the mean over its views; randomness is torch's own."""
        if not (self.shift or self.mirror):
            return loss(features, labels)
        return torch.stack([loss(self.view(features), labels) for _ in range(self.count)]).mean(0)

    def view(self, pictures: torch.Tensor) -> torch.Tensor:
        """One random view of each picture."""
        records, channels, height, width = pictures.shape
        device = pictures.device
        if self.mirror:
            coins = torch.rand(records, device=device) < 0.5
            pictures = torch.where(coins[:, None, None, None], pictures.flip(-1), pictures)
        if not self.shift:
            return pictures
        padded = functional.pad(pictures, [self.shift] * 4)
        moves = torch.randint(2 * self.shift + 1, (2, records, 1), device=device)
        rows = moves[0] + torch.arange(height, device=device)
        columns = moves[1] + torch.arange(width, device=device)
        record = torch.arange(records, device=device)[:, None, None, None]
        channel = torch.arange(channels, device=device)[None, :, None, None]
        return padded[record, channel, rows[:, None, :, None], columns[:, None, None, :]]


# Optimizers by name: any of torch's works on noised gradients, since what it does is post-processing.
#
# So are learning rates that fall and weights that are averaged: both depend on the noised gradients and on public numbers
# alone, and cost no privacy. What they remember lies in the optimizer's own state, so that its `state_dict` is all of it.


OptimizerName = Literal["sgd", "adam", "adagrad", "adadelta"]
Fall = Literal["constant", "linear", "cosine"]
"""How a learning rate falls from its start towards 0 at the last step, if it does."""


def optimizer(
    name: OptimizerName, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.0
) -> torch.optim.Optimizer:
    """The torch optimizer of that name; `momentum` is SGD's alone."""
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=momentum)
    if name == "adam":
        return torch.optim.Adam(parameters, lr=lr)
    if name == "adagrad":
        return torch.optim.Adagrad(parameters, lr=lr)
    return torch.optim.Adadelta(parameters, lr=lr)


def schedule(optimizer: torch.optim.Optimizer, fall: Fall, steps: int) -> None:
    """Let the learning rate fall over `steps` steps: the share of it that is left depends on the step alone."""
    if fall == "constant":
        return
    for group in optimizer.param_groups:
        group["start"], group["taken"] = group["lr"], 0

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            done = group["taken"] / steps
            left = 1 - done if fall == "linear" else (1 + math.cos(math.pi * done)) / 2
            group["lr"] = group["start"] * left
            group["taken"] += 1

    optimizer.register_step_pre_hook(before)


def average(optimizer: torch.optim.Optimizer, share: float, steps: int) -> None:
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


# TrainingState: all that a training needs to go on elsewhere, as tensors and plain values.


Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class TrainingState:
    """A network in training: its weights, its optimizer, its gradients' sampler and noise, and the masks of dropout.

    What was spent is not part of it: that is the log of `gradients.events`, which is never put back.
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
        tensors["torch.cpu"] = torch.get_rng_state()
        device = self.gradients.parameters[0].device
        if device.type == "cuda":
            tensors["torch.cuda"] = torch.cuda.get_rng_state(device)
        copies = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        return copies, {
            "optimizer": {"groups": optimizer["param_groups"], "numbers": numbers},
            "gradients": self.gradients.state(),
            "randomness": [rng.state() for rng in self.gradients.randomness],
        }

    def restore(self, tensors: Mapping[str, torch.Tensor], values: Mapping[str, Any]) -> None:
        """Put a captured state back; a rank other than the first takes dropout masks of its own."""
        self.module.load_state_dict(
            {name.removeprefix("module."): value for name, value in tensors.items() if name.startswith("module.")}
        )
        memory: dict[int, dict[str, Any]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                index, _, key = name.removeprefix("optimizer.").partition(".")
                memory.setdefault(int(index), {})[key] = value
        for name, value in values["optimizer"]["numbers"].items():
            index, _, key = name.partition(".")
            memory.setdefault(int(index), {})[key] = value
        self.optimizer.load_state_dict({"state": memory, "param_groups": values["optimizer"]["groups"]})
        self.gradients.restore(values["gradients"])
        # Secure randomness has no state, so that a training with it may go on with more ranks, or fewer.
        for rng, state in zip(self.gradients.randomness, values["randomness"], strict=False):
            rng.restore(state)
        if self.gradients.ranks.rank == 0:
            torch.set_rng_state(tensors["torch.cpu"])
            if "torch.cuda" in tensors:
                torch.cuda.set_rng_state(tensors["torch.cuda"], self.gradients.parameters[0].device)


# Descent: the training loop that all methods at the gradients share.


Watch = Callable[[int, float], None]
"""Called after every step with the number of steps taken and the batch's mean loss (a private value: keep it inside)."""

_ONE = Views()


def descend(
    module: nn.Module,
    gradients: BatchGradients,
    optimizer: torch.optim.Optimizer,
    dataset: Dataset,
    steps: int,
    *,
    seed: int,
    micro_batch_size: int | None = None,
    progress: Progress = SILENT,
    description: str = "training",
    watch: Watch | None = None,
    views: Views = _ONE,
    checkpoints: Checkpoints | None = None,
) -> None:
    """Take `steps` steps of cross-entropy descent with these gradients. `seed` is for dropout and `views`.

    With `checkpoints` a training that was begun there goes on; steps that a crash lost have been charged for and are
    not taken again.
    """
    device = next(module.parameters()).device
    views.check(dataset.public.shape)

    def loss(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(module(features), labels, reduction="none")

    module.train()
    with (
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        progress.task(description, steps) as task,
        checkpoints.watching(gradients.ranks.rank) if checkpoints is not None else nullcontext(),
    ):
        torch.manual_seed(seed + gradients.ranks.rank)
        charged = 0
        if checkpoints is not None:
            checkpoints.begin(TrainingState(module, optimizer, gradients))
            charged = min(len(gradients.events), steps)
            task.advance(charged)
        total, records = 0.0, 0
        batches = gradients.batches(
            dataset.features.to(device),
            dataset.labels.to(device),
            steps=steps - charged,
            micro_batch_size=micro_batch_size,
        )
        for features, labels in batches:
            losses = None
            if len(labels):
                losses = views.losses(loss, features, labels)
                total, records = total + float(losses.detach().sum()), records + len(labels)
            if gradients.backward(losses):
                optimizer.step()
                mean = total / records if records else float("nan")
                task.advance(loss=mean)
                if watch is not None:
                    watch(gradients.steps, mean)
                total, records = 0.0, 0
                if checkpoints is not None:
                    checkpoints.after_step()
        if checkpoints is not None:
            checkpoints.save()
        gradients.ranks.agree("what was spent", gradients.events.runs)
    module.eval()
