"""The four accountings of DP-SGD that Lu et al. (2022) compare with, as in the paper, and what holds for the same noise.

Jayaraman and Evans (2019), whose program the paper uses, count one Gaussian mechanism an epoch. That is right where every
record is in exactly one batch an epoch and which one does not depend on records, so that the batches of an epoch
compose in parallel. It is not what a training on Poisson samples does, nor what the fourth of them, Renyi accounting,
counts: those are steps, at a sampling rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from noiseproof.errors import SettingError
from noiseproof.privacy import accountants, calibration, gaussian_dp
from noiseproof.privacy.budget import check_epsilon
from noiseproof.privacy.events import sampled_gaussian

AccountingName = Literal["naive", "advanced", "zcdp", "rdp"]

NAMES: tuple[AccountingName, ...] = get_args(AccountingName)


@dataclass(frozen=True)
class Accounting:
    """A noise multiplier for DP-SGD by one accounting, and what it comes to. All for add-or-remove at one delta."""

    name: AccountingName
    epsilon: float
    delta: float
    sigma: float
    """As in the paper: naive, advanced and zCDP count an epoch as one Gaussian mechanism; RDP counts sampled steps."""
    step_sigma: float
    """The same accounting with every step counted: by the same formula over steps; for RDP the same number."""
    partition_epsilon: float
    """What holds for `sigma` if every record is in exactly one batch an epoch, by Gaussian DP, exactly."""
    poisson_epsilon: float
    """What holds for `sigma` if batches are Poisson samples, over all steps, by Renyi accounting."""


def naive_sigma(epsilon: float, delta: float, times: int) -> float:
    """`times` Gaussian mechanisms of (epsilon, delta) / times each, by the classical bound.

    The bound is for epsilons below 1 each (Dwork and Roth 2014, appendix A); the paper uses it above too.
    """
    return times * math.sqrt(2 * math.log(1.25 * times / delta)) / epsilon


def advanced_sigma(epsilon: float, delta: float, times: int) -> float:
    """`times` Gaussian mechanisms by advanced composition, half of delta for the composition."""
    slack = math.log(2 / delta)
    return (
        math.sqrt(times * math.log(2.5 * times / delta)) * (math.sqrt(slack + 2 * epsilon) + math.sqrt(slack)) / epsilon
    )


def zcdp_sigma(epsilon: float, delta: float, times: int) -> float:
    """`times` Gaussian mechanisms by zero-concentrated DP: epsilon = rho + 2 sqrt(rho log(1 / delta))."""
    slack = math.log(1 / delta)
    return math.sqrt(times / 2) * (math.sqrt(slack + epsilon) + math.sqrt(slack)) / epsilon


_FORMULAS = {"naive": naive_sigma, "advanced": advanced_sigma, "zcdp": zcdp_sigma}


def accounting(
    name: AccountingName,
    epsilon: float,
    *,
    records: int,
    batch_size: int = 100,
    epochs: int = 100,
    delta: float | None = None,
) -> Accounting:
    """The noise of DP-SGD for `epsilon` by one of the paper's accountings; delta is 1 / (10 records) unless given."""
    check_epsilon(epsilon)
    if name not in NAMES:
        raise SettingError(f"the paper's accountings are {', '.join(NAMES)}, not {name!r}.")
    if not 1 <= batch_size <= records or epochs < 1:
        raise SettingError(
            f"{epochs} epochs in batches of {batch_size} out of {records} records cannot be accounted for."
        )
    chosen = 1 / (10 * records) if delta is None else delta
    rate, steps = batch_size / records, math.ceil(epochs * records / batch_size)
    if name == "rdp":
        sigma = calibration.sigma(epsilon, chosen, rate, steps, accountant="rdp").sigma
        step_sigma = sigma
    else:
        sigma, step_sigma = (_FORMULAS[name](epsilon, chosen, times) for times in (epochs, steps))
    sampled = accountants.epsilon(sampled_gaussian(rate, sigma, steps), chosen, accountant="rdp")
    return Accounting(
        name=name,
        epsilon=epsilon,
        delta=chosen,
        sigma=sigma,
        step_sigma=step_sigma,
        partition_epsilon=gaussian_dp.epsilon_of(math.sqrt(epochs) / sigma, chosen),
        poisson_epsilon=sampled.epsilon,
    )


def limit_accuracy(accuracy: float, second: float, classes: int) -> float:
    """The accuracy as epsilon goes to 0, where the baseline's best guess is right at `accuracy` and its second at `second`.

    The neuron is any with equal chances and its noise swamps everything: half the time it wins, and is right once in
    `classes`; half the time it is last, and the best of the others answers, which is the second best if the best one
    was hit. So 1/2 (1/C) + 1/2 ((1 - 1/C) accuracy + (1/C) second), for two classes one half.
    """
    share = 1 / classes
    return (share + (1 - share) * accuracy + share * second) / 2
