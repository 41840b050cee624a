"""Lu et al. (2022): private predictions from a convexified network, beside DP-SGD and beside siblings with a proof."""

from noiseproof.studies.lu.study import Lu

__all__ = ["Lu"]
