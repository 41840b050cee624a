"""What a careful colleague would say, and which records a bundle was trained on."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from noiseproof.data import load
from noiseproof.data.dataset import Column
from noiseproof.privacy import Budget
from noiseproof.run import cautions


@pytest.fixture(scope="module")
def cancer():
    return load("breast-cancer")


@pytest.mark.parametrize(
    ("records", "epsilon", "delta", "word"),
    [
        (1000, 3, 1e-3, "not below 1 / 1000"),
        (1000, 21, 1e-5, "guarantees next to nothing"),
        (2, 3, 1e-5, "only 2 to train on"),
    ],
)
def test_a_budget_that_promises_little_is_named(records, epsilon, delta, word):
    (sentence,) = cautions.about_budget(records, Budget(epsilon, delta))
    assert word in sentence


def test_a_sound_budget_is_not_commented_on():
    assert cautions.about_budget(100, Budget(20, 1e-5)) == ()


def test_a_test_part_that_was_trained_on_is_named(cancer):
    assert cautions.about_split(cancer) == ()
    (sentence,) = cautions.about_split(replace(cancer, test=cancer.train.take(torch.arange(20))))
    assert "all 20 test records are training records" in sentence


def test_columns_that_float32_cannot_hold_are_named(cancer):
    columns = (Column("size", 0, 1e39), Column("id", 0, 1e9, integer=True), Column("age", 0, 120, integer=True))
    told = " ".join(
        cautions.about_split(
            replace(cancer, train=replace(cancer.train, public=replace(cancer.train.public, columns=columns)))
        )
    )
    assert "the bounds of size are beyond float32" in told
    assert "id can take more than" in told
    assert "age" not in told


def test_a_bundles_records_are_known_again_and_others_are_not(cancer, tmp_path):
    bundle = tmp_path / "model"
    assert cautions.trained_on(bundle, cancer.train) is None
    cautions.keep_fingerprint(bundle, cancer.train)
    assert cautions.trained_on(bundle, cancer.train) is True
    assert cautions.trained_on(bundle, cancer.test) is False
    assert cautions.trained_on(bundle, load("breast-cancer", seed=1).train) is False


def test_the_note_is_its_owners_alone_and_differs_each_time(cancer, tmp_path):
    path = cautions.fingerprint_path(tmp_path / "model")
    cautions.keep_fingerprint(tmp_path / "model", cancer.train)
    first = path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    assert cancer.train.fingerprint() not in first
    cautions.keep_fingerprint(tmp_path / "model", cancer.train)
    assert path.read_text() != first


def test_a_full_disk_after_the_bundle_is_told_and_loses_nothing(cancer, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("noiseproof.run.cautions.write_whole", full)
    said = cautions.keep_fingerprint(tmp_path / "model", cancer.train)
    assert "is saved" in said
    assert "No space left" in said
