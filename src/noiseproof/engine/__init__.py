"""Per-record gradients from one forward and one backward pass, clipped and noised for a training loop of your own."""

from __future__ import annotations

from noiseproof.engine.clipping import RecordGradients, clip_weights
from noiseproof.engine.contributions import Contribution
from noiseproof.engine.correlated import CorrelatedGradients
from noiseproof.engine.per_record import PerRecordGradients, check_rule
from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.engine.rules import register_rule
from noiseproof.engine.sampling import PoissonSampler

__all__ = [
    "Contribution",
    "CorrelatedGradients",
    "PerRecordGradients",
    "PoissonSampler",
    "PrivateGradients",
    "RecordGradients",
    "check_rule",
    "clip_weights",
    "register_rule",
]
