"""The study of Ma et al. (2020): noise on a discriminator's loss."""

from noiseproof.studies.ma.study import Ma

__all__ = ["Ma"]
