"""What a training at the inputs sees: records perturbed once and for all, or noise drawn afresh for every batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import torch

from noiseproof.inputs.input_noise import InputNoise, check_bounds
from noiseproof.inputs.taylor import LossNoise, first_order

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.guarantees import Randomness

Draw = Literal["record", "batch"]
"""`record`: noise of its own for every record, once (Algorithm 1). `batch`: one draw for all records of a batch, afresh
at every step (the authors' program)."""

Coefficients = Literal["first-order", "hidden", "plain"]
"""Where the loss's noise goes. `first-order`: on the coefficients that depend on labels (Algorithm 1). `hidden`: one vector
on the last hidden units, as the authors' program writes it. `plain`: none, which is what their program runs: it hands the
training the noise of its evaluation, which is 0."""


@dataclass(frozen=True)
class Batch:
    """Some records as the training sees them."""

    features: torch.Tensor
    bias: torch.Tensor
    """The first layer's bias is multiplied by it."""
    coefficients: torch.Tensor
    """Of first order, (records, classes)."""
    hidden: torch.Tensor | None
    """Noise that is added to the last hidden units."""


class Source(Protocol):
    """Where batches come from."""

    def __len__(self) -> int: ...

    def batch(self, indices: torch.Tensor) -> Batch:
        """The records at these indices."""

    def still(self, indices: torch.Tensor) -> torch.Tensor:
        """Features at these indices with no noise that changes from step to step, to settle normalisations by."""


class PerturbedRecords:
    """Records whose features and labels were perturbed once; it holds no other copy of them.

    Formal guarantee
    ----------------
    Every record is released with (`InputNoise.local_epsilon` + `LossNoise.local_epsilon`)-local DP, so that whatever is
    computed from this object, however often, is as much DP under replace-one. Only `coefficients="first-order"` perturbs
    labels: with the other readings they are exact, and nothing holds.
    """

    def __init__(
        self, dataset: Dataset, inputs: InputNoise, loss: LossNoise, coefficients: Coefficients, rng: Randomness
    ) -> None:
        self.features = inputs.perturb(dataset.features, rng)
        self.bias = inputs.bias(len(dataset), rng)
        exact = first_order(dataset.labels, dataset.classes)
        self.coefficients = loss.perturb(exact, rng) if coefficients == "first-order" else exact
        self._hidden = _HiddenNoise(loss, coefficients, rng)

    def __len__(self) -> int:
        return len(self.features)

    def batch(self, indices: torch.Tensor) -> Batch:
        """The perturbed records at these indices."""
        return Batch(
            self.features[indices], self.bias[indices], self.coefficients[indices], self._hidden.draw(self.features)
        )

    def still(self, indices: torch.Tensor) -> torch.Tensor:
        """The perturbed features at these indices."""
        return self.features[indices]


class SharedNoise:
    """Records as they are, to which every batch's own draw is added: one picture, one bias, one coefficient a class.

    Formal guarantee
    ----------------
    None: the records of a batch differ by exactly as much as they did.
    """

    def __init__(
        self, dataset: Dataset, inputs: InputNoise, loss: LossNoise, coefficients: Coefficients, rng: Randomness
    ) -> None:
        check_bounds(dataset.features)
        self._features = dataset.features
        self._exact = first_order(dataset.labels, dataset.classes)
        self._inputs, self._loss, self._coefficients, self._rng = inputs, loss, coefficients, rng
        self._hidden = _HiddenNoise(loss, coefficients, rng)

    def __len__(self) -> int:
        return len(self._features)

    def batch(self, indices: torch.Tensor) -> Batch:
        """The records at these indices with one draw of noise for all of them."""
        features = self._features[indices]
        picture = self._inputs.picture(tuple(features.shape[1:]), self._rng)
        coefficients = self._exact[indices]
        if self._coefficients == "first-order":
            coefficients = coefficients + self._loss.perturb(torch.zeros_like(coefficients[:1]), self._rng)
        bias = self._inputs.bias(1, self._rng).expand(len(indices))
        return Batch(features + picture.to(features), bias, coefficients, self._hidden.draw(features))

    def still(self, indices: torch.Tensor) -> torch.Tensor:
        """The features at these indices as they are."""
        return self._features[indices]


class _HiddenNoise:
    """Noise on the last hidden units, one draw a step, for the reading that has it."""

    def __init__(self, loss: LossNoise, coefficients: Coefficients, rng: Randomness) -> None:
        self._loss, self._rng = loss, rng
        self._wanted = coefficients == "hidden"

    def draw(self, like: torch.Tensor) -> torch.Tensor | None:
        if not self._wanted:
            return None
        return self._loss.perturb(torch.zeros(self._loss.hidden), self._rng).to(like.device)
