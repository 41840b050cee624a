"""WeightsRelease: published weights of a network whose architecture is the user's own affair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from noiseproof.releases import Release, Saved

if TYPE_CHECKING:
    from noiseproof.data.dataset import Public
    from noiseproof.guarantees import Card


class WeightsRelease(Release):
    """Tensors by name, to be loaded into the user's own module (`load_state_dict(release.tensors())`)."""

    kind = "weights"

    def __init__(
        self, tensors: Mapping[str, torch.Tensor], card: Card, public: Public, settings: Mapping[str, Any]
    ) -> None:
        super().__init__(card, public, settings)
        self._tensors = dict(tensors)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The published weights."""
        return dict(self._tensors)

    def description(self) -> dict[str, Any]:
        """Nothing more is needed."""
        return {}

    @classmethod
    def restore(cls, saved: Saved) -> WeightsRelease:
        """The same weights; a `module` gets them too."""
        if saved.module is not None:
            saved.module.load_state_dict(dict(saved.tensors))
        return cls(saved.tensors, saved.card, saved.public, saved.settings)
