"""What a whole run let out, as numbers, and which of them tells two worlds apart best."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from noiseproof.attacks.attack import logit_confidence
from noiseproof.audits.worlds import World
from noiseproof.data.formats import read_table
from noiseproof.data.schema import read_schema
from noiseproof.data.tables import code
from noiseproof.privacy.card import Card
from noiseproof.releases import ModelRelease, PredictionRelease, bundles

Observed: TypeAlias = dict[str, NDArray[np.float64]]
"""What a run let out: single numbers by name, each an array of one, and `weights`."""
Worlds: TypeAlias = tuple[Sequence[Observed], Sequence[Observed]]
_Pair: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]

CLAIMED, PROVEN = "promise: claimed", "promise: proven"
"""What a run is held to: epsilon and delta."""
WEIGHTS = "weights"
"""What is looked at together; the rest are single numbers."""


def observe_bundle(folder: Path, world: World) -> Observed:
    """What a bundle lets out, as numbers: card, settings, answers and, where they may leave, weights."""
    release = bundles.load(folder)
    card, settings = (json.loads((folder / name).read_text()) for name in (bundles.CARD, bundles.SETTINGS))
    if release.stays_inside:
        del settings["description"]
    found = _documents(card=card, settings=settings) | _promised(release.card, world)
    features, label = world.canary[0][None], torch.tensor([world.canary[1]])
    if isinstance(release, ModelRelease):
        found["confidence"] = logit_confidence(release.predict(features), label).numpy()
    elif isinstance(release, PredictionRelease):
        asked = max(1, release.queries_left)
        answers = release.predict(features.expand(asked, *features.shape[1:]))
        found["confidence"] = logit_confidence(answers, label.expand(asked)).mean(0, keepdim=True).numpy()
        found["right"] = (answers.argmax(1) == label).double().mean(0, keepdim=True).numpy()
    if not release.stays_inside:
        parts = [tensor.double().flatten() for tensor in release.tensors().values()]
        found[WEIGHTS] = torch.cat(parts).numpy() if parts else np.zeros(0)
    return found


def observe_records(path: Path, world: World) -> Observed:
    """What a file of synthetic records and the card beside it let out: how near they come to the canary, and means."""
    card = path.with_name(path.name + ".card.json").read_text()
    if world.schema is None:
        with np.load(path) as held:
            features, labels, classes = *(torch.from_numpy(held[name]) for name in "xy"), len(held["class_names"])
    else:
        schema = read_schema(world.schema)
        made = code(read_table(path, schema), schema, name=path.name)[0]
        features, labels, classes = made.features, made.labels, made.classes
    label = int(world.canary[1])
    distances = (features - world.canary[0]).flatten(1).norm(dim=1)
    same = distances[labels == label]
    shares = torch.bincount(labels, minlength=classes) / len(labels)
    found = {
        "nearest": distances.min(),
        "nearest of its class": (same if len(same) else distances).min(),
        "mean distance": distances.mean(),
        "share of its class": shares[label],
        WEIGHTS: torch.cat([features.flatten(1).mean(0), shares]),
    }
    numbers = {name: value.double().reshape(-1).numpy() for name, value in found.items()}
    return _documents(card=json.loads(card)) | _promised(Card.from_json(card), world) | numbers


def _promised(card: Card, world: World) -> Observed:
    found = {}
    if card.claimed is not None and (card.claimed.unit, card.claimed.neighbours) == (world.unit, card.neighbours):
        found[CLAIMED] = np.array([card.claimed.epsilon, card.claimed.delta])
    if card.proven is not None and card.unit == world.unit:
        found[PROVEN] = np.array([card.proven.epsilon, card.proven.delta])
    return found


def _documents(**documents: Any) -> Observed:
    """Every number of JSON documents by its path; a text counts as its checksum."""
    found = {key: np.array([value]) for name, held in documents.items() for key, value in numbers(name, held)}
    return {key: value for key, value in found.items() if "digest" not in key}


def numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Every number of a JSON value by its path; a text counts as its checksum."""
    if isinstance(value, Mapping | list):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from numbers(f"{name}.{key}", inner)
    elif isinstance(value, str):
        yield name, float(zlib.crc32(value.encode()))
    elif value is not None:
        yield name, float(value)


# Which number tells the worlds apart


@dataclass(frozen=True)
class Told:
    """The score that tells the worlds apart best, by some runs of either."""

    score: Callable[[Observed], float]
    scores: _Pair
    """Of the runs that it was learned from."""
    apart: float
    """How well it does: 0 if not at all, 1/2 if always."""


def tell_apart(worlds: Worlds, control: Sequence[Observed]) -> Told:
    """Learn which number, or which direction in the space of weights, tells two worlds' runs apart.

    The number of records is public: what the control runs and those with the canary all say alike is left out.
    """
    names = _names(worlds, control)
    zero, one = (_matrix(world, names) for world in worlds)
    apart = _apart(zero, one)
    told = Told(lambda run: 0.0, (np.zeros(len(zero)), np.zeros(len(one))), 0.0)
    if names:
        best = int(apart.argmax())
        told = Told(
            lambda run: float(_matrix([run], [names[best]])[0, 0]), (zero[:, best], one[:, best]), float(apart[best])
        )
    sizes = {run[WEIGHTS].shape if WEIGHTS in run else (0,) for world in worlds for run in world}
    if len(sizes) == 1 and sizes != {(0,)}:
        stacked = (_stack(worlds[0]), _stack(worlds[1]))
        for learn in (_linear, _clipped):
            scores = _held_out(stacked, learn)
            together = float(_apart(scores[0][:, None], scores[1][:, None])[0])
            if together >= told.apart:
                score = learn(*stacked)
                told = Told(lambda run, score=score: float(score(run[WEIGHTS][None])[0]), scores, together)  # type: ignore[misc]
    return told


def _matrix(runs: Sequence[Observed], names: Sequence[str]) -> NDArray[np.float64]:
    """(runs, numbers); a number that a run lacks, or that is no number, is one of its own."""
    rows = [[float(run[name][0]) if name in run else np.inf for name in names] for run in runs]
    return np.nan_to_num(np.array(rows, np.float64).reshape(len(runs), len(names)), nan=-1e300)


def _names(worlds: Worlds, control: Sequence[Observed]) -> list[str]:
    """The single numbers that may tell the worlds apart: not those that the number of records alone determines."""
    found = sorted({name for world in worlds for run in world for name in run} - {WEIGHTS, CLAIMED, PROVEN})
    if not control:
        return found
    here, there = _matrix(control, found), _matrix(worlds[1], found)
    public = (here == here[0]).all(0) & (there == here[0]).all(0)
    return [name for name, known in zip(found, public, strict=True) if not known]


def _apart(zero: NDArray[np.float64], one: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far apart two samples (runs, numbers) are: their AUC's distance from a half, and mean differences to break ties."""
    from scipy.stats import rankdata

    ranks = rankdata(np.concatenate([zero, one]), axis=0)[len(zero) :].sum(0)
    larger = (ranks / len(one) - (len(one) + 1) / 2) / len(zero)
    with np.errstate(all="ignore"):
        spread = np.sqrt((zero.var(0) + one.var(0)) / 2)
        shift = np.abs(zero.mean(0) - one.mean(0)) / np.maximum(spread, 1e-300)
    return np.abs(larger - 0.5) + 1e-3 * np.nan_to_num(np.tanh(shift))


def _stack(world: Sequence[Observed]) -> NDArray[np.float64]:
    return np.stack([run[WEIGHTS] for run in world])


_Score: TypeAlias = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""From many numbers of each run, (runs, numbers), to one score of each."""


def _linear(zero: NDArray[np.float64], one: NDArray[np.float64]) -> _Score:
    """The direction in which the worlds lie apart, each number in units of its spread: the best for Gaussian noise."""
    difference, variance = one.mean(0) - zero.mean(0), (zero.var(0) + one.var(0)) / 2
    # A number without spread that differs tells everything; one that does not differ tells nothing.
    direction = difference / np.maximum(variance, 1e-12 * max(float(np.abs(difference).max(initial=0.0)) ** 2, 1e-300))
    # From 0 to 1 between the worlds' middles, so that scores that were learned from other runs can stand beside these.
    origin, end = (np.median(world @ direction) for world in (zero, one))
    width = end - origin if end != origin else 1.0
    return lambda runs: (runs @ direction - origin) / width


def _clipped(zero: NDArray[np.float64], one: NDArray[np.float64]) -> _Score:
    """The same for numbers that are cut off at both worlds' medians: as the likelihood ratio of Laplace noise is."""
    medians = np.median(zero, 0), np.median(one, 0)
    low, high = np.minimum(*medians), np.maximum(*medians)
    linear = _linear(zero.clip(low, high), one.clip(low, high))
    return lambda runs: linear(runs.clip(low, high))


def _held_out(worlds: _Pair, learn: Callable[[NDArray[np.float64], NDArray[np.float64]], _Score]) -> _Pair:
    """Each run's score as it was learned without it: ten folds."""
    scores = np.empty(len(worlds[0])), np.empty(len(worlds[1]))
    for fold in range(10):
        score = learn(*(world[np.arange(len(world)) % 10 != fold] for world in worlds))
        for found, world in zip(scores, worlds, strict=True):
            found[fold::10] = score(world[fold::10])
    return scores
