"""What an attack may see of its target."""

from __future__ import annotations

from typing import Protocol

import torch

from noiseproof.errors import DataError

_TINY = 1e-30
"""Probabilities are taken to be at least this, so that an answer of exactly 0 or 1 has a finite score."""


class Predicts(Protocol):
    """Anything that answers records with class probabilities: a `ModelRelease`, a `PredictionRelease`."""

    def predict(self, features: torch.Tensor) -> torch.Tensor:
        """Class probabilities, (records, classes)."""


class Counted:
    """A target that counts the answers it gave: one a record."""

    def __init__(self, target: Predicts) -> None:
        self._target = target
        self.queries = 0

    def predict(self, features: torch.Tensor) -> torch.Tensor:
        """The target's answer."""
        answers = self._target.predict(features)
        self.queries += len(features)
        if not torch.isfinite(answers).all():
            raise DataError(
                "the release answered NaN or infinity; its training diverged, so there is nothing to attack."
            )
        return answers


def confidence(answers: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The logarithm of the probability that each answer gives to the true label: minus its loss."""
    chosen = answers.double().gather(-1, labels[..., None]).squeeze(-1)
    return chosen.clamp(min=_TINY).log()


def logit_confidence(answers: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """log(p / (1 - p)) of the probability p given to the true label, near normal over trainings (Carlini et al. 2022).

    1 - p is summed from the other classes: in float32 a confident p is exactly 1 while they are still positive.
    """
    others = answers.double().scatter(-1, labels[..., None], 0.0).sum(-1)
    return confidence(answers, labels) - others.clamp(min=_TINY).log()
