"""Figure 3's arithmetic: both formulas of the paper, and what an accountant says of noise on a loss that is bounded."""

from __future__ import annotations

from dataclasses import dataclass

from noiseproof.methods.losses import rdp_gan as claims
from noiseproof.privacy import accountants
from noiseproof.privacy.events import sampled_gaussian
from papers.ma.published import LARGEST_LOSS

SIGMAS = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0)
RECORDS = {"adult": 20_000, "mnist": 60_000}
STEPS, DELTA, ORDER = 5, 1e-5, 2.0


@dataclass(frozen=True)
class Level:
    """The privacy level of one generator iteration at a noise: claimed by Theorem 3, by formula (23), and true."""

    data: str
    batch_size: int
    sigma: float
    theorem: float
    moments: float
    truth: float


def levels(sigmas: tuple[float, ...] = SIGMAS) -> tuple[Level, ...]:
    """Figure 3 for both sets and both batches.

    The third curve is the accountant's for `STEPS` sums of losses in [0, C] divided by B, with noise sigma, over Poisson
    samples: what the released *values* would cost if C bounded them and nothing else were released. The method releases
    gradients instead, for which no finite epsilon holds.
    """
    found = []
    for (data, batch), (_, bound, _) in LARGEST_LOSS.items():
        rate, sensitivity = batch / RECORDS[data], claims.loss_sensitivity(bound, batch)
        for sigma in sigmas:
            event = sampled_gaussian(rate, sigma / sensitivity, STEPS)
            found.append(
                Level(
                    data,
                    batch,
                    sigma,
                    claims.iteration_epsilon(rate, ORDER, sensitivity, sigma, STEPS, DELTA),
                    claims.moments_epsilon(rate, STEPS, DELTA, sigma),
                    accountants.epsilon(event, DELTA, accountant="rdp").epsilon,
                )
            )
    return tuple(found)
