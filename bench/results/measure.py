"""Measure a row: train with its recipe, and audit that training."""

from __future__ import annotations

import time
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from bench.results.rows import DELTA, NEIGHBOURS, Row
from noiseproof.audits import audit, one_run_bound
from noiseproof.audits.one_run import flip
from noiseproof.data import Dataset, load
from noiseproof.errors import UnsupportedError
from noiseproof.methods import recipes
from noiseproof.privacy import Budget, Reproducible
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import ModelRelease, accuracy, logits

if TYPE_CHECKING:
    from noiseproof.data.splits import Split
    from noiseproof.methods import Method


TRIALS = 10_000
CANARIES = 1000
CONFIDENCE = 0.999
"""Of each audit: the game is as hard as the proof allows, so that at 95% one in twenty would be a false alarm."""


class Bench:
    """A row's records, mapped once by its recipe, and its trainings."""

    def __init__(self, row: Row, split: Split | None = None, progress: Progress = SILENT) -> None:
        self.row = row
        self._progress = progress
        self.split = split if split is not None else load(row.data, test_fraction=row.test_fraction)
        recipe = recipes.resolve(row.recipe, self.split.train)
        if recipe is None:
            raise UnsupportedError(f"no recipe is meant for {row.data}.")
        self.recipe = recipe
        self.budget = Budget(row.epsilon, DELTA, NEIGHBOURS)
        self.method: Method = recipe.method(len(self.split.train), row.epsilon)
        self._mapped: tuple[Dataset, Dataset] | None = None

    @property
    def features(self) -> tuple[Dataset, Dataset]:
        """Training and test records as the recipe maps them."""
        if self._mapped is None:
            self._mapped = tuple(self.recipe.map(part, self._progress) for part in (self.split.train, self.split.test))  # type: ignore[assignment]
        assert self._mapped is not None
        return self._mapped

    def at(self, epsilon: float, method: str, settings: Mapping[str, Any]) -> Bench:
        """The same records, mapped once for both, at another epsilon, by another method or with other settings."""
        assert self.features
        other = copy(self)
        other.row, other.budget = replace(self.row, epsilon=epsilon), Budget(epsilon, DELTA, NEIGHBOURS)
        other.method = self.recipe.method(len(self.split.train), epsilon, settings, method=method)
        return other

    def run(self, seed: int) -> dict[str, Any]:
        """Train once; the seconds are of the training alone, its noise's calibration included."""
        train, test = self.features
        wall, processor = time.perf_counter(), time.process_time()
        release = self._fit(train, seed)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        proven = release.card.proven
        assert proven is not None
        return {
            "accuracy": accuracy(release, test),
            "seconds": round(wall, 1),
            "processor_seconds": round(processor, 1),
            "epsilon": proven.epsilon,
            "delta": proven.delta,
            "accountant": proven.accountant,
            "steps": release.card.ran["steps"],
            "sample_rate": release.card.ran["sample_rate"],
            "noise_multiplier": release.card.ran["noise_multiplier"],
            "parameters": release.card.ran["parameters"],
            "records": len(train),
            "test_records": len(test),
        }

    def audit(self) -> dict[str, Any]:
        """Lower bounds on epsilon: from the method's game, and from one whole training with canaries."""
        game = audit(self.method.game(self.budget), trials=TRIALS, confidence=CONFIDENCE, timeout=None)
        return {
            "game": game.epsilon,
            "one_run": self._one_run(),
            "confidence": CONFIDENCE,
            "trials": TRIALS,
            "canaries": self._canaries,
        }

    @property
    def _canaries(self) -> int:
        return min(CANARIES, len(self.split.train) // 10)

    def _one_run(self) -> float:
        """A training among whose records are wrongly labelled ones, each by a coin of its own: does it tell which?"""
        train, _ = self.features
        first = len(train) - self._canaries
        generator = torch.Generator().manual_seed(0)
        included = flip(self._canaries, generator)
        wrong = torch.randint(1, train.classes, (self._canaries,), generator=generator)
        # The canaries are the last records, those that are in before those that are out: what is trained on is then the
        # beginning of the same memory. Another order of records changes nothing else.
        order = torch.argsort(~included, stable=True)
        included = included[order]
        for tensor in (train.features, train.labels):
            tensor[first:] = tensor[first:][order]
        labels = train.labels.clone()
        labels[first:] = (labels[first:] + wrong[order]) % train.classes
        end = first + int(included.sum())
        release = self._fit(replace(train, features=train.features[:end], labels=labels[:end]), seed=0)
        scores = torch.log_softmax(logits(release.module, train.features[first:]), 1)
        guessed = scores.gather(1, labels[first:, None]).squeeze(1)
        # Equal scores are guessed by place, and the places were sorted by coin: back to the order of the draw.
        back = torch.argsort(order)
        values, coins = guessed.double()[back].numpy(), included[back].numpy()
        return one_run_bound(values, coins, delta=DELTA, confidence=CONFIDENCE).epsilon

    def _fit(self, features: Dataset, seed: int) -> ModelRelease:
        network = self.recipe.trained(self.split.train.public)
        release = self.method.fit(network, features, self.budget, rng=Reproducible(seed), progress=self._progress)
        assert isinstance(release, ModelRelease)
        return release

    @property
    def belongs(self) -> dict[str, Any]:
        """What a kept run must have been made with to be kept."""
        return {
            "recipe": self.recipe.name,
            "network": self.recipe.network,
            "options": dict(self.recipe.options),
            "maps": repr(self.recipe.feature_map(self.split.train.public)),
            "settings": dict(self.recipe.settings(len(self.split.train), self.row.epsilon)),
        }
