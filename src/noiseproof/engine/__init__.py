"""Per-record gradients from one forward and one backward pass: norms first, then any weighted sum of them."""

from __future__ import annotations

from noiseproof.engine.clipping import clip_weights
from noiseproof.engine.per_record import PerRecordGradients, RecordGradients
from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.engine.sampling import PoissonSampler

__all__ = ["PerRecordGradients", "PoissonSampler", "PrivateGradients", "RecordGradients", "clip_weights"]
