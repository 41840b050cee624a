"""Plan: what a comparison is asked to do, as plain values that can be sent to another process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from noiseproof.errors import SettingError
from noiseproof.guarantees.budget import Budget, check_neighbours

BASELINE = "none"
"""The method that everything is measured against; it has no budget and runs once."""

QUERIES = 100
"""Answers that prediction methods must be able to give, unless told otherwise."""


@dataclass(frozen=True)
class Task:
    """One row of a comparison: a method at an epsilon."""

    method: str
    epsilon: float

    @property
    def key(self) -> str:
        """The name of the row's file and of its bundle."""
        return f"{re.sub(r'[^A-Za-z0-9_.-]', '_', self.method)}-{self.epsilon:g}"


@dataclass(frozen=True)
class Plan:
    """Data, budgets, methods, attack and audit of a comparison. Its fields decide the result, up to the time it takes.

    `methods` empty means every method of the registry. `imports` are modules of the user's own that register methods.
    """

    data: str = "digits"
    target: str | None = None
    schema: str | None = None
    epsilons: tuple[float, ...] = (3.0,)
    delta: float = 1e-5
    neighbours: str = "add-or-remove"
    methods: tuple[str, ...] = ()
    queries: int = QUERIES
    attack: str = "loss"
    trials: int = 1000
    seed: int = 0
    recipe: str = "auto"
    imports: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.epsilons:
            raise SettingError("give at least one epsilon.")
        if len(set(self.epsilons)) != len(self.epsilons) or len(set(self.methods)) != len(self.methods):
            raise SettingError("an epsilon or a method is given twice; give each once.")
        for epsilon in self.epsilons:
            Budget(epsilon, self.delta, check_neighbours(self.neighbours), self.queries)
        if self.trials < 5:
            raise SettingError(f"an audit needs at least 5 trials in each world, not {self.trials}.")

    def budget(self, epsilon: float) -> Budget:
        """The budget at one of the epsilons."""
        return Budget(epsilon, self.delta, check_neighbours(self.neighbours), self.queries)

    def tasks(self, registered: tuple[str, ...]) -> tuple[Task, ...]:
        """The rows, the baseline first; it has no budget, so that one row of it is enough."""
        for name in self.methods:
            if name not in registered:
                raise SettingError(f"there is no method {name!r}; there are {', '.join(registered)}.")
        chosen = [name for name in self.methods or registered if name != BASELINE]
        return (
            Task(BASELINE, self.epsilons[0]),
            *(Task(name, epsilon) for epsilon in self.epsilons for name in chosen),
        )

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Plan:
        """The plan that `to_json` wrote."""
        lists = {name: tuple(fields[name]) for name in ("epsilons", "methods", "imports")}
        return cls(**{**fields, **lists})
