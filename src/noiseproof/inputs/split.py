"""The beta split: a larger part of the noise's budget for features that matter more (Phan et al., eq. 16)."""

from __future__ import annotations

import torch

from noiseproof.errors import SettingError


def split(relevance: torch.Tensor, floor: float = 0.1, power: float = 1.0) -> torch.Tensor:
    """beta_j = d |R_j| / sum |R|, at least `floor` before all are scaled to sum to d; all 1 where no feature is relevant.

    `power` raises |R_j| first, as the authors' program does, to tell features apart that differ little.

    Formal guarantee
    ----------------
    None is needed: a function of relevances that were released already, or are public.
    """
    if not 0 < floor <= 1:
        raise SettingError(f"the floor of beta must lie in (0, 1], not {floor}.")
    if not power > 0:
        raise SettingError(f"the power of relevances must be greater than 0, not {power}.")
    size = relevance.flatten().double().abs()
    # Divided first, so that no power of it overflows or vanishes as a whole.
    size = (size / size.amax().clamp(min=torch.finfo(torch.float64).tiny)) ** power
    total = size.sum()
    if not total > 0:
        return torch.ones_like(size)
    beta = (len(size) * size / total).clamp(min=floor)
    return beta * len(size) / beta.sum()
