"""The convexified loss of Lu et al. (2022), eq. 22: a log-mean-exp of the records' losses, in a form that never overflows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
from torch.nn import functional

from noiseproof.errors import SettingError
from noiseproof.networks import Network, Training, fit_stack
from noiseproof.progress import SILENT, Progress

if TYPE_CHECKING:
    from noiseproof.data import Dataset


Form = Literal["paper", "code"]
"""`paper`: eq. 22. `code`: what the authors published and, by its numbers, measured with; see `Convexified`."""


@dataclass(frozen=True)
class Convexified:
    """A loss for `networks.fit_stack`: `log(mean(exp(alpha * l))) / alpha` over each network's batch of cross-entropies.

    The paper calls it convex. It is not: a composition with a network's non-convex losses has only a larger convex
    region. What it does is weigh a record by exp(alpha * l), so that the worst record's weight may approach 1, where a
    mean gives it 1 / batch.

    `form="code"` averages `exp(alpha * l)` over all batch x classes entries of the element-wise cross-entropy, as the
    authors' program does; the classes - 1 entries a record that are not its label are exp(0) = 1. Gradients shrink by
    about the number of classes, which makes the L2 term that much stronger: only this form gives the paper's
    .99 / .65 on Location (eq. 22 gives 1.00 / .61, like the plain loss).

    Formal guarantee
    ----------------
    None: a loss is no noise.
    """

    alpha: float | tuple[float, ...] = 1.0
    """The risk factor; several of them are for a stack of networks that are all trained on equally many records."""
    form: Form = "paper"

    def __post_init__(self) -> None:
        for alpha in self.alphas:
            if not (math.isfinite(alpha) and alpha > 0):
                raise SettingError(f"alpha must be a finite number greater than 0, not {alpha}.")
        if self.form not in ("paper", "code"):
            raise SettingError(f"the convexified loss has the forms paper and code, not {self.form!r}.")

    @property
    def alphas(self) -> tuple[float, ...]:
        """The risk factors, one or one a network."""
        return self.alpha if isinstance(self.alpha, tuple) else (self.alpha,)

    def __call__(self, logits: torch.Tensor, labels: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """Each network's loss (k,) from logits (k, batch, classes), labels and shares (k, batch)."""
        losses = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(shares)
        alpha = losses.new_tensor(self.alphas)
        if len(alpha) not in (1, len(losses)):
            raise SettingError(f"{len(losses)} networks cannot be trained with {len(alpha)} values of alpha.")
        return log_mean_exp(losses, shares, alpha, None if self.form == "paper" else logits.shape[-1])


def log_mean_exp(
    losses: torch.Tensor, shares: torch.Tensor, alpha: torch.Tensor, classes: int | None = None
) -> torch.Tensor:
    """`log(sum(shares * exp(alpha * losses))) / alpha` over the last dimension, without computing an exponential of it.

    With `classes` the mean is over batch x classes entries, all of them 1 but the labels'. Records with a share of 0
    count for nothing.
    """
    total = torch.logsumexp(alpha[:, None] * losses + shares.log(), dim=-1)
    if classes is not None:
        others = torch.full_like(total, math.log(classes - 1))
        total = torch.logaddexp(total, others) - math.log(classes)
    return total / alpha


# Which alpha: the paper's for the sets it was measured on, or a search on a validation split.


GRID = tuple(step / 2 for step in range(1, 21))
"""(0, 10] in steps of 0.5: the paper's grid."""

_PUBLISHED = {
    "location": 1.0,
    "mnist": 1.0,
    "adult": 1.0,
    "cifar100": 1.0,
    "cifar10": 2.0,
    "texas": 4.0,
    "purchase": 5.0,
    "retail": 5.0,
    "retail-2": 1.0,
    "retail-10": 5.0,
    "retail-20": 5.0,
    "retail-50": 5.0,
    "retail-100": 5.0,
}


def published_alpha(name: str) -> float:
    """Table 4's alpha for a named set (retail has that of the Purchase it stands for); 1 for any other."""
    return _PUBLISHED.get(name, 1.0)


def search_alpha(
    network: Network,
    dataset: Dataset,
    training: Training,
    form: Form,
    *,
    grid: Sequence[float] = GRID,
    validation: float = 0.2,
    seed: int = 0,
    progress: Progress = SILENT,
) -> float:
    """The alpha that is most accurate on records held out; the smallest of equals. All of the grid is trained at once.

    Formal guarantee
    ----------------
    None: the accuracies are those of networks trained without noise on private records. What is chosen this way is
    chosen by private records, and cards say so.
    """
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed))
    held = max(1, round(validation * len(dataset)))
    kept = order[held:]
    networks = fit_stack(
        network,
        dataset.features,
        dataset.labels,
        [kept] * len(grid),
        replace(training, loss=Convexified(tuple(grid), form)),
        seeds=[seed] * len(grid),
        progress=progress,
    )
    guesses = networks.logits(dataset.features[order[:held]]).argmax(-1)
    right = (guesses == dataset.labels[order[:held]]).sum(1)
    # argmax gives the first of equals.
    return float(grid[int(right.argmax())])
