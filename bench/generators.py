"""What does privacy cost a GAN: dp-gan's discriminator step against the same step without it?

Real and generated records, 128 of each, for the paper's networks; both steps take turns within one run; medians.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.nn import functional

from bench.steps import Step, _row, _take_turns
from noiseproof.data.dataset import Public
from noiseproof.methods.losses.filtered import FilteredGradients
from noiseproof.methods.losses.gan import Gan, Model, NoiseTuning, backward_generated
from noiseproof.privacy import Budget, Filter, Reproducible

BATCH, CLIP, SIGMA, RATE = 128, 1.0, 1.0, 5e-4


class Setting:
    """One GAN for 28 x 28 pictures and one batch of real ones, the same for both contenders."""

    def __init__(self, model: Model) -> None:
        public = Public(shape=(1, 28, 28), classes=tuple(map(str, range(10))), kind="image")
        generator = torch.Generator().manual_seed(0)
        self.gan = Gan(public, model, latent=64, seed=0)
        self.records = torch.rand(BATCH, 1, 28, 28, generator=generator)
        self.labels = torch.randint(10, (BATCH,), generator=generator)
        self.discriminator = self.gan.discriminator(model)


def private(setting: Setting) -> Step:
    """Clipped, noised gradients of the real half, plain ones of the generated half; sampled at rate 1."""
    judge = copy.deepcopy(setting.discriminator)
    optimizer = torch.optim.Adam(judge.parameters(), lr=RATE)
    wide = Filter(Budget(1e9))
    gradients = FilteredGradients(
        judge, wide, NoiseTuning("constant", SIGMA), max_grad_norm=CLIP, sample_rate=1.0, rng=Reproducible(0)
    )
    batches = gradients.batches(setting.records, setting.labels, steps=10**9)

    def step() -> None:
        records, labels = next(batches)
        for parameter in judge.parameters():
            parameter.grad = None
        gradients.backward(functional.softplus(-judge(records, labels)))
        with gradients.paused():
            # Backward passes add to what stands in `.grad`: the generated half goes on top of the noised one.
            backward_generated(setting.gan, judge, BATCH)
        optimizer.step()

    return step


def plain(setting: Setting) -> Step:
    """The same step without privacy."""
    judge = copy.deepcopy(setting.discriminator)
    optimizer = torch.optim.Adam(judge.parameters(), lr=RATE)

    def step() -> None:
        optimizer.zero_grad()
        functional.softplus(-judge(setting.records, setting.labels)).mean().backward()
        backward_generated(setting.gan, judge, BATCH)
        optimizer.step()

    return step


def rows(repeats: int = 30) -> list[dict[str, Any]]:
    """One row a network: milliseconds of the private step and of the plain one, and their ratio."""
    table = []
    models: tuple[Model, ...] = ("dense", "conv")
    for model in models:
        setting = Setting(model)
        times = _take_turns({"private": private(setting), "plain": plain(setting)}, repeats)
        what = f"{model} discriminator, dp-gan step / non-private step"
        table.append(_row(what, times["private"], times["plain"], "ms"))
    return table
