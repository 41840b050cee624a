"""Every method of the registry against its own game: claims that fail are refuted, proofs hold.

A new method needs no test here, only a game; a published one whose claim fails also needs a line in `FALLEN`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from noiseproof import methods
from noiseproof.audits import audit, counting_bound, gaussian_bound, play
from noiseproof.privacy import Budget, Game
from tests.audits.mechanisms import gaussian_game, laplace_game

BUDGET = Budget(epsilon=1.0, delta=1e-5)
METHODS = methods.registry()


@dataclass(frozen=True)
class Fallen:
    """What an audit must find about a method whose claim, or whose lack of noise, the notes say does not protect.

    `verdict` is what the card must then say: `refuted` where the authors claim an epsilon, `nothing proven` where
    they claim none; the bound must exceed `epsilon` (and the claim, to refute it).
    """

    verdict: str
    epsilon: float = 1.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    trials: int = 100


FALLEN = {
    # Trains a network in each trial, so plays few; it makes no mistake in them.
    "none": [Fallen("nothing proven", trials=30)],
    "noisy-gradient": [Fallen("nothing proven")],
    "quantile-flat": [Fallen("nothing proven")],
    "quantile-layer": [Fallen("nothing proven")],
    "adlm": [Fallen("refuted", settings={"draw": "batch"})],
    "ilm": [Fallen("refuted", settings={"draw": "batch"})],
    "rdp-gan": [Fallen("refuted", settings={"noise_on": reading}) for reading in ("value", "error", "scale")],
    "dp-pg": [Fallen("refuted")],
    "dp-pgp": [Fallen("refuted")],
    "neuron-laplace": [Fallen("refuted")],
    "neuron-gaussian": [Fallen("refuted")],
}
CASES = [(name, case) for name in METHODS for case in FALLEN.get(name, [])]
PROVEN = [name for name, method in METHODS.items() if method.proves]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_game_and_an_expectation(name):
    assert isinstance(METHODS[name]().game(BUDGET), Game)
    assert METHODS[name].proves or name in FALLEN, f"{name} proves nothing: say in FALLEN what an audit of it must find"


@pytest.mark.parametrize(("name", "case"), CASES, ids=[f"{name}-{case.settings or ''}" for name, case in CASES])
def test_the_audit_finds_what_the_notes_say(name, case):
    result = audit(METHODS[name](**case.settings).game(BUDGET), trials=case.trials, timeout=None)
    assert result.epsilon > case.epsilon
    assert result.verdict == case.verdict


WHOLE = ("adlm", "ilm", "dp-gan", "zero-gan")
"""Methods whose games train afresh in every trial."""
AUDITS = 20
CONFIDENCE = 1 - 1e-6 / (AUDITS + 1)
"""Of each audit, so that 20 of them and one of all their trials together raise a false alarm once in a million."""


def bounds(game: Game, trials: int) -> list[float]:
    """The bounds of 20 audits, and of all their trials together."""
    estimate = gaussian_bound if game.gaussian else counting_bound
    audits = [play(game, trials=trials, seed=seed) for seed in range(AUDITS)]
    together = tuple(np.concatenate([scores[world] for scores in audits]) for world in (0, 1))
    return [estimate(scores, delta=game.delta, confidence=CONFIDENCE).epsilon for scores in (*audits, together)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in WHOLE else name for name in PROVEN]
)
def test_twenty_audits_in_a_row_stay_below_the_proven_epsilon(name):
    game = METHODS[name]().game(BUDGET)
    assert game.proven is not None, f"{name} proves something: its game must say what, for what it runs"
    assert max(bounds(game, trials=200)) <= game.proven.epsilon


def test_a_proof_that_is_too_good_would_not_pass():
    assert bounds(gaussian_game(4.0), trials=150)[-1] > 2
    assert bounds(laplace_game(4.0), trials=150)[-1] > 2
    leaking = replace(laplace_game(1.0), play=lambda world, trials, _: torch.full((trials,), float(world)))
    assert min(bounds(leaking, trials=150)) > BUDGET.epsilon
    assert audit(leaking, trials=200, confidence=1 - 1e-6).epsilon > BUDGET.epsilon
