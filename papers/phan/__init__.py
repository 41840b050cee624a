"""Phan et al. (2017): noise at the inputs, adaptive by relevance, beside DP-SGD and beside a sibling with a proof."""

from __future__ import annotations

from papers.phan.study import Phan

__all__ = ["Phan"]
