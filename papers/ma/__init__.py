"""The study of Ma et al. (2020): noise on a discriminator's loss."""

from __future__ import annotations

from papers.ma.study import Ma

__all__ = ["Ma"]
