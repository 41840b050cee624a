"""What a promise is: budgets, events, accountants, noise, randomness, filters, cards, games. Knows no networks."""

from noiseproof.guarantees.budget import Budget, Neighbours
from noiseproof.guarantees.card import Audit, Card, Claim, Proof
from noiseproof.guarantees.events import EventLog
from noiseproof.guarantees.game import Game
from noiseproof.guarantees.mechanisms import Exponential, Gaussian, Laplace, NoisyMax
from noiseproof.guarantees.randomness import Randomness
from noiseproof.guarantees.reproducible import Reproducible
from noiseproof.guarantees.secure import Secure

__all__ = [
    "Audit",
    "Budget",
    "Card",
    "Claim",
    "EventLog",
    "Exponential",
    "Game",
    "Gaussian",
    "Laplace",
    "Neighbours",
    "NoisyMax",
    "Proof",
    "Randomness",
    "Reproducible",
    "Secure",
]
