"""The page that shows a comparison, and its pictures as files."""

from __future__ import annotations

from noiseproof.report.model_card import model_card
from noiseproof.report.page import render
from noiseproof.report.pictures import save_pictures

__all__ = ["model_card", "render", "save_pictures"]
