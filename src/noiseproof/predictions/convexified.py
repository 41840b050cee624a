"""The convexified loss of Lu et al. (2022), eq. 22: a log-mean-exp of the records' losses, in a form that never overflows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional

from noiseproof.errors import SettingError

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
