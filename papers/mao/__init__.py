"""Mao et al. (2020): a network drawn from the densities of many networks' parameters, beside DP-SGD and none."""

from __future__ import annotations

from papers.mao.study import Mao

__all__ = ["Mao"]
