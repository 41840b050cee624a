"""The fixtures of the twin test."""

from __future__ import annotations

from tests.twin.worlds import fixed_randomness

__all__ = ["fixed_randomness"]
