"""What a network is trained to do: each record's loss, by its task, and answers from the network's outputs.

Numeric targets are coded to [0, 1] by their public bounds. A network's output is then the distance from the middle of the
range, and every loss has a gradient of at most 1 in it, whatever the output is:

| loss | of a residual r = output + 1/2 - target | predicts |
| --- | --- | --- |
| squared | r^2 / 2, with the slope of r = 1 beyond | the mean |
| huber | r^2 / 2w up to |r| = w, |r| - w/2 beyond | the mean of what is no outlier |
| quantile | (1 - q) r where r > 0, -q r below | the quantile q |
| poisson | the mean's, less its logarithm times the target; the mean is exp(output) / 2, at most 1 | the mean of a count |
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.nn import functional

from noiseproof.errors import SettingError

if TYPE_CHECKING:
    from noiseproof.data.dataset import Public

LossName = Literal["auto", "squared", "huber", "quantile", "poisson"]
"""Of a numeric target; `auto` is `squared` for numbers and `poisson` for counts. Classes have cross-entropy."""

_MIDDLE = 0.5


@dataclass(frozen=True)
class Objective:
    """Each record's loss and what a network's outputs mean.

    Attributes:
        loss: `cross-entropy`, or a loss of numbers.
        level: The quantile that `quantile` predicts.
        huber: The residual, as a share of the target's range, from which `huber` is linear.
        class_weights: What the loss of each class's records is multiplied by.

    Formal guarantee
    ----------------
    None is needed: a record's loss depends on that record, on the network and on public numbers alone.
    """

    loss: str = "cross-entropy"
    level: float = 0.5
    huber: float = 0.1
    class_weights: tuple[float, ...] = ()

    @classmethod
    def of(cls, public: Public, settings: Mapping[str, Any]) -> Objective:
        """What a method with these settings trains a network to, on such records.

        Args:
            public: The task, the classes and their shares, if declared.
            settings: The method's; what it does not have is as it is by default.

        Returns:
            The objective.

        Raises:
            SettingError: If a setting does not suit the task, or asks for what is not public.
        """
        loss, weights = settings.get("loss", "auto"), settings.get("class_weights") or ()
        if public.task == "classification":
            if settings.get("interval") or loss in ("squared", "huber", "quantile", "poisson"):
                raise SettingError("losses of numbers and intervals are for regressions and counts, not for classes.")
            return cls(class_weights=_weights(weights, public))
        if weights or settings.get("threshold") is not None:
            raise SettingError(f"class weights and thresholds are for classes, not for a {public.task}.")
        if loss not in ("squared", "huber", "quantile", "poisson"):
            loss = "poisson" if public.task == "count" else "squared"
        known = {name: settings[name] for name in ("level", "huber") if name in settings}
        return cls(loss, **known)

    @property
    def numeric(self) -> bool:
        """Whether the target is a number."""
        return self.loss != "cross-entropy"

    def losses(self, outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Each record's loss, of (..., outputs) and (...) labels."""
        if not self.numeric:
            flat = functional.cross_entropy(outputs.flatten(0, -2), labels.flatten(), reduction="none")
            losses = flat.view_as(labels)
            return losses * outputs.new_tensor(self.class_weights)[labels] if self.class_weights else losses
        output = outputs[..., 0]
        if self.loss == "poisson":
            mean = output.clamp(max=math.log(2)).exp() / 2
            # Above the bound the mean goes on as a straight line, whose slope is 1.
            return mean + (output - math.log(2)).clamp(min=0) - labels * output
        residual = output + _MIDDLE - labels
        if self.loss == "quantile":
            return torch.maximum((1 - self.level) * residual, -self.level * residual)
        width = 1.0 if self.loss == "squared" else self.huber
        return functional.huber_loss(residual, torch.zeros_like(residual), reduction="none", delta=width) / width

    def answers(self, outputs: torch.Tensor) -> torch.Tensor:
        """Class probabilities; or a number in [0, 1], coded as targets are."""
        if not self.numeric:
            return torch.softmax(outputs, dim=-1)
        numbers = outputs.clamp(max=math.log(2)).exp() / 2 if self.loss == "poisson" else outputs + _MIDDLE
        return numbers.clamp(0, 1)

    def stacked(self, outputs: torch.Tensor, labels: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """Each network's mean loss over its batch, for `networks.Training`."""
        return (self.losses(outputs, labels) * shares).sum(1)


def _weights(given: Any, public: Public) -> tuple[float, ...]:
    """The weights of the classes, of mean 1 over the records where the shares are known."""
    if given == "balanced":
        if not public.class_shares:
            raise SettingError(
                "balanced class weights follow from the classes' shares, which are private unless the schema declares them; "
                "add shares to its target, or give a weight for each class."
            )
        return tuple(1 / (len(public.classes) * share) for share in public.class_shares)
    if given and len(given) != len(public.classes):
        raise SettingError(f"{len(public.classes)} classes need as many weights, not {len(given)}.")
    return tuple(given)
