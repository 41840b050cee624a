"""TrainingState: all that a training needs to go on elsewhere, as tensors and plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from noiseproof.gradients.batch_gradients import BatchGradients

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class TrainingState:
    """A network in training: its weights, its optimiser, its gradients' sampler and noise, and the masks of dropout.

    What was spent is not part of it: that is the log of `gradients.events`, which is never put back.
    """

    module: nn.Module
    optimiser: torch.optim.Optimizer
    gradients: BatchGradients

    def capture(self) -> tuple[Tensors, dict[str, Any]]:
        """The state between two steps."""
        tensors: Tensors = {f"module.{name}": value for name, value in self.module.state_dict().items()}
        optimiser = self.optimiser.state_dict()
        numbers: dict[str, Any] = {}
        for index, memory in optimiser["state"].items():
            for key, value in memory.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"optimiser.{index}.{key}"] = value
                else:
                    numbers[f"{index}.{key}"] = value
        tensors["torch.cpu"] = torch.get_rng_state()
        device = self.gradients.parameters[0].device
        if device.type == "cuda":
            tensors["torch.cuda"] = torch.cuda.get_rng_state(device)
        copies = {name: value.detach().cpu().contiguous().clone() for name, value in tensors.items()}
        return copies, {
            "optimiser": {"groups": optimiser["param_groups"], "numbers": numbers},
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
            if name.startswith("optimiser."):
                index, _, key = name.removeprefix("optimiser.").partition(".")
                memory.setdefault(int(index), {})[key] = value
        for name, value in values["optimiser"]["numbers"].items():
            index, _, key = name.partition(".")
            memory.setdefault(int(index), {})[key] = value
        self.optimiser.load_state_dict({"state": memory, "param_groups": values["optimiser"]["groups"]})
        self.gradients.restore(values["gradients"])
        # Secure randomness has no state, so that a training with it may go on with more ranks, or fewer.
        for rng, state in zip(self.gradients.randomness, values["randomness"], strict=False):
            rng.restore(state)
        if self.gradients.ranks.rank == 0:
            torch.set_rng_state(tensors["torch.cpu"])
            if "torch.cuda" in tensors:
                torch.cuda.set_rng_state(tensors["torch.cuda"], self.gradients.parameters[0].device)
