"""Lin et al. (2020): noise first, clip second; which factors matter?"""

from noiseproof.studies.lin.study import Lin

__all__ = ["Lin"]
