"""Private training for people who have a loop: plain torch, Hugging Face, Lightning."""

from __future__ import annotations

from noiseproof.integrations.layers import fix
from noiseproof.integrations.loop import make_private
from noiseproof.integrations.training import PrivateTraining

__all__ = ["PrivateTraining", "fix", "make_private"]
