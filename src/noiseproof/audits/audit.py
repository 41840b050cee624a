"""Audit: play a method's game and say what it refutes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from noiseproof.audits.trials import play
from noiseproof.audits.two_worlds import Bound, Estimator, counting_bound, gaussian_bound
from noiseproof.privacy.budget import Neighbours
from noiseproof.privacy.card import Audit, Claim, Proof, Unit, Verdict, verdict
from noiseproof.privacy.game import Game
from noiseproof.progress import SILENT, Progress


@dataclass(frozen=True)
class AuditResult:
    """A lower bound on a mechanism's epsilon beside what is claimed and proven for it."""

    game: str
    neighbours: Neighbours
    unit: Unit
    trials: int
    """Runs in each of the two worlds."""
    seed: int
    bound: Bound
    claimed: Claim | None = None
    proven: Proof | None = None

    @property
    def epsilon(self) -> float:
        """The lower bound."""
        return self.bound.epsilon

    @property
    def confidence(self) -> float:
        """How sure the lower bound is."""
        return self.bound.confidence

    @property
    def estimator(self) -> Estimator:
        """How the bound was found; `gaussian` rests on the game's word that its scores are normal."""
        return self.bound.estimator

    @property
    def audited(self) -> Audit:
        """The result as a card holds it."""
        return Audit(
            epsilon=self.epsilon,
            delta=self.bound.delta,
            confidence=self.confidence,
            trials=self.trials,
            game=self.game,
        )

    @property
    def verdict(self) -> Verdict:
        """What claimed, proven and audited epsilon say together."""
        return verdict(self.claimed, self.proven, self.audited)

    @property
    def contradicts_proof(self) -> bool:
        """Whether the bound is above what is proven: a false alarm (1 in 20 at 95%), or a broken proof or program."""
        return self.proven is not None and self.epsilon > self.proven.epsilon

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON document."""
        return {
            "game": self.game,
            "unit": self.unit,
            "neighbours": self.neighbours,
            "claimed": None if self.claimed is None else self.claimed.model_dump(mode="json"),
            "proven": None if self.proven is None else self.proven.model_dump(mode="json"),
            "audited": self.audited.model_dump(mode="json"),
            "verdict": self.verdict,
            "contradicts_proof": self.contradicts_proof,
            "estimator": self.estimator,
            "counted": self.bound.counted,
            "falsely": self.bound.falsely,
            "missed": self.bound.missed,
            "seed": self.seed,
        }


def audit(
    game: Game,
    *,
    trials: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
    jobs: int = 1,
    timeout: float | None = 600.0,
    progress: Progress = SILENT,
) -> AuditResult:
    """Play `game` `trials` times in each world and give the largest epsilon that the scores refute at its delta.

    Where the game says that its scores are normal with one variance (and they are finite, and delta is above 0) the
    Gaussian-DP fit is used, else counting alone. A mechanism that crashes, answers nonsense or lets a chunk of trials
    wait longer than `timeout` seconds raises an `AuditError`; no bound is ever computed from the other trials. With
    `timeout=None` and `jobs=1` everything runs in this process (see `trials.play`).

    Formal guarantee
    ----------------
    If what `game.play` runs is (epsilon, delta)-DP at the game's delta, unit and neighbours, the bound exceeds epsilon
    with probability at most 1 - confidence, over the randomness of the trials, under the assumptions of
    `counting_bound` or `gaussian_bound`. Repeated audits need their confidences added up.
    """
    scores = play(game, trials=trials, seed=seed, jobs=jobs, timeout=timeout, progress=progress)
    normal = game.gaussian and game.delta > 0 and all(np.isfinite(part).all() for part in scores)
    bound = (gaussian_bound if normal else counting_bound)(scores, delta=game.delta, confidence=confidence)
    return AuditResult(game.name, game.neighbours, game.unit, trials, seed, bound, game.claimed, game.proven)
