"""How fast are noise, samples and choices, seeded and secure, against torch, Opacus and OpenDP?

Ours and theirs take turns within one run, so that whatever else the machine does slows both; medians, and ratios of
ours over theirs. Opacus' secure mode is its arithmetic (the sum of four normals) with torch's own generator, since the
secure one it asks for cannot be installed. OpenDP draws 5,000 at a time; its row is that, scaled up.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from noiseproof.privacy import Reproducible, Secure

PARAMETERS = 3_274_634  # of the largest network in the papers
MILLION = 1_000_000


def rows(repeats: int = 15) -> list[dict[str, Any]]:
    """One row a comparison: what, milliseconds of ours and of theirs, and their ratio."""
    seeded, secure = Reproducible(0), Secure()
    gradient, zeros = torch.randn(PARAMETERS), torch.zeros(MILLION)
    scales = torch.rand(MILLION) + 0.5
    logits = torch.randn(100_000, 10, dtype=torch.float64)

    def plain_laplace(scale: float | torch.Tensor) -> torch.Tensor:
        return zeros + torch.distributions.Laplace(0.0, scale).sample(() if torch.is_tensor(scale) else zeros.shape)

    def plain_sample(records: int, rate: float) -> torch.Tensor:
        return (torch.rand(records) < rate).nonzero().flatten()

    def plain_choice() -> torch.Tensor:
        return torch.multinomial(logits.softmax(1), 1)

    pairs: list[tuple[str, Callable[[], Any], Callable[[], Any] | None, float]] = [
        (
            f"seeded: normal noise on {PARAMETERS:,} float32 / torch.randn",
            lambda: seeded.add_gaussian(gradient, 1.0),
            lambda: gradient + torch.randn(PARAMETERS),
            1,
        ),
        (
            f"secure: normal noise on {PARAMETERS:,} float32 / Opacus' secure mode",
            lambda: secure.add_gaussian(gradient, 1.0),
            _opacus(gradient),
            1,
        ),
        (
            "secure: 1,000,000 Gaussian draws / OpenDP",
            lambda: secure.add_gaussian(zeros, 1.0),
            _opendp("gaussian"),
            200,
        ),
        ("secure: 1,000,000 Laplace draws / OpenDP", lambda: secure.add_laplace(zeros, 1.0), _opendp("laplace"), 200),
        (
            "secure: 1,000,000 Laplace draws, a scale each / torch's Laplace",
            lambda: secure.add_laplace(zeros, scales),
            lambda: plain_laplace(scales),
            1,
        ),
        (
            "seeded: 1,000,000 Laplace draws / torch's Laplace",
            lambda: seeded.add_laplace(zeros, 1.0),
            lambda: plain_laplace(1.0),
            1,
        ),
    ]
    for kind, rng in (("seeded", seeded), ("secure", secure)):
        for records, rate in ((60_000, 0.004), (10_000_000, 0.001)):
            pairs.append(
                (
                    f"{kind}: a Poisson sample of {records:,} records at {rate} / torch.rand",
                    partial(rng.poisson_sample, records, rate),
                    partial(plain_sample, records, rate),
                    1,
                )
            )
    pairs.append(("secure: 100,000 choices of 10 / torch.multinomial", lambda: secure.choose(logits), plain_choice, 1))
    return [_row(*pair, repeats) for pair in pairs]


def _row(
    what: str, ours: Callable[[], Any], theirs: Callable[[], Any] | None, times: float, repeats: int
) -> dict[str, Any]:
    mine, other = [], []
    for _ in range(repeats):
        mine.append(_milliseconds(ours))
        if theirs is not None:
            other.append(_milliseconds(theirs) * times)
    median = statistics.median(mine)
    peer = statistics.median(other) if other else None
    return {"what": what, "ours": median, "theirs": peer, "ratio": median / peer if peer else None, "unit": "ms"}


def _milliseconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


def _opacus(gradient: torch.Tensor) -> Callable[[], Any] | None:
    try:
        from opacus.optimizers.optimizer import _generate_noise
    except ImportError:
        return None
    return lambda: gradient + _generate_noise(std=1.0, reference=gradient, secure_mode=True)


def _opendp(law: str) -> Callable[[], Any] | None:
    try:
        import opendp.prelude as opendp
    except ImportError:
        return None
    opendp.enable_features("contrib")
    domain = opendp.vector_domain(opendp.atom_domain(T=opendp.i64))
    if law == "gaussian":
        release = opendp.m.make_gaussian(domain, opendp.l2_distance(T=float), scale=2.0**31)
    else:
        release = opendp.m.make_laplace(domain, opendp.l1_distance(T=opendp.i64), scale=2.0**31)
    values = [0] * 5_000
    return lambda: release(values)
