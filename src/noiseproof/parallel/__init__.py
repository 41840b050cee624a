"""Many independent tasks, such as trainings, over local processes or the machines of a Ray cluster."""

from __future__ import annotations

from noiseproof.parallel.tasks import Lost, LostTaskError, Placement, collect, placed, run, seeds, task_progress

__all__ = ["Lost", "LostTaskError", "Placement", "collect", "placed", "run", "seeds", "task_progress"]
