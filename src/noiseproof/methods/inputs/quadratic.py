"""The loss of a whole data set as a quadratic form: its coefficients, their sensitivity, their noise, its minimiser.

For features phi of norm 1 the loss of all records is, up to what is the same for all classes,
sum_l W_l S W_l / 8 - c_l W_l with S = sum phi phi^T and c_l = sum (y_l - 1/M) phi, minimised by W = 4 S^-1 c. (The paper's
coefficient is 1/2 - y_l. Its other part, (1/2 - 1/M) sum phi, moves the logits of all classes alike, which no answer sees:
it is left out, and the noise it would cost with it.)

Of a number y, coded to [0, 1], the loss is the squared error of least squares, which is quadratic as it stands (Zhang et al.
2012): sum (1/2 + W phi - y)^2 = W S W - 2 c W + what does not depend on W, with c = sum (y - 1/2) phi; minimised by W = S^-1 c.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch.nn import functional

from noiseproof.data.dataset import Dataset
from noiseproof.errors import SettingError
from noiseproof.privacy import Budget, Gaussian, Laplace, Proof, accountants, calibration
from noiseproof.privacy.accountants import Spent
from noiseproof.privacy.events import ComposedDpEvent, DpEvent, ReplaceOneDpEvent
from noiseproof.progress import SILENT, Progress

if TYPE_CHECKING:
    from noiseproof.privacy import Randomness


Law = Literal["gaussian", "laplace"]

_ENTRIES = 1 << 24
"""Mapped features that are in memory at once: 64 megabytes."""
_SLACK = 1 + 1e-5
"""Room for the rounding of features to norm 1."""
_WIDE = 512
"""From this width on products are in float32, and summed in float64."""

ASSUMPTIONS = (
    "the feature map, the ridge and the shares of the noise were not chosen by looking at the private records",
    "sums over records are exact (floating-point error of the sum is not accounted for)",
)


@dataclass(frozen=True, eq=False)
class Quadratic:
    """The coefficients S and c of a data set as one vector of sensitivity 1, with the noise that a budget asks for.

    Formal guarantee
    ----------------
    The budget's (epsilon, delta), delta 0 for Laplace noise. Unit: record; or person, where records have them: a
    person's records then share a weight of 1, and add the mean of what they would add alone. Neighbours: the budget's.
    With ||phi|| <= 1 in L2 norm, adding or removing a record moves S by ||phi phi^T||_F <= 1 and c by sqrt(1 - 1/M);
    exchanging one moves S by at most sqrt(2) (both matrices are positive) and c by 2 sqrt(1 - 1/M). Of a number in
    [0, 1], c moves by 1/2, and by 1 where a record is exchanged, in L2 norm as in L1. S is released as its upper
    triangle with the off-diagonal times sqrt(2), which has the norm of S. With ||phi|| <= 1 in L1 norm, the upper triangle
    moves by at most 1 and c by 2 (1 - 1/M) in L1 norm, twice that for an exchange. S and c are divided
    by these and weighted such that together they have sensitivity 1, and get one Gaussian or Laplace mechanism. Where
    S has no share, c_l = sum y_l phi is released alone and not centred: a record moves it by ||phi|| <= 1, an exchange by 2.
    References: Zhang et al. 2012 (functional mechanism); Dwork et al. 2014 (noise on second moments).
    """

    embed: Callable[[torch.Tensor], torch.Tensor]
    width: int
    classes: int
    """One coefficient c for each of so many classes; of a number, 1."""
    law: Law
    share: float
    """S's part of the noise's budget; 0 releases c alone."""
    budget: Budget
    numeric: bool = False
    """Whether labels are numbers in [0, 1] instead of classes."""

    def __post_init__(self) -> None:
        if self.law == "gaussian" and self.budget.delta == 0:
            raise SettingError("Gaussian noise needs a delta above 0; choose one such as 1e-5, or noise=laplace.")

    @property
    def weights(self) -> tuple[float, float]:
        """What S and c are multiplied by, so that together they have sensitivity 1."""
        exchange = self.budget.neighbours == "replace-one"
        records = 2.0 if exchange else 1.0
        if not self.share:
            return 0.0, 1 / (records * _SLACK)
        centred = 1 - 1 / self.classes
        if self.law == "gaussian":
            moves = (math.sqrt(records), records * (0.5 if self.numeric else math.sqrt(centred)))
            parts = (math.sqrt(self.share), math.sqrt(1 - self.share))
        else:
            moves = (records, records * (0.5 if self.numeric else 2 * centred))
            parts = (self.share, 1 - self.share)
        return parts[0] / (moves[0] * _SLACK**2), parts[1] / (moves[1] * _SLACK)

    @property
    def mechanism(self) -> Gaussian | Laplace:
        """What adds the noise."""
        if self.law == "laplace":
            return Laplace(1.0, self.budget.epsilon)
        # The sensitivity is that of the budget's neighbours already, so that one unsampled step is what is calibrated.
        return Gaussian(1.0, calibration.sigma(self.budget.epsilon, self.budget.delta, 1.0, 1).sigma)

    @property
    def event(self) -> DpEvent:
        """What the release is, for accountants."""
        event = self.mechanism.event
        return ReplaceOneDpEvent(event) if self.budget.neighbours == "replace-one" else event

    def spent(self, before: Sequence[DpEvent] = (), delta: float | None = None) -> Spent:
        """What one release spends, at the budget's delta or another, composed with what was released `before`."""
        event = ComposedDpEvent([*before, self.event]) if before else self.event
        delta = self.budget.delta if delta is None else delta
        return accountants.epsilon(event, 0.0 if self.law == "laplace" else delta, neighbours=self.budget.neighbours)

    def proof(self, *assumptions: str) -> Proof:
        """What is proven of one release."""
        return self.spent().proof(*ASSUMPTIONS, *assumptions)

    def sums(self, dataset: Dataset, progress: Progress = SILENT) -> torch.Tensor:
        """The coefficients as one vector, summed over batches of records; private until `release`."""
        exact = torch.float32 if self.width >= _WIDE else torch.float64
        weights = dataset.weights
        device = dataset.features.device
        second = torch.zeros(self.width, self.width, dtype=torch.float64, device=device)
        first = torch.zeros(self.classes, self.width, dtype=torch.float64, device=device)
        rows = max(1, min(_ENTRIES // self.width, 4096))
        with progress.task("summing coefficients", len(dataset)) as task:
            for start in range(0, len(dataset), rows):
                labels = dataset.labels[start : start + rows]
                mapped = self.embed(dataset.features[start : start + rows]).to(exact)
                if self.numeric:
                    # Targets lie in [0, 1]; one that does not must not move the sum any further.
                    centred = (labels.to(exact).nan_to_num(0.5).clamp(0, 1) - 0.5)[:, None]
                else:
                    centred = functional.one_hot(labels, self.classes).to(exact)
                    if self.share:
                        centred = centred - 1 / self.classes
                counted = mapped
                if weights is not None:
                    counted = mapped * weights[start : start + rows, None].to(mapped)
                if self.share:
                    second += mapped.T @ counted
                first += centred.T @ counted
                task.advance(len(labels))
        curvature, slope = self.weights
        if not self.share:
            return (first.flatten() * slope).cpu()
        triangle = second[self._triangle(device)] * curvature
        return torch.cat([triangle * self._stretch(device), first.flatten() * slope]).cpu()

    def scale(self, rng: Randomness) -> float:
        """The noise's scale on a coordinate of `sums`."""
        return self.mechanism.scale(rng, self._entries + self.classes * self.width)

    @property
    def _entries(self) -> int:
        """How many numbers of S are released."""
        return self.width * (self.width + 1) // 2 if self.share else 0

    def directions(self, sums: torch.Tensor, rng: Randomness) -> torch.Tensor:
        """Each class's noised sum of features over its length, as (width, classes), where S has no share.

        The length is the sum's own: what noise adds to its square on average, a public number, is taken off.
        """
        first = self.release(sums, rng)[1]
        added = (self.scale(rng) / self.weights[1]) ** 2 * (1 if self.law == "gaussian" else 2) * self.width
        return (first / (first.square().sum(1, keepdim=True) - added).clamp(min=added / self.width).sqrt()).T

    def release(self, sums: torch.Tensor, rng: Randomness) -> tuple[torch.Tensor, torch.Tensor]:
        """S (width, width) and c (classes, width) with noise."""
        noisy = self.mechanism.release(sums, rng)
        curvature, slope = self.weights
        device = torch.device("cpu")
        entries = self._entries
        second = torch.zeros(self.width, self.width, dtype=torch.float64)
        if entries:
            second[self._triangle(device)] = noisy[:entries] / self._stretch(device) / curvature
            second += second.triu(1).T
        return second, noisy[entries:].view(self.classes, self.width) / slope

    def spread(self, rng: Randomness) -> float:
        """How large the noise on S is, as an operator: its largest eigenvalue comes to about this."""
        entry = self.scale(rng) / self.weights[0]
        # Off the diagonal the standard deviation is entry / sqrt(2), or that of Laplace noise, entry * sqrt(2).
        deviation = entry / math.sqrt(2) if self.law == "gaussian" else entry * math.sqrt(2)
        return 2 * math.sqrt(self.width) * deviation

    def _triangle(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        rows, columns = torch.triu_indices(self.width, self.width, device=device)
        return rows, columns

    def _stretch(self, device: torch.device) -> torch.Tensor:
        """sqrt(2) off the diagonal for Gaussian noise, so that a triangle has its matrix's norm; else 1."""
        rows, columns = self._triangle(device)
        off = math.sqrt(2) if self.law == "gaussian" else 1.0
        return torch.where(rows == columns, 1.0, off).double()


def solve(second: torch.Tensor, first: torch.Tensor, ridge: float, *, numeric: bool = False) -> torch.Tensor:
    """W = 4 (S + ridge)^-1 c as (width, classes), of numbers a quarter of it.

    Negative eigenvalues of S, which are noise, are taken as 0: one that the ridge leaves just above 0 would make weights
    and predictions arbitrarily large.

    Formal guarantee
    ----------------
    None is needed: post-processing of released coefficients.
    """
    values, vectors = torch.linalg.eigh(second)
    return (1 if numeric else 4) * vectors @ ((vectors.T @ first.T) / (values.clamp(min=0) + ridge)[:, None])
