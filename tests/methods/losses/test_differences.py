"""Columns that come after others: there and back, and what is learned of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from noiseproof import train
from noiseproof.data import Column
from noiseproof.data.schema import Schema
from noiseproof.data.tables import code, decode
from noiseproof.errors import SettingError
from noiseproof.methods.losses.conditions import Conditions
from noiseproof.methods.losses.counts import View
from noiseproof.methods.losses.differences import Differences


@pytest.fixture(scope="module")
def stays():
    """Stays of four days on average, in a year and a half; a tenth of them is not over."""
    rng = np.random.default_rng(0)
    start = pd.Timestamp("2023-01-01") + pd.to_timedelta(rng.integers(0, 500, 3000), "D")
    days = rng.poisson(4, 3000)
    frame = pd.DataFrame(
        {
            "in": start.strftime("%d.%m.%Y"),
            "out": (start + pd.to_timedelta(days, "D")).strftime("%d.%m.%Y"),
            "low": rng.uniform(60, 90, 3000),
            "ill": np.where(rng.random(3000) < days / 10, "yes", "no"),
        }
    )
    frame["high"] = frame["low"] + rng.uniform(0, 50, 3000)
    frame.loc[rng.random(3000) < 0.1, "out"] = None
    dates = {"low": "2023-01-01", "high": "2024-12-31", "date": "%d.%m.%Y"}
    columns = {"in": dates, "out": {**dates, "missing": True}, "low": {"low": 40, "high": 150}}
    about = {
        "columns": {**columns, "high": {"low": 50, "high": 250}},
        "target": {"name": "ill", "classes": ["no", "yes"]},
    }
    return code(frame, Schema.model_validate(about), name="stays")[0]


def test_records_that_keep_the_rule_come_back_as_they_were(stays):
    both = Differences(stays.public, [("out", "in"), ("high", "low")])
    back = both.together(both.apart(stays.features))
    torch.testing.assert_close(back, stays.features, atol=1e-6, rtol=0)


def test_only_rules_between_two_columns_of_one_kind_are_orders(stays):
    def orders(where: str) -> list[tuple[str, str]]:
        return Conditions.read(where).of(stays.public).orders(stays.public)

    assert orders("out >= in and low <= high and high >= 60") == [("out", "in"), ("high", "low")]
    assert orders("in <= out and high != low") == [("out", "in")]
    # A chain has its first link alone, and who may be missing comes before nobody: rows that break such rules are drawn anew.
    assert orders("high >= low and low >= in") == [("high", "low")]
    assert orders("in >= out") == []


def test_the_plan_is_that_of_the_columns_as_they_are_counted(stays):
    plain, apart = View(stays.public), View(stays.public, [("out", "in")])
    assert apart.slots(stays)[:, 1].unique().numel() < plain.slots(stays)[:, 1].unique().numel()
    assert apart.sizes[0] == plain.sizes[0]


def test_differences_are_learned_and_the_rule_holds(stays):
    release = train("marginals", stays, epsilon=3, seed=0, where="out >= in and high >= low", components=64, steps=60)
    made = decode(stays.public, release.dataset.features, release.dataset.labels)
    days = [pd.to_datetime(made[name], format="%d.%m.%Y") for name in ("in", "out")]
    stay = (days[1] - days[0]).dt.days
    assert stay.min() >= 0
    assert stay.mean() == pytest.approx(4, abs=1)
    assert made["out"].isna().mean() == pytest.approx(0.1, abs=0.03)
    assert (made["high"] - made["low"]).mean() == pytest.approx(25, abs=3)


def test_a_rule_that_public_bounds_forbid_is_refused_before_anything_is_read(stays):
    public = replace(stays.public, columns=(*stays.public.columns, Column("out of reach", 300.0, 400.0)))
    with pytest.raises(SettingError, match="'low' is always below 'out of reach'"):
        Conditions.read("low >= out of reach").of(public)
    Conditions.read("low <= high and high > low").of(stays.public)
