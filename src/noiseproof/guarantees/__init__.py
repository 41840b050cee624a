"""What a promise is: budgets, events, accountants, noise, randomness, filters, cards, games. Knows no networks."""

from noiseproof.guarantees.budget import Budget, Neighbours
from noiseproof.guarantees.card import Audit, Card, Claim, Proof
from noiseproof.guarantees.events import EventLog
from noiseproof.guarantees.game import Game
from noiseproof.guarantees.randomness import Randomness

__all__ = ["Audit", "Budget", "Card", "Claim", "EventLog", "Game", "Neighbours", "Proof", "Randomness"]
