"""The benchmark's loop does what the method does, so that comparing their times means something."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bench import parameters
from noiseproof.methods.parameters import Collection, DpPg
from noiseproof.methods.parameters.collection import ParameterLayout
from noiseproof.privacy import Budget, Reproducible


def test_the_rows_have_what_a_row_has():
    found = parameters.rows(parameters=2000, models=10, sample=3)
    assert [row["unit"] for row in found] == ["s", "s", "MB"]
    for row in found[:2]:
        assert row["ratio"] == pytest.approx(row["ours"] / row["theirs"])
        assert row["ours"] > 0


def test_the_loop_draws_around_the_same_values_as_the_method():
    values = torch.linspace(-1, 1, 60)[None] + 0.01 * torch.randn(20, 60, generator=torch.Generator().manual_seed(0))
    method = DpPg(models=20)
    loop = parameters._loop(values.T.double().numpy(), method, parameters._integral)
    collection = Collection(values, ParameterLayout((("0.weight", (60,)),)))
    ours = method.publish(collection, Budget(1.0), rng=Reproducible(0)).vector.numpy()
    assert np.abs(loop - ours).max() < 0.05
