"""Lu et al. (2022): private predictions from a convexified network, beside DP-SGD and beside siblings with a proof."""

from __future__ import annotations

from papers.lu.study import Lu

__all__ = ["Lu"]
