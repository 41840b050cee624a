"""Renyi and concentrated differential privacy: the curves of steps over orders, and what they say of epsilon and delta.

The values agree with dp-accounting's, which computes them one order and one event at a time; here they are vectorised
over events, so that a schedule of thousands of noise levels is read in about a second, and orders are searched for.
A mechanism is rho-zCDP if its Renyi divergence is at most rho times the order, for all orders above 1 (Bun and Steinke
2016). Rhos add up under composition, adaptive composition included.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from noiseproof.privacy.gaussian_dp import largest
from noiseproof.privacy.steps import SelectionStep, Step, amplified, condense

Array = npt.NDArray[np.float64]

# Small orders for large epsilon, and few but large ones for small epsilon; the best is refined afterwards.
_COARSE = (1.01, 1.025, 1.05, 1.1, 1.2, 1.35, 1.5, 1.75, *range(2, 13), *(round(13 * 1.12**k) for k in range(40)))
_WIDE = (*_COARSE, *(_COARSE[-1] * 1.3**k for k in range(1, 27)))
_LARGEST = 1e6
_POINTS = 40_000
_KINDS = 32
_HALVINGS = 10
_CHUNK = 500_000
_RUNS_ROUNDING = 1e-12  # what float64 leaves open of the law of the number of runs, and more


def curve(steps: Iterable[Step], orders: Sequence[float] | Array) -> Array:
    """The Renyi divergence of all steps together at each order (all above 1).

    *Formal guarantee.* The composition of the steps is (order, value)-RDP for every order, under the neighbouring
    relation that the steps were read with (Mironov 2017). Gaussian: order / (2 sigma^2). Poisson-sampled Gaussian: the
    divergence of the dominating pair, by integration (Mironov, Talwar and Zhang 2019; replace-one: Lebeda et al. 2024).
    Laplace: exact (Mironov 2017). Pure: that of randomised response, which dominates; with a bounded range at most
    order epsilon^2 / 8 (Cesar and Rogers 2021). On a Poisson sample, Laplace is counted as pure. Selection: the bounds
    of Papernot and Steinke 2022 (theorems 2 and 6) for the worst candidate at every order.
    """
    total = np.zeros(len(orders))
    at = np.asarray(orders, dtype=float)
    sampled: dict[bool, list[Step]] = {}
    for step in steps:
        if step.law == "gaussian" and step.rate < 1:
            sampled.setdefault(step.exchange, []).append(step)
        elif step.law == "gaussian":
            total += step.count * at / (2 * step.scale**2)
        elif isinstance(step, SelectionStep):
            total += step.count * _selection(step, at)
        else:
            total += step.count * _bounded_loss(step, at)
    for exchange, group in sampled.items():
        sigma, rate, count = (np.array([getattr(s, name) for s in group]) for name in ("scale", "rate", "count"))
        for i, order in enumerate(orders):
            total[i] += float(count @ _sampled_gaussian(float(order), sigma, rate, exchange))
    return total


def epsilon_at(orders: Array, divergences: Array, delta: float) -> Array:
    """The epsilon that each order gives at delta (Canonne, Kamath and Steinke 2020, proposition 12)."""
    values = divergences + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    # Total variation is at most sqrt(1 - e^-KL), and the divergence bounds KL: then delta alone is enough.
    values = np.where(-np.expm1(-divergences) <= delta**2, 0.0, values)
    return np.maximum(values, 0.0)


def delta_at(orders: Array, divergences: Array, epsilon: float) -> Array:
    """The delta that each order gives at epsilon, by the same proposition."""
    exponent = (orders - 1) * (divergences - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    with np.errstate(over="ignore"):
        values = np.minimum(np.exp(np.minimum(exponent, 0.0)), 1.0)
    return np.minimum(values, np.sqrt(-np.expm1(-divergences)))


def epsilon_of(steps: Sequence[Step], delta: float) -> tuple[float, float]:
    """The smallest epsilon over orders at delta, and the order that gives it."""
    return _best(steps, lambda orders, values: epsilon_at(orders, values, delta))


def delta_of(steps: Sequence[Step], epsilon: float) -> tuple[float, float]:
    """The smallest delta over orders at epsilon, and the order that gives it."""
    return _best(steps, lambda orders, values: delta_at(orders, values, epsilon))


def order_that_buys_most(steps: Sequence[Step], limit: Callable[[float], float]) -> float:
    """The order at which a budget, as its limit on the divergence of each order, buys the steps most often."""
    orders = np.array(_WIDE)
    allowed = np.array([limit(float(order)) for order in orders])
    bought = allowed / np.maximum(curve(condense(steps, _KINDS), orders), 1e-300)
    return float(orders[int(bought.argmax())])


def rho_of(steps: Iterable[Step]) -> float:
    """The rho of all steps together.

    A Gaussian has 1 / (2 sigma^2), exactly. Sampling does not help it here: at large orders a sampled Gaussian's
    divergence is as large as an unsampled one's, so that it counts in full. What is epsilon-DP has
    epsilon tanh(epsilon / 2): randomised response dominates it, whose divergence of order a is
    (log cosh((a - 1/2) epsilon) - log cosh(epsilon / 2)) / (a - 1). Divided by a that is the slope of a chord of
    log cosh(epsilon sqrt(v)), which is concave in v = (a - 1/2)^2, and so it is largest as a falls to 1. With a bounded
    range it is at most epsilon^2 / 8 (Cesar and Rogers 2021).
    """
    total = 0.0
    for step in steps:
        if step.law == "gaussian":
            total += step.count * (2 if step.exchange else 0.5) / step.scale**2
        else:
            epsilon = step.pure_epsilon
            rho = epsilon * math.tanh(epsilon / 2)
            total += step.count * (min(rho, epsilon**2 / 8) if step.bounded_range else rho)
    return total


def epsilon_of_rho(rho: float, delta: float) -> float:
    """The smallest epsilon of a rho-zCDP mechanism at delta, over all orders."""
    if rho in (0, math.inf):
        return rho
    # Where rho * order + log(1 / delta) / (order - 1), which the conversion improves upon, is least.
    near = 1 + math.sqrt(-math.log(delta) / rho)
    return _least_around(lambda orders: epsilon_at(orders, rho * orders, delta), near)


def delta_of_rho(rho: float, epsilon: float) -> float:
    """The smallest delta of a rho-zCDP mechanism at epsilon, over all orders."""
    if rho in (0, math.inf):
        return min(rho, 1.0)
    # The exponent (a - 1)(a rho - epsilon) is least at a = (rho + epsilon) / (2 rho).
    order = max(1.0 + 1e-3, (rho + epsilon) / (2 * rho))
    return _least_around(lambda orders: delta_at(orders, rho * orders, epsilon), order)


def rho_within(epsilon: float, delta: float) -> float:
    """The largest rho whose mechanisms are (epsilon, delta)-DP; rounding is downwards."""
    return largest(lambda rho: epsilon_of_rho(rho, delta) <= epsilon, epsilon)


def _least_around(convert: Callable[[Array], Array], near: float) -> float:
    """The least of a function of orders around a guess."""
    centre, width = near - 1, 1e3
    for _ in range(4):
        orders = 1 + centre * np.geomspace(1 / width, width, 101)
        values = convert(orders)
        best = int(values.argmin())
        centre, width = float(orders[best]) - 1, width**0.04
    return float(values[best])


def _best(steps: Sequence[Step], convert: Callable[[Array, Array], Array]) -> tuple[float, float]:
    """The least converted value over orders and its order. Every order is valid; more of them only tighten."""
    # Where to look is found on fewer kinds of steps; what is found there is computed on all.
    few = condense(steps, _KINDS)
    orders = np.array(_COARSE, dtype=float)
    values = convert(orders, curve(few, orders))
    while values.argmin() == len(orders) - 1 and values[-1] > 0 and orders[-1] < _LARGEST:
        further = orders[-1] * 1.3 ** np.arange(1, 9)
        orders, values = np.append(orders, further), np.append(values, convert(further, curve(few, further)))
    best = int(values.argmin())
    around = orders[[max(best - 1, 0), best, min(best + 1, len(orders) - 1)]]
    found = dict(zip(around.tolist(), convert(around, curve(steps, around)).tolist(), strict=True))
    low, high = float(around[0]), float(around[-1])
    for _ in range(_HALVINGS):
        inner = np.array([low + (high - low) * 0.382, low + (high - low) * 0.618])
        left, right = convert(inner, curve(steps, inner)).tolist()
        found |= {float(inner[0]): left, float(inner[1]): right}
        low, high = (low, float(inner[1])) if left <= right else (float(inner[0]), high)
    order = min(found, key=found.__getitem__)
    return found[order], order


def _bounded_loss(step: Step, orders: Array) -> Array:
    """One step whose privacy loss is bounded: Laplace or pure, perhaps on a Poisson sample."""
    epsilon = step.unsampled_epsilon
    if step.rate < 1:
        return _sampled_response(epsilon, step.rate, orders)
    values: Array = (_log_cosh((orders - 0.5) * epsilon) - _log_cosh(np.array(epsilon / 2))) / (orders - 1)
    if step.law == "laplace":
        inner = (orders - 1) * np.expm1(epsilon * (1 - 2 * orders)) / (2 * orders - 1)
        values = np.minimum(values, epsilon + np.log1p(inner) / (orders - 1))
    if step.bounded_range:
        values = np.minimum(values, orders * epsilon**2 / 8)
    return np.maximum(values, 0.0)


def _selection(step: SelectionStep, orders: Array) -> Array:
    """Private selection with a random number of runs (Papernot and Steinke 2022).

    A run picks a candidate at random, which the result names, so that its divergence is at most the worst candidate's.
    """
    divergences = _worst(step.candidates, tuple(orders.tolist())) + math.log(step.scale) / (orders - 1) + _RUNS_ROUNDING
    others, at_others = np.array(_WIDE), _worst(step.candidates, _WIDE)
    if step.stopping == "poisson":
        # Theorem 6: a run is (log(order / (order - 1)), delta)-DP, by any other order.
        epsilons = -np.log1p(-1 / orders)
        deltas = np.array([delta_at(others, at_others, float(epsilon)).min() for epsilon in epsilons])
        return np.minimum(divergences + step.scale * deltas, step.unsampled_epsilon)
    # Theorem 2, whose second order may be any; geometric stopping is its eta = 1, logarithmic its eta = 0.
    second = float(((1 - 1 / others) * at_others - math.log(step.gamma) / others).min())
    return np.minimum(divergences + (1 + (step.stopping == "geometric")) * second, step.unsampled_epsilon)


@lru_cache(maxsize=64)
def _worst(candidates: tuple[tuple[Step, ...], ...], orders: tuple[float, ...]) -> Array:
    return np.max([curve(steps, orders) for steps in candidates], axis=0)


def _log_cosh(x: Array) -> Array:
    small = np.log1p(2 * np.sinh(np.minimum(x, 20.0) / 2) ** 2)
    return np.where(x < 20, small, x - math.log(2) + np.log1p(np.exp(-2 * x)))


def _sampled_response(epsilon: float, rate: float, orders: Array) -> Array:
    """Randomised response on a Poisson sample, the worse of the record's removal and its addition."""
    from scipy.special import expit, logsumexp

    weights = np.array([expit(-epsilon), expit(epsilon)])
    losses = np.array([amplified(epsilon, rate), math.log1p(rate * math.expm1(-epsilon))])
    # Removal weighs the loss's moment by order, addition by 1 - order.
    moments = np.stack([orders[:, None] * losses, (1 - orders)[:, None] * losses])
    small = np.log1p((weights * np.expm1(np.minimum(moments, 1.0))).sum(-1))
    logs = np.where(moments.max(-1) <= 1, small, logsumexp(moments, b=weights, axis=-1))
    result: Array = np.maximum(logs.max(0), 0.0) / (orders - 1)
    return result


def _sampled_gaussian(order: float, sigma: Array, rate: Array, exchange: bool) -> Array:
    """The divergence of one Poisson-sampled Gaussian for each (sigma, rate), by the trapezoidal rule.

    The integrand is analytic and falls off like a Gaussian, so that the rule's error is below the last digit at these
    widths: a fraction of sigma, and of the distance (pi sigma^2) to where the mixture has its complex zeros. Where that
    takes too many points, the value without sampling stands in, which is never smaller.
    """
    whole = (2 if exchange else 0.5) * order / sigma**2
    width = np.minimum(sigma / 2.5, sigma**2 / 6)
    if exchange:  # the second mixture, at power 1 - order, narrows the integrand
        width = np.minimum(width, 0.7 * sigma**2 / math.sqrt(order))
    low = -13 * sigma - exchange
    high = (2 if exchange else 1) * order + 13 * sigma
    points = np.ceil((high - low) / width) + 1  # of tiny noise more than an integer holds
    result = whole.copy()
    feasible = np.flatnonzero(points <= _POINTS)
    feasible = feasible[points[feasible].argsort()]
    while len(feasible):
        # Rows of a chunk share the number of points that the last, largest one needs.
        rows = 1 + int(np.searchsorted(np.arange(2, len(feasible) + 1) * points[feasible[1:]], _CHUNK, "right"))
        chunk, feasible = feasible[:rows], feasible[rows:]
        grid = np.linspace(low[chunk], high[chunk], int(points[chunk[-1]]), axis=1)
        logs = _log_moment(order, grid, sigma[chunk, None], rate[chunk, None], exchange)
        result[chunk] = np.minimum(whole[chunk], np.maximum(logs, 0.0) / (order - 1))
    return result


def _log_moment(order: float, x: Array, sigma: Array, rate: Array, exchange: bool) -> Array:
    """log of the integral of Q (P/Q)^order over each row of a grid.

    P is the mixture (1-q) N(0) + q N(1); Q is N(0), or (1-q) N(0) + q N(-1) where records are exchanged.
    """
    from scipy.special import logsumexp

    logs = -((x / sigma) ** 2) / 2 + order * _log_mixture(rate, (x - 0.5) / sigma**2)
    if exchange:
        logs += (1 - order) * _log_mixture(rate, -(x + 0.5) / sigma**2)
    spacing = np.log((x[:, 1] - x[:, 0]) / sigma[:, 0]) - 0.5 * math.log(2 * math.pi)
    # The guard is above what rounding may take away; over a million steps it adds 1e-7 / (order - 1) to epsilon.
    result: Array = logsumexp(logs, axis=1) + spacing + 1e-13
    return result


def _log_mixture(rate: Array, loss: Array) -> Array:
    """log(1 - rate + rate e^loss), with all digits where it is near 0."""
    small = np.log1p(rate * np.expm1(np.minimum(loss, 30.0)))
    return np.where(loss <= 30, small, np.logaddexp(np.log1p(-rate), np.log(rate) + loss))
