"""What all methods at the losses share: settings of a GAN, checks, and the release of synthetic records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from noiseproof.errors import SettingError
from noiseproof.guarantees.card import Place
from noiseproof.losses.coding import check_records
from noiseproof.losses.gan import Gan, Model, is_picture
from noiseproof.losses.tuning import NoiseTuning, Tuning
from noiseproof.methods import Method
from noiseproof.releases import DataRelease

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.data.dataset import Public
    from noiseproof.guarantees import Card, Randomness


@dataclass(frozen=True)
class GanMethod(Method):
    """A generator trained against a discriminator that sees private records; what leaves are generated records."""

    place: ClassVar[Place] = "losses"

    rows: int | None = None
    """Synthetic records to release; None as many as there are private ones (a number that is public)."""
    model: Model = "auto"
    """`features`: a critic linear in public features; `dense` or `conv`: the paper's pairs of networks."""
    tuning: Tuning = "constant"
    """How the noise changes: constant, time, exp, step or ant."""
    decay: float | None = None
    """The schedule's k; None the paper's best for MNIST."""
    every: int = 100
    """Iterations between changes of `step`, or between looks of `ant`."""
    threshold: float = 0.005
    """`ant` lowers the noise when the running mean of the score gains less than this."""
    latent: int = 64

    def __post_init__(self) -> None:
        if self.rows is not None and self.rows < 1:
            raise SettingError(f"{self.name} must make at least 1 row, not {self.rows}.")
        if self.model not in ("auto", "features", "dense", "conv"):
            raise SettingError(f"{self.name}'s setting model is auto, features, dense or conv, not {self.model!r}.")
        if self.latent < 1:
            raise SettingError(f"{self.name}'s setting latent must be at least 1, not {self.latent}.")
        if self.tuning not in ("constant", "time", "exp", "step", "ant"):
            raise SettingError(
                f"{self.name}'s setting tuning is constant, time, exp, step or ant, not {self.tuning!r}."
            )
        self._noise(1.0)  # refuses an impossible decay

    def _positive(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise SettingError(f"{self.name}'s setting {name} must be positive, not {value}.")

    def _noise(self, start: float) -> NoiseTuning:
        return NoiseTuning(self.tuning, start, self.decay, every=self.every, threshold=self.threshold)

    def _network(self, public: Public, usual: Model) -> Model:
        """The networks that `auto` stands for; convolutions only where they can be."""
        if self.model == "auto":
            return "conv" if usual != "features" and is_picture(public.shape) else usual
        if self.model == "conv" and len(public.shape) == 3 and not is_picture(public.shape):
            raise SettingError(f"{self.name}'s model conv needs pictures of 16 x 16 or more; choose dense or features.")
        return self.model

    def _start(self, dataset: Dataset, model: Model, rng: Randomness, relaxed: float | None = None) -> Gan:
        """The untrained generator; records that cannot be learned from are refused here, before anything is spent."""
        check_records(dataset)
        seed = int(torch.randint(2**31, (1,), generator=rng.generator))
        return Gan(dataset.public, model, latent=self.latent, seed=seed, relaxed=relaxed)

    def _release(self, gan: Gan, dataset: Dataset, card: Card) -> DataRelease:
        synthetic = gan.sample(len(dataset) if self.rows is None else self.rows, dataset.name)
        return DataRelease(synthetic, card, self.settings())
