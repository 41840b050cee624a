"""The page that shows a comparison, and its pictures as files."""

from __future__ import annotations

from noiseproof.report.page import render
from noiseproof.report.pictures import save_pictures

__all__ = ["render", "save_pictures"]
