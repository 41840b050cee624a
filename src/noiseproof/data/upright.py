"""UprightMap: handwriting set upright and in the middle, by each picture's own moments."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from noiseproof.progress import SILENT, Progress


@dataclass(frozen=True)
class UprightMap:
    """Each picture sheared until its ink no longer leans, its centre of mass moved to the middle.

    People write with different slants, which says nothing of what they wrote; a linear model on features of the picture
    would have to learn every slant of every class. For light writing on dark ground, as MNIST has it. A picture whose
    brightness is spread evenly, or that is empty, stays about as it is.
    """

    most: float = 1.0
    """The most that columns are moved by, as a share of how far up or down a row is."""

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Unchanged."""
        return shape

    def __call__(self, features: torch.Tensor, progress: Progress = SILENT) -> torch.Tensor:
        """The pictures, upright."""
        return torch.cat([self._sheared(chunk) for chunk in features.split(4096)])

    def _sheared(self, pictures: torch.Tensor) -> torch.Tensor:
        height, width = pictures.shape[2:]
        ink = pictures.clamp_min(0).sum(1)
        ink = ink / ink.sum((1, 2), keepdim=True).clamp_min(1e-12)
        # Where pixels are, from -1 to 1, as `affine_grid` counts.
        down, right = (torch.arange(1 - side, side, 2).to(pictures) / side for side in (height, width))
        middle_down, middle_right = ink.sum(2) @ down, ink.sum(1) @ right
        down, right = down - middle_down[:, None], right - middle_right[:, None]
        both = torch.einsum("nyx,ny,nx->n", ink, down, right)
        slant = both / (ink.sum(2) * down.square()).sum(1).clamp_min(1e-6)
        slant = slant.clamp(-self.most, self.most)
        one, none = torch.ones_like(slant), torch.zeros_like(slant)
        rows = [torch.stack(row, 1) for row in ((one, slant, middle_right), (none, one, middle_down))]
        grid = functional.affine_grid(torch.stack(rows, 1), list(pictures.shape), align_corners=False)
        return functional.grid_sample(pictures, grid, mode="bilinear", align_corners=False)
