"""What Ma et al. (2020) claim: Theorems 1 to 4 and formula (23), as printed. None of it is proven here."""

from __future__ import annotations

import math

from noiseproof.errors import SettingError

PAPER = (
    "Ma, Li, Ding, Liu, Wei, Weng, Poor: RDP-GAN: a Renyi-differential privacy based generative adversarial network. "
    "arXiv:2007.02056, 2020"
)


def sensitivity(bound: float, batch: int) -> float:
    """Eq. (13): dS = C / B, C the largest loss that was seen."""
    return bound / batch


def renyi(rate: float, order: float, sensitivity: float, sigma: float) -> float:
    """Theorem 1: (order, epsilon)-RDP of a discriminator step. False: it rests on e^x - 1 <= x."""
    if not order > 1:
        raise SettingError(f"a Renyi order must be greater than 1, not {order}.")
    if sigma == 0:
        return math.inf
    return rate * order**2 * sensitivity**2 / (2 * (order - 1) * sigma**2)


def renyi_before_last_step(rate: float, order: float, sensitivity: float, sigma: float) -> float:
    """The line of Theorem 1's proof before the false one: order / (order - 1) q (e^(dS^2 order / 2 sigma^2) - 1)."""
    return order / (order - 1) * rate * math.expm1(sensitivity**2 * order / (2 * sigma**2))


def generator(renyi_epsilon: float, discriminator_steps: int, delta: float) -> float:
    """Theorems 2 and 3: the epsilon of one generator iteration after n_d discriminator steps."""
    return 4 * renyi_epsilon * math.sqrt(2 * discriminator_steps * math.log(1 / delta))


def total(generator_epsilon: float, iterations: int) -> float:
    """Theorem 4: n_g iterations, at one and the same delta."""
    return iterations * generator_epsilon


def moments(rate: float, discriminator_steps: int, delta: float, sigma: float) -> float:
    """Formula (23), which the paper compares with: 2 q sqrt(n_d ln(1 / delta)) / sigma."""
    return 2 * rate * math.sqrt(discriminator_steps * math.log(1 / delta)) / sigma if sigma else math.inf


def iteration(rate: float, order: float, sensitivity: float, sigma: float, steps: int, delta: float) -> float:
    """Theorem 3 from the settings: what one generator iteration is said to cost."""
    return generator(renyi(rate, order, sensitivity, sigma), steps, delta)


def calibrated(
    epsilon: float, delta: float, *, rate: float, order: float, sensitivity: float, steps: int, iterations: int
) -> float:
    """The noise at which Theorem 4 gives `epsilon` after so many iterations of constant noise."""
    at_one = total(iteration(rate, order, sensitivity, 1.0, steps, delta), iterations)
    return math.sqrt(at_one / epsilon)
