"""Table II's experiment: the largest loss of a batch that a training without noise ever has."""

from __future__ import annotations

from noiseproof.methods.losses.gan import Gan
from noiseproof.methods.losses.rdp_gan import PairTraining, RdpGan
from noiseproof.privacy import Reproducible
from papers.ma.plans import DATA, Plan
from papers.ma.sets import pair

_SHARE = 4
"""A quarter of the iterations: the largest losses come early."""


def largest_losses(plan: Plan, seed: int) -> dict[tuple[str, int], float]:
    """The largest sum of a real batch's losses, for both sets and batches of 64 and 128.

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
                for _ in range(max(1, plan.iterations // _SHARE)):
                    training.iterate(0.0)
            found[data, batch] = training.largest
    return found
