"""Figure 3's arithmetic, and Table II's experiment: the largest loss of a record without noise."""

from __future__ import annotations

from dataclasses import dataclass

from noiseproof.methods.losses import rdp_gan as claims
from noiseproof.methods.losses.gan import Gan
from noiseproof.methods.losses.rdp_gan import PairTraining, RdpGan
from noiseproof.privacy import Reproducible, accountants
from noiseproof.privacy.events import sampled_gaussian
from papers.ma.plans import DATA, Plan, pair
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


def largest_losses(plan: Plan, seed: int) -> dict[tuple[str, int], float]:
    """The largest loss of one real record in a whole training without noise, for both sets and batches of 64 and 128.

    Formal guarantee
    ----------------
    None: a largest value of private records.
    """
    found = {}
    for data in DATA:
        dataset, _ = pair(data, plan.records[data], plan.test, seed)
        for batch in (64, 128):
            method = RdpGan(batch_size=batch, model="dense", sigma=0.0)
            gan = Gan(dataset.public, "dense", latent=method.latent, seed=seed, relaxed=0.5)
            training = PairTraining(method, gan, gan.discriminator("dense"), dataset, Reproducible(seed), seed)
            with gan.seeded():
                for _ in range(plan.iterations):
                    training.iterate(0.0)
            found[data, batch] = training.largest
    return found
