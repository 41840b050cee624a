"""Lin et al. (2020): noise first, clip second; which factors matter?"""

from __future__ import annotations

from papers.lin.study import Lin

__all__ = ["Lin"]
