"""Views: random shifts and mirror images of a record's picture, whose losses are averaged before anything is clipped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from noiseproof.errors import SettingError


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
