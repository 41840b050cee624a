"""Figure 3's arithmetic, how long the schedules last, and Table II's experiment: the largest loss of a record without noise."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from noiseproof.engine.sampling import Decay, Schedule
from noiseproof.methods.losses import rdp_gan as claims
from noiseproof.methods.losses.gan import Gan
from noiseproof.methods.losses.rdp_gan import TEMPERATURE, PairTraining, RdpGan
from noiseproof.privacy import Reproducible, accountants
from noiseproof.privacy.events import sampled_gaussian
from papers.ma.plans import Plan, joined, pair
from papers.ma.published import DECAYS, LARGEST_LOSS, SCHEDULES

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


FORMULAS: Mapping[str, Decay] = {"time": "time", "step": "step", "exp": "exponential"}
"""The schedules that are formulas of the iteration, eqs 19 to 21."""
ITERATIONS, STEP_LENGTH = 1000, 100
"""Of constant noise, whose cost is the budget; and t*, iterations between two changes of `step`."""


def lasts(
    tuning: str, rate: float, *, power: float = 2.0, clock: int = 1, budget: float = ITERATIONS, most: int = 10_000
) -> int:
    """Iterations until a schedule has spent what `budget` iterations of its first noise cost.

    Args:
        tuning: One of `FORMULAS`.
        rate: Its k.
        power: An iteration costs sigma to minus that: 2 by Theorem 4, 1 by formula (23).
        clock: Iterations that the schedule counts as one.
        budget: In iterations of the first noise.
        most: Where counting ends.
    """
    schedule, spent = Schedule(1.0, FORMULAS[tuning], rate, STEP_LENGTH), 0.0
    for iteration in range(most):
        spent += schedule.at(iteration // clock) ** -power
        if spent > budget * (1 + 1e-9):
            return iteration
    return most


def lasting_rate(data: str, tuning: str) -> float:
    """The k with which Theorem 4 lets the schedule last as long as Tables IV and V print."""
    wanted = SCHEDULES[data][tuning][0]
    # From noise that hardly falls to noise that falls fast.
    ends = (1.0, 0.1) if tuning == "step" else (0.0, 1.0)
    return float(f"{_last(lambda rate: lasts(tuning, rate) >= wanted, *ends):.4g}")


def lasting_power(data: str, tuning: str) -> float:
    """The power of 1 / sigma that an iteration would have to cost for the printed k to last as long as is printed."""
    wanted, rate = SCHEDULES[data][tuning][0], DECAYS[data][tuning]
    return _last(lambda power: lasts(tuning, rate, power=power) >= wanted, 0.0, 2.0)


def _last(holds: Callable[[float], bool], first: float, last: float) -> float:
    """Where what holds at the first end ceases to hold on the way to the last."""
    for _ in range(50):
        middle = (first + last) / 2
        first, last = (middle, last) if holds(middle) else (first, middle)
    return first


def named_epsilon(data: str, sigma: float, sensitivity: float, order: float = ORDER) -> float:
    """What Theorem 4 makes of 1,000 iterations at that noise, batches of 64."""
    return ITERATIONS * claims.iteration_epsilon(64 / RECORDS[data], order, sensitivity, sigma, STEPS, DELTA)


def order_for(epsilon: float, at_two: float) -> float | None:
    """The order above 2 at which Theorem 4 gives `epsilon`, where order 2, its least, gives `at_two`."""
    # a^2 / (a - 1) is 4 at order 2.
    level = 4 * epsilon / at_two
    return None if level < 4 else (level + math.sqrt(level**2 - 4 * level)) / 2


@dataclass(frozen=True)
class LossCell:
    """One training without noise for Table II."""

    data: str
    batch_size: int
    repeat: int = 0

    @property
    def key(self) -> str:
        """Its name in file names."""
        return f"largest-{self.data}-b{self.batch_size}" + (f"-run{self.repeat}" if self.repeat else "")


@dataclass(frozen=True)
class LargestLoss:
    """The largest loss of one real record in a whole training."""

    largest: float
    seconds: float


def loss_cells(plan: Plan) -> tuple[LossCell, ...]:
    """Both sets and both batches, with every seed of the plan."""
    turns = range(max(1, plan.repeats))
    return tuple(LossCell(data, batch, turn) for turn in turns for data, batch in LARGEST_LOSS)


def largest_loss(cell: LossCell, plan: Plan, seed: int) -> LargestLoss:
    """Train the plan's pair at its rate without noise.

    Formal guarantee
    ----------------
    None: a largest value of private records.
    """
    dataset, _ = pair(cell.data, plan.records[cell.data], plan.test, seed)
    if cell.data == "adult":
        dataset = joined(dataset)
    seed = 10_007 * cell.repeat + seed
    model: Any = plan.networks[cell.data]
    method = RdpGan(batch_size=cell.batch_size, model=model, lr=plan.lrs[cell.data], sigma=0.0)
    gan = Gan(dataset.public, model, latent=method.latent, seed=seed, relaxed=TEMPERATURE)
    training = PairTraining(method, gan, gan.discriminator(model), dataset, Reproducible(seed), seed)
    started = time.process_time()
    with gan.seeded():
        for _ in range(plan.iterations):
            training.iterate(0.0)
    return LargestLoss(training.largest, time.process_time() - started)
