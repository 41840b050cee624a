"""Trainings that cost nothing: their numbers follow from the cell and the seed alone."""

from __future__ import annotations

import random

import pytest
import torch

from papers.lin.design import Cell, Plan
from papers.lin.results import CellResult, Weights

_NETWORKS = {"cnn": ("small-cnn", {}), "lstm": ("lstm", {})}
_RATES = {(model, optimizer, "none"): 1.0 for model in _NETWORKS for optimizer in ("adam", "sgd")}
PLAN = Plan("small", 100, 10, 20, 2, _NETWORKS, _RATES)


def _pretend(cell: Cell, plan: Plan, seed: int, reference: Weights | None) -> tuple[CellResult, Weights]:
    """AC is more accurate than CA, and both less than no noise."""
    draw = random.Random(cell.seed(seed))
    level = {"none": 0.9, "AC": 0.7, "CA": 0.5}.get(cell.sequence, 0.3)
    end = level + draw.uniform(-0.05, 0.05)
    result = CellResult(
        cell=cell,
        accuracy=end,
        convergence=draw.uniform(1, 2),
        tpvd=None if reference is None else float(reference["w"].sum()) + draw.random(),
        epsilon=4.5 if cell.sequence == "CA" else None,
        delta=1e-5,
        why=None if cell.sequence == "CA" else "nothing proven",
        steps=(0, 10, 20),
        losses=(2.3, 2.0, 1.5),
        accuracies=(0.1, 0.2, end),
        ran={"records": 100, "test": 10, "rate": 0.5, "steps": 20},
        seconds=0.0,
    )
    return result, {"w": torch.full((2, 2), float(cell.initial_seed(seed) % 7))}


@pytest.fixture(scope="session")
def plan() -> Plan:
    """A plan for trainings that are not run."""
    return PLAN


@pytest.fixture(scope="session")
def pretend():
    """`train_cell` without training."""
    return _pretend
