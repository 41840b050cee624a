"""Pages for people: a comparison, one release, an audit; and a comparison's charts as files."""

from __future__ import annotations

from noiseproof.report.model_card import model_card
from noiseproof.report.page import render
from noiseproof.report.pictures import save_pictures
from noiseproof.report.release_page import render_audit, render_release

__all__ = ["model_card", "render", "render_audit", "render_release", "save_pictures"]
