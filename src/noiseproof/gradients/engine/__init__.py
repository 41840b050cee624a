"""Per-record gradients from one forward and one backward pass: norms first, then any weighted sum of them."""

from noiseproof.gradients.engine.clipping import clip_weights
from noiseproof.gradients.engine.per_record import PerRecordGradients
from noiseproof.gradients.engine.record_gradients import RecordGradients

__all__ = ["PerRecordGradients", "RecordGradients", "clip_weights"]
