"""A cell trains as its sequence says, from the shared initial weights, and says what is proven of it."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from noiseproof.data.dataset import Dataset, Public
from noiseproof.privacy import accountants
from noiseproof.privacy.events import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from papers.lin import Lin, design, training
from papers.lin.design import Cell, Plan
from papers.lin.statistics import FACTORS

PLAN = Plan(
    scale="small",
    records=200,
    test=100,
    steps=12,
    looks=3,
    networks={"cnn": ("small-cnn", {"channels": 4, "hidden": 8}), "lstm": ("lstm", {"units": 8})},
    lrs={("cnn", "adam", "none"): 0.02, ("cnn", "sgd", "none"): 0.1, ("lstm", "adam", "none"): 0.02},
    batch_size=50,
    watched=60,
)
SEQUENCES = [
    ("AC", 0.5, 1.4),
    ("CA", 0.5, 1.4),
    ("quantile-flat", 0.5, None),
    ("quantile-layer", 0.5, None),
]


def bars(records: int, seed: int) -> Dataset:
    """Images whose class is the row of a bright bar."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (records,), generator=generator)
    features = 0.2 * torch.rand(records, 1, 28, 28, generator=generator)
    features[torch.arange(records), 0, 2 * labels + 4] = 1.0
    return Dataset("bars", features, labels, Public((1, 28, 28), tuple("0123456789"), kind="image"))


@pytest.fixture(autouse=True)
def _made_up_records(monkeypatch, request):
    if "real_data" not in request.fixturenames:
        monkeypatch.setattr(training, "records", lambda name, most, test: (bars(most, 0), bars(test, 1)))


def cell(sequence, sigma=None, clip=None, model="cnn", optimizer="adam") -> Cell:
    return Cell("mnist", model, optimizer, sequence, sigma, clip)


def test_training_without_noise_learns_and_says_that_nothing_is_private():
    longer = dataclasses.replace(PLAN, steps=45)
    result, weights = training.train_cell(cell("none"), longer, 0, None)
    assert result.accuracy > 0.8
    assert result.convergence < result.losses[0] / 2
    assert (result.tpvd, result.epsilon, result.why) == (None, None, "trained without noise")
    assert result.steps == (0, 15, 30, 45)
    assert sum(value.numel() for value in weights.values()) == result.ran["parameters"]


@pytest.mark.parametrize(
    ("model", "sequence", "sigma", "clip"),
    [*(("cnn", *sequence) for sequence in SEQUENCES), *(("lstm", *sequence) for sequence in SEQUENCES[:2])],
)
def test_every_sequence_trains_from_the_same_initial_weights(model, sequence, sigma, clip):
    reference, weights = training.train_cell(cell("none", model=model), PLAN, 0, None)
    result, _ = training.train_cell(cell(sequence, sigma, clip, model), PLAN, 0, weights)
    assert result.losses[0] == reference.losses[0]
    assert result.losses[-1] != reference.losses[-1]
    assert 0 < result.tpvd != result.tpvd_with_biases > 0
    assert 0 <= result.accuracy <= 1
    assert math.isfinite(result.convergence)


def test_clip_then_noise_states_the_epsilon_of_the_steps_that_ran():
    result, _ = training.train_cell(cell("CA", 0.5, 1.4), PLAN, 0, None)
    step = PoissonSampledDpEvent(50 / 200, GaussianDpEvent(0.5))
    expected = accountants.epsilon(SelfComposedDpEvent(step, PLAN.steps), PLAN.delta)
    assert result.epsilon == pytest.approx(expected.epsilon)
    assert result.delta == PLAN.delta
    assert result.why is None


@pytest.mark.parametrize(("sequence", "sigma", "clip"), [s for s in SEQUENCES if s[0] != "CA"])
def test_for_the_other_sequences_nothing_is_proven_and_why_is_said(sequence, sigma, clip):
    result, _ = training.train_cell(cell(sequence, sigma, clip), PLAN, 0, None)
    assert result.epsilon is None
    assert result.why.startswith("nothing proven: ")


def test_a_cell_comes_out_the_same_again_and_differently_with_another_seed():
    again = [training.train_cell(cell("AC", 0.5, 1.4), PLAN, seed, None)[0].losses for seed in (0, 0, 1)]
    assert again[0] == again[1] != again[2]


def test_noise_first_with_a_tiny_clipping_norm_has_next_to_no_noise():
    # Adam does not mind the gradient's scale, and the noise shrinks with C: what is left is training without noise.
    longer = dataclasses.replace(PLAN, steps=45)
    small, large = (
        training.train_cell(cell("AC", 0.5, clip, optimizer="adam"), longer, 0, None)[0] for clip in (0.001, 100.0)
    )
    assert small.accuracy > 0.7
    assert large.accuracy < 0.4


def test_a_training_that_diverges_ranks_last_instead_of_failing():
    wild = dataclasses.replace(PLAN, lrs={("cnn", "sgd", "none"): 1e38})
    result, _ = training.train_cell(cell("none", optimizer="sgd"), wild, 0, None)
    assert result.convergence == math.inf


def _timeless(table):
    """A table's rows without the CPU seconds that they took."""
    kept = [index for index, column in enumerate(table.columns) if "CPU seconds" not in column.name]
    return table.name, [[row[index] for index in kept] for row in table.rows]


@pytest.mark.slow
def test_the_whole_study_runs_on_real_records_with_several_workers(tmp_path, real_data):
    for name in FACTORS["data"]:
        real_data(f"{name}.npz")
    rates = {(model, optimizer, "none"): 0.01 for model in ("cnn", "lstm") for optimizer in ("sgd", "adam")}
    tiny = dataclasses.replace(PLAN, records=300, steps=2, lrs=rates)
    result = Lin().run("small", tmp_path / "two", workers=2, plan=tiny)
    alone = Lin().run("small", tmp_path / "one", workers=1, plan=tiny)
    assert [_timeless(table) for table in result.tables] == [_timeless(table) for table in alone.tables]
    assert len(list((tmp_path / "two" / "cells").iterdir())) == len(design.every_cell())
