"""Mechanisms of known epsilon: what an audit must never overshoot and should come close to.

They can be sent to a fresh process, unlike the games of most methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from noiseproof.privacy import gaussian_dp
from noiseproof.privacy.budget import check_delta, check_epsilon
from noiseproof.privacy.card import Claim, Game, Proof


@dataclass(frozen=True)
class _GaussianShift:
    """A count plus Normal(0, 1/mu^2): 0 in world 0, 1 in world 1, in units of the noise."""

    mu: float

    def __call__(self, world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
        return self.mu * world + torch.randn(trials, generator=generator, dtype=torch.float64)


@dataclass(frozen=True)
class _LaplaceShift:
    """A count plus Laplace(1/epsilon): 0 in world 0, 1 in world 1."""

    epsilon: float

    def __call__(self, world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
        halves = torch.empty(2, trials, dtype=torch.float64).exponential_(self.epsilon, generator=generator)
        return world + halves[0] - halves[1]


@dataclass(frozen=True)
class _RandomisedResponse:
    """The bit `world`, told truly with probability e^epsilon / (1 + e^epsilon)."""

    epsilon: float

    def __call__(self, world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
        lies = torch.rand(trials, generator=generator, dtype=torch.float64) < 1 / (1 + math.exp(self.epsilon))
        return torch.where(lies, 1 - world, world).double()


def gaussian_game(epsilon: float, delta: float = 1e-5) -> Game:
    """A count with Gaussian noise that makes it (epsilon, delta)-DP exactly, and no better."""
    mu = gaussian_dp.mu_within(check_epsilon(epsilon), check_delta(delta))
    return _game(
        "Gaussian mechanism", _GaussianShift(mu), epsilon, delta, "Balle and Wang 2018, theorem 8", gaussian=True
    )


def laplace_game(epsilon: float, delta: float = 0.0) -> Game:
    """A count with Laplace noise that makes it epsilon-DP exactly."""
    return _game("Laplace mechanism", _LaplaceShift(check_epsilon(epsilon)), epsilon, delta, "Dwork et al. 2006")


def randomised_response_game(epsilon: float, delta: float = 0.0) -> Game:
    """A bit that lies now and then, epsilon-DP exactly: scores are two atoms."""
    return _game("randomised response", _RandomisedResponse(check_epsilon(epsilon)), epsilon, delta, "Warner 1965")


def _game(
    name: str,
    play: Callable[[int, int, torch.Generator], torch.Tensor],
    epsilon: float,
    delta: float,
    source: str,
    gaussian: bool = False,
) -> Game:
    return Game(
        f"{name}: a count of one record",
        play,
        "add-or-remove",
        delta,
        claimed=Claim(epsilon=epsilon, delta=delta, source=source),
        proven=Proof(epsilon=epsilon, delta=delta, accountant="exact"),
        gaussian=gaussian,
    )
