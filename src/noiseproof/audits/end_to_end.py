"""End-to-end audit: whole runs on two neighbouring files, from the file to what leaves, and the epsilon that they refute.

A game (`audit`) plays a mechanism as its method describes it. Here nothing is taken from a description: a file with a
canary and one without are loaded, split, trained on, saved and loaded again, many times each, and everything that can
leave (weights, answers, synthetic records, card, settings) is held against which of the two files it came from.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from noiseproof.attacks.attack import logit_confidence
from noiseproof.audits import canaries
from noiseproof.audits.audit import AuditError, AuditResult
from noiseproof.audits.two_worlds import counting_bound
from noiseproof.data import Dataset, Public, Schema, decode, layout, load, neighbours
from noiseproof.data.schema import ColumnSchema, TargetSchema
from noiseproof.data.splits import Canary, coins
from noiseproof.errors import DataError, NoiseproofError, SettingError
from noiseproof.files import whole_file, write_whole
from noiseproof.parallel import tasks
from noiseproof.privacy.budget import Neighbours, check_neighbours
from noiseproof.privacy.card import Claim, Proof
from noiseproof.progress import SILENT, Progress
from noiseproof.releases import bundles
from noiseproof.releases.release import DataRelease, ModelRelease, PredictionRelease

Observed: TypeAlias = dict[str, NDArray[np.float64]]
"""What a run let out: single numbers by name, each an array of one, and `weights`."""
Worlds: TypeAlias = tuple[Sequence[Observed], Sequence[Observed]]

_CLAIMED, _PROVEN, _WEIGHTS = "promise: claimed", "promise: proven", "weights"
"""What a run is held to (epsilon and delta), and what is looked at together; the rest are single numbers."""
_LEARNING = 0.4
"""The share of the trials from which the score and the event are learned; the others are counted."""
_PILOTS = 6
"""Runs in each world from which the worst canary is chosen."""
_CONTROL, _CONTROLS = "control", 3
"""A world with an ordinary record instead of a canary, and how many runs in it tell what is public with the number of
records."""
_SPLITS = 200
"""How many keys of the split are tried for one that trains on every canary."""


@dataclass(frozen=True)
class Source:
    """A file of private records, as a training run gets it."""

    data: Path
    schema: Path | None
    split_seed: int
    """The key of the split's coins, chosen so that the canary is trained on."""


Train: TypeAlias = Callable[[Source, Path], object]
"""Trains on a source as a user would and saves the bundle to the path. Picklable, unless `jobs` is 1."""


def audit_end_to_end(
    dataset: Dataset,
    train: Train,
    *,
    name: str,
    delta: float,
    relation: Neighbours = "add-or-remove",
    canary: Canary | None = None,
    records: int = 400,
    trials: int = 100,
    confidence: float = 0.95,
    seed: int = 0,
    jobs: int | None = None,
    timeout: float | None = None,
    folder: Path | None = None,
    progress: Progress = SILENT,
) -> AuditResult:
    """Train whole runs on two neighbouring files and give the largest epsilon that what they let out refutes.

    Two fifths of the trials learn which number tells the worlds apart best (a number on the card, the confidence in the
    canary, a direction in the space of weights) and which of its values accuse which world; on the others errors are
    counted, with Clopper-Pearson bounds. The number of records is public throughout this package: under add-or-remove, a
    number that a few control runs with an ordinary record instead of the canary publish identically is not looked at.

    Args:
        dataset: All the private records.
        train: What is audited: from a file to a bundle.
        name: What that is, in words: a method and its settings.
        delta: The delta of the bound; for a verdict, the one that is promised.
        relation: How the two files differ.
        canary: The record that one file has and the other has not; without one, the worst of several in pilot runs.
        records: How many records, at most, are taken of the data set, at random: whole runs should be short.
        trials: Runs in each world. Without an error an epsilon up to about log(trials / 6) can be refuted at 95%.
        confidence: Of the bound.
        seed: Chooses records and canaries. The runs draw their own randomness.
        jobs: Local processes, one for each core if None.
        timeout: Seconds after which a run counts as hanging.
        folder: Keeps files and finished runs there, so that an interrupted audit goes on from them. It is as private as
            the records; without it everything is deleted at the end.
        progress: Hears of every run.

    Returns:
        The bound, beside what the runs' own cards claim and prove for records and these neighbours.

    Raises:
        AuditError: If a run fails, dies or hangs; no bound is computed from the others.
        SettingError: If there are fewer than 20 trials, or the folder holds another audit.

    Formal guarantee
    ----------------
    If runs are independent and the whole way from the file to the bundle is (epsilon, delta)-DP under `relation`, the
    bound exceeds epsilon with probability at most 1 - confidence, whatever the numbers are: the counted runs play no
    part in choosing score and event (see `counting_bound`). The files are made of private records: it is for the
    trusted side.
    """
    if trials < 20:
        raise SettingError(f"an end-to-end audit needs at least 20 trials in each world, not {trials}.")
    check_neighbours(relation)
    generator = torch.Generator().manual_seed(seed)
    dataset = dataset.take(torch.randperm(len(dataset), generator=generator)[:records].to(dataset.labels.device))
    candidates = {"yours": canary} if canary is not None else _candidates(dataset)
    with _folder(folder) as place:
        _claim(place, dataset, relation, candidates, name, delta, trials, seed)
        files = _write_worlds(place, dataset, relation, candidates, seed)
        play = _Runs(place, train, files, jobs, timeout, progress)
        control = play({_CONTROL: _CONTROLS}, _CONTROL)[_CONTROL] if _CONTROL in files else []
        worst = next(iter(candidates))
        if len(candidates) > 1:
            pilots = {which: play({"without": _PILOTS, which: _PILOTS}, f"pilot-{which}") for which in candidates}
            worst = max(
                candidates, key=lambda which: _separation((pilots[which]["without"], pilots[which][which]), control)
            )
        seen = play({"without": trials, worst: trials}, f"trial-{worst}")
        worlds = seen["without"], seen[worst]
        learning = round(_LEARNING * trials)
        score, chosen = _learned((worlds[0][:learning], worlds[1][:learning]), control)
        counted = tuple(np.array([score(one) for one in world[learning:]]) for world in worlds)
        bound = counting_bound((counted[0], counted[1]), delta=delta, confidence=confidence, choosing=chosen)
        claimed, proven = _promises(seen["without"], relation, delta)
    game = f"{name}, end to end: {len(dataset)} records with and without one more ({worst})"
    return AuditResult(game, relation, "record", trials, seed, bound, claimed, proven)


# Files of the two worlds


def _candidates(dataset: Dataset) -> dict[str, Canary]:
    """Records that are hard to hide, each far from the others in its own way."""
    rarest = int(torch.bincount(dataset.labels, minlength=dataset.classes).argmin())
    found = {
        "mislabelled": canaries.mislabelled(dataset),
        "corner": canaries.corner(dataset),
        "blank": (torch.zeros_like(dataset.features[0]), rarest),
    }
    return {name: (_row(dataset.public, features), label) for name, (features, label) in found.items()}


def _row(public: Public, features: torch.Tensor) -> torch.Tensor:
    """The features of a table's nearest possible row: one category a column, and nothing missing."""
    features = features.clone()
    for column, place in layout(public.columns) if public.kind == "table" else ():
        part = features[place]
        if not column.numeric:
            chosen = part[: len(column.categories)].argmax()
            part.zero_()[chosen] = 1.0
        elif column.missing:
            part[1] = 0.0
    return features


def _write_worlds(
    place: Path, dataset: Dataset, relation: Neighbours, candidates: Mapping[str, Canary], seed: int
) -> dict[str, Source]:
    """A file for the world without a canary, and one with each; also the canaries themselves, for the runs."""
    written = {}
    if relation == "add-or-remove":
        place_of = int(torch.randint(len(dataset), (), generator=torch.Generator().manual_seed(seed)))
        candidates = {_CONTROL: (dataset.features[place_of], int(dataset.labels[place_of])), **candidates}
    for name, canary in candidates.items():
        np.savez(place / f"canary-{name}.npz", features=canary[0].cpu().numpy(), label=canary[1])
        pair = neighbours(dataset, seed, relation=relation, canary=canary)
        # Under add-or-remove the first has a record more; under replace-one the second has the canary.
        worlds = dict(zip((name, "without") if relation == "add-or-remove" else ("without", name), pair, strict=True))
        for which, world in worlds.items():
            if relation == "add-or-remove":
                # In an order of coins, so that the canary is not told by its place; all others keep theirs.
                world = world.take(torch.from_numpy(np.argsort(coins(world, seed + 1))).to(world.labels.device))
            written[which] = _write(place / which, world)
    for split_seed in range(_SPLITS):
        sources = {name: Source(*files, split_seed) for name, files in written.items()}
        if all(_trained_on(sources[name], sources["without"], canary, relation) for name, canary in candidates.items()):
            return sources
    raise SettingError("no split was found that trains on every canary; give one canary, or fewer records.")


def _trained_on(source: Source, without: Source, canary: Canary, relation: Neighbours) -> bool:
    """Whether the training part has one record like the canary more than without it."""
    counts = []
    for each in (source, without):
        try:
            train = load(each.data, schema=each.schema, seed=source.split_seed, neighbours=relation).train
        except DataError:  # all on one side
            return False
        near = (train.features - canary[0]).flatten(1).abs().amax(1) < 1e-5
        counts.append(int((near & (train.labels == canary[1])).sum()))
    return counts[0] > counts[1]


def _write(path: Path, dataset: Dataset) -> tuple[Path, Path | None]:
    """Records as a file that `load` reads back as they are: a table with its schema, or arrays with their bounds."""
    public = dataset.public
    if public.kind == "table" and public.target is not None:
        table, schema = path.with_suffix(".parquet"), path.with_suffix(".json")
        decode(public, dataset.features, dataset.labels).to_parquet(table)
        write_whole(schema, _schema(public).to_json())
        return table, schema
    arrays = path.with_suffix(".npz")
    np.savez(
        arrays,
        x=dataset.features.cpu().numpy(),
        y=np.array(public.classes)[dataset.labels.cpu().numpy()],
        class_names=np.array(public.classes),
        low=0.0,
        high=1.0,
    )
    return arrays, None


def _schema(public: Public) -> Schema:
    def values(texts: Sequence[str], integer: bool) -> tuple[str | int, ...]:
        return tuple(int(text) for text in texts) if integer else tuple(texts)

    columns = {
        column.name: ColumnSchema(
            low=column.low,
            high=column.high,
            categories=values(column.categories, column.integer),
            integer=column.integer and column.numeric,
            missing=column.missing,
        )
        for column in public.columns
    }
    target = TargetSchema(name=str(public.target), classes=values(public.classes, public.integer_classes))
    return Schema(columns=columns, target=target, drafted=public.bounds == "data")


# Runs


@contextmanager
def _folder(folder: Path | None) -> Iterator[Path]:
    """The user's folder, which stays, or one that does not."""
    if folder is None:
        with tempfile.TemporaryDirectory() as temporary:
            yield Path(temporary)
        return
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    yield folder


def _claim(place: Path, dataset: Dataset, relation: str, candidates: Mapping[str, Canary], *rest: object) -> None:
    """Refuse a folder that holds another audit."""
    digest = hashlib.sha256(repr((dataset.fingerprint(), relation, rest)).encode())
    for name, (features, label) in candidates.items():
        digest.update(f"{name} {label}".encode() + features.cpu().numpy().tobytes())
    path = place / "audit.json"
    document = json.dumps({"audit": digest.hexdigest()})
    if path.is_file() and path.read_text() != document:
        raise SettingError(f"{place} holds another audit, or one of other records or settings; take another folder.")
    write_whole(path, document, mode=0o600)


@dataclass(frozen=True)
class _Task:
    world: int
    source: Source
    canary: Path
    out: Path


@dataclass(frozen=True)
class _Runs:
    """Plays runs that are not in the folder yet, and gives what all of them let out."""

    place: Path
    train: Train
    files: Mapping[str, Source]
    jobs: int | None
    timeout: float | None
    progress: Progress

    def __call__(self, counts: Mapping[str, int], kind: str) -> dict[str, list[Observed]]:
        canary = self.place / f"canary-{list(counts)[-1]}.npz"
        every = {
            which: [
                _Task(world, self.files[which], canary, self.place / f"{kind}-{world}-{index}.npz")
                for index in range(count)
            ]
            for world, (which, count) in enumerate(counts.items())
        }
        # The worlds take turns: a failure in either shows early.
        todo = [task for pair in zip(*every.values(), strict=True) for task in pair if not task.out.is_file()]
        outcomes = tasks.run(
            _run_once,
            todo,
            common=(self.train,),
            jobs=self.jobs,
            timeout=self.timeout,
            attempts=1,
            lost=lambda task, lost: lost.why,
            progress=self.progress,
            description=kind,
        )
        for index, failure in outcomes:
            if failure is not None:
                world = todo[index].world
                raise AuditError(
                    f"a whole run in the world {('without', 'with')[world]} the canary failed ({failure.rstrip('.')}), "
                    "so no bound was computed; whether a run fails must not depend on one record either.",
                    failure="crash",
                    world=world,
                    trials=range(index, index + 1),
                )
        return {which: [_read(task.out) for task in runs] for which, runs in every.items()}


def _read(path: Path) -> Observed:
    with np.load(path) as held:
        return dict(held)


def _run_once(train: Train, task: _Task) -> str | None:
    """One whole run; what it let out is written to the task's file. Returns what went wrong, without private values."""
    try:
        with tempfile.TemporaryDirectory(dir=task.out.parent) as scratch:
            bundle = Path(scratch) / "bundle"
            train(task.source, bundle)
            found = _observed(bundle, task.canary)
    except NoiseproofError as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return type(error).__name__
    with whole_file(task.out, mode=0o600) as file:
        np.savez(file, **found)  # type: ignore[arg-type]
    return None


def _observed(bundle: Path, canary: Path) -> Observed:
    """Everything that a bundle lets out, as numbers; what stays inside (the files of secret networks) is not looked at."""
    release = bundles.load(bundle)
    with np.load(canary) as held:
        features, label = torch.from_numpy(held["features"])[None], torch.from_numpy(held["label"]).reshape(1)
    found: Observed = {}
    for name in (bundles.CARD, bundles.SETTINGS):
        document = json.loads((bundle / name).read_text())
        if release.stays_inside:
            document.pop("description", None)
        for key, value in _numbers(name.partition(".")[0], document):
            if "digest" not in key:
                found[key] = np.array([value])
    card = release.card
    if card.claimed is not None and (card.claimed.unit, card.claimed.neighbours) == ("record", card.neighbours):
        found[_CLAIMED] = np.array([card.claimed.epsilon, card.claimed.delta])
    if card.proven is not None and card.unit == "record":
        found[_PROVEN] = np.array([card.proven.epsilon, card.proven.delta])
    if isinstance(release, ModelRelease):
        found["confidence"] = logit_confidence(release.predict(features), label).numpy()
    elif isinstance(release, PredictionRelease):
        asked = max(1, release.queries_left)
        answers = release.predict(features.expand(asked, *features.shape[1:]))
        found["confidence"] = logit_confidence(answers, label.expand(asked)).mean(0, keepdim=True).numpy()
        found["right"] = (answers.argmax(1) == label).double().mean(0, keepdim=True).numpy()
    elif isinstance(release, DataRelease):
        made = release.dataset
        distances = (made.features.flatten(1) - features.flatten(1)).norm(dim=1)
        same = distances[made.labels == label]
        found["nearest"] = distances.min().reshape(1).double().numpy()
        found["nearest of its class"] = (same if len(same) else distances).min().reshape(1).double().numpy()
        found["mean distance"] = distances.mean().reshape(1).double().numpy()
        found["share of its class"] = (made.labels == label).double().mean().reshape(1).numpy()
        shares = torch.bincount(made.labels, minlength=made.classes) / len(made)
        found[_WEIGHTS] = torch.cat([made.features.flatten(1).mean(0), shares]).double().numpy()
    if not release.stays_inside and not isinstance(release, DataRelease):
        parts = [tensor.double().flatten() for tensor in release.tensors().values()]
        found[_WEIGHTS] = torch.cat(parts).numpy() if parts else np.zeros(0)
    return found


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Every number of a JSON document by its path; a text counts as its checksum."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(f"{name}.{key}", inner)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _numbers(f"{name}.{place}", inner)
    elif isinstance(value, str):
        yield name, float(zlib.crc32(value.encode()))
    elif value is not None:
        yield name, float(value)


def _promises(runs: Sequence[Observed], relation: Neighbours, delta: float) -> tuple[Claim | None, Proof | None]:
    """What the runs' cards claim and prove for a record and these neighbours; of several runs, the largest."""
    claims, proofs = [], []
    for run in runs:
        for kind, name in ((Claim, _CLAIMED), (Proof, _PROVEN)):
            if name in run and run[name][1] <= delta * (1 + 1e-6):
                epsilon, at = map(float, run[name])
                if kind is Claim:
                    claims.append(Claim(epsilon=epsilon, delta=at, neighbours=relation, source="the runs' cards"))
                else:
                    proofs.append(Proof(epsilon=epsilon, delta=at, accountant="the runs' cards"))
    return max(claims, key=lambda one: one.epsilon, default=None), max(
        proofs, key=lambda one: one.epsilon, default=None
    )


# Which number tells the worlds apart


def _matrix(runs: Sequence[Observed], names: Sequence[str]) -> NDArray[np.float64]:
    """(runs, numbers); a number that a run lacks, or that is no number, is one of its own."""
    rows = [[float(run[name][0]) if name in run else np.inf for name in names] for run in runs]
    return np.nan_to_num(np.array(rows, np.float64).reshape(len(runs), len(names)), nan=-1e300)


def _names(worlds: Worlds, control: Sequence[Observed]) -> list[str]:
    """The single numbers that may tell the worlds apart: not those that the number of records alone determines."""
    found = sorted({name for world in worlds for run in world for name in run} - {_WEIGHTS, _CLAIMED, _PROVEN})
    if not control:
        return found
    here, there = _matrix(control, found), _matrix(worlds[1], found)
    public = (here == here[0]).all(0) & (there == here[0]).all(0)
    return [name for name, known in zip(found, public, strict=True) if not known]


def _apart(zero: NDArray[np.float64], one: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far apart two samples (runs, numbers) are: their AUC's distance from a half, and mean differences to break ties."""
    larger = (one[:, None] > zero[None]).mean((0, 1)) + (one[:, None] == zero[None]).mean((0, 1)) / 2
    with np.errstate(all="ignore"):
        spread = np.sqrt((zero.var(0) + one.var(0)) / 2)
        shift = np.abs(zero.mean(0) - one.mean(0)) / np.maximum(spread, 1e-300)
    return np.abs(larger - 0.5) + 1e-3 * np.nan_to_num(np.tanh(shift))


def _direction(zero: Sequence[Observed], one: Sequence[Observed]) -> NDArray[np.float64]:
    """The direction in the space of weights in which the worlds lie apart, each weight in units of its spread."""
    first, second = (np.stack([run[_WEIGHTS] for run in world]) for world in (zero, one))
    difference, variance = second.mean(0) - first.mean(0), (first.var(0) + second.var(0)) / 2
    # A weight without spread that differs tells everything; one that does not differ tells nothing.
    return difference / np.maximum(variance, 1e-12 * max(float(np.abs(difference).max(initial=0.0)) ** 2, 1e-300))


def _has_weights(*worlds: Sequence[Observed]) -> bool:
    sizes = {run[_WEIGHTS].shape if _WEIGHTS in run else () for world in worlds for run in world}
    return len(sizes) == 1 and sizes != {()} and sizes != {(0,)}


def _projected(zero: Sequence[Observed], one: Sequence[Observed]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each run's score along a direction that was found without it: ten folds."""
    scores = np.empty(len(zero)), np.empty(len(one))
    for fold in range(10):
        kept = [[run for place, run in enumerate(world) if place % 10 != fold] for world in (zero, one)]
        direction = _direction(kept[0], kept[1])
        for score, world in zip(scores, (zero, one), strict=True):
            for place in range(fold, len(world), 10):
                score[place] = float(world[place][_WEIGHTS] @ direction)
    return scores


def _separation(worlds: Worlds, control: Sequence[Observed]) -> float:
    """How well a few runs of either world are told apart by the number that does it best."""
    names = _names(worlds, control)
    best = float(_apart(*(_matrix(world, names) for world in worlds)).max(initial=0.0))
    if _has_weights(*worlds):
        scores = _projected(*worlds)
        best = max(best, float(_apart(scores[0][:, None], scores[1][:, None])[0]))
    return best


def _learned(
    worlds: Worlds, control: Sequence[Observed]
) -> tuple[Callable[[Observed], float], tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """The score that tells the worlds apart best, and the scores of the runs that it was learned from."""
    names = _names(worlds, control)
    zero, one = (_matrix(world, names) for world in worlds)
    apart = _apart(zero, one)
    best = int(apart.argmax()) if len(names) else -1
    if _has_weights(*worlds):
        scores = _projected(*worlds)
        if best < 0 or _apart(scores[0][:, None], scores[1][:, None])[0] >= apart[best]:
            direction = _direction(*worlds)
            return lambda run: float(run[_WEIGHTS] @ direction), scores
    if best < 0:  # nothing leaves that could differ
        return lambda run: 0.0, (np.zeros(len(zero)), np.zeros(len(one)))
    name = names[best]
    return lambda run: float(_matrix([run], [name])[0, 0]), (zero[:, best], one[:, best])
