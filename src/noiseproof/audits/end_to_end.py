"""End-to-end audit: whole runs on two neighbouring files, from the file to what leaves, and the epsilon that they refute.

A game (`audit`) plays a mechanism as its method describes it. Here nothing is taken from a description: a file with a
canary and one without are loaded, split, trained on, saved and loaded again, many times each, and everything that can
leave (weights, answers, synthetic records, card, settings) is held against which of the two files it came from.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from noiseproof.audits.audit import AuditError, AuditResult
from noiseproof.audits.observed import CLAIMED, PROVEN, Observed, observe_bundle, tell_apart
from noiseproof.audits.two_worlds import counting_bound
from noiseproof.audits.worlds import CONTROL, WITHOUT, World, candidates, write_worlds
from noiseproof.data import Dataset
from noiseproof.data.splits import Canary
from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.files import whole_file, write_whole
from noiseproof.parallel import tasks
from noiseproof.privacy.budget import Neighbours, check_neighbours
from noiseproof.privacy.card import Claim, Proof, Unit
from noiseproof.progress import SILENT, Progress

Train: TypeAlias = Callable[[World, Path], Observed | None]
"""Trains on a world's file as a user would. It saves a bundle to the path, or says itself what it let out. Picklable,
unless `jobs` is 1."""

_LEARNING = 0.4
"""The share of the trials from which the score and the event are learned; the others are counted."""
_PILOTS = 6
"""Runs in each world from which the worst canary is chosen."""
_CONTROLS = 3
"""Runs with an ordinary record instead of a canary, which tell what is public with the number of records."""


def audit_end_to_end(
    dataset: Dataset,
    train: Train,
    *,
    name: str,
    delta: float,
    relation: Neighbours = "add-or-remove",
    canary: Canary | None = None,
    records: int = 400,
    of_person: int = 5,
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
            Where the split would hold it out, one of its numbers is moved by a hundredth of its range until it is not.
        records: How many records, at most, are taken of the data set, at random: whole runs should be short.
        of_person: How many such records the canary has where the records' persons are known (`Dataset.groups`): one file
            then has a person more, and the bound is one for persons.
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

    Examples:
        >>> from noiseproof.data import load
        >>> def train(world, bundle):  # lets out a sum without noise, in place of a bundle
        ...     records = load(world.data, schema=world.schema).train
        ...     return {"sum": records.features.double().sum().reshape(1).numpy()}
        >>> digits = load("digits")
        >>> records = digits.train.joined(digits.test)
        >>> result = audit_end_to_end(records, train, name="a sum", delta=0.0, records=200, trials=40, jobs=1)
        >>> round(result.epsilon, 1)
        1.9

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
    drawn = torch.randperm(dataset.persons, generator=generator)
    if dataset.groups is not None:  # whole persons
        drawn = drawn.argsort()[dataset.groups.cpu()].argsort(stable=True)
    dataset = dataset.take(drawn[:records].to(dataset.labels.device))
    chosen = {"yours": canary} if canary is not None else candidates(dataset)
    with _folder(folder) as place:
        _claim(place, dataset, relation, chosen, name, delta, trials, seed, of_person)
        worlds = write_worlds(place, dataset, relation, chosen, seed, of_person)
        play = _Runs(place, train, worlds, jobs, timeout, progress)
        control = play({CONTROL: _CONTROLS}, CONTROL)[CONTROL] if CONTROL in worlds else []
        worst = next(iter(chosen))
        if len(chosen) > 1:
            pilots = {which: play({WITHOUT: _PILOTS, which: _PILOTS}, f"pilot-{which}") for which in chosen}
            worst = max(chosen, key=lambda one: tell_apart((pilots[one][WITHOUT], pilots[one][one]), control).apart)
        seen = play({WITHOUT: trials, worst: trials}, f"trial-{worst}")
    without, with_it = seen[WITHOUT], seen[worst]
    learning = round(_LEARNING * trials)
    told = tell_apart((without[:learning], with_it[:learning]), control)
    scores = [np.array([told.score(run) for run in runs[learning:]]) for runs in (without, with_it)]
    bound = counting_bound((scores[0], scores[1]), delta=delta, confidence=confidence, choosing=told.scores)
    one = "one" if dataset.groups is None else f"a person of {of_person}"
    game = f"{name}, end to end: {len(dataset)} records with and without {one} more ({worst})"
    return AuditResult(
        game, relation, dataset.unit, trials, seed, bound, *_promises(without, relation, delta, dataset.unit)
    )


def _promises(
    runs: Sequence[Observed], relation: Neighbours, delta: float, unit: Unit
) -> tuple[Claim | None, Proof | None]:
    """What the runs' cards claim and prove for this unit and these neighbours; of several runs, the largest."""

    def largest(name: str) -> tuple[float, float] | None:
        found = (run[name].tolist() for run in runs if name in run and run[name][1] <= delta * (1 + 1e-6))
        return max(found, default=None)

    source, claimed, proven = "the runs' cards", largest(CLAIMED), largest(PROVEN)
    return (
        Claim(epsilon=claimed[0], delta=claimed[1], unit=unit, neighbours=relation, source=source) if claimed else None,
        Proof(epsilon=proven[0], delta=proven[1], accountant=source) if proven else None,
    )


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


def _claim(place: Path, dataset: Dataset, relation: str, chosen: Mapping[str, Canary], *rest: object) -> None:
    """Refuse a folder that holds another audit."""
    digest = hashlib.sha256(repr((dataset.fingerprint(), relation, rest)).encode())
    for name, (features, label) in chosen.items():
        digest.update(f"{name} {label}".encode() + features.cpu().numpy().tobytes())
    path = place / "audit.json"
    document = json.dumps({"audit": digest.hexdigest()})
    if path.is_file() and path.read_text() != document:
        raise SettingError(f"{place} holds another audit, or one of other records or settings; take another folder.")
    write_whole(path, document, mode=0o600)


@dataclass(frozen=True)
class _Task:
    world: int
    source: World
    canary: Canary
    out: Path


@dataclass(frozen=True)
class _Runs:
    """Plays runs that are not in the folder yet, and gives what all of them let out."""

    place: Path
    train: Train
    worlds: Mapping[str, World]
    jobs: int | None
    timeout: float | None
    progress: Progress

    def __call__(self, counts: Mapping[str, int], kind: str) -> dict[str, list[Observed]]:
        canary = self.worlds[list(counts)[-1]].canary
        every = {
            which: [
                _Task(world, self.worlds[which], canary, self.place / f"{kind}-{world}-{index}.npz")
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
                raise AuditError.of(
                    f"a whole run in the world {('without', 'with')[world]} the canary failed ({failure.rstrip('.')}), "
                    "so no bound was computed; whether a run fails must not depend on one record either.",
                    "crash",
                    range(index, index + 1),
                    world=world,
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
            world = replace(task.source, canary=task.canary)
            found = train(world, bundle) or observe_bundle(bundle, world)
    except NoiseproofError as error:
        return f"{type(error).__name__}: {error}"
    except Exception as error:
        return type(error).__name__
    with whole_file(task.out, mode=0o600) as file:
        np.savez(file, **found)  # type: ignore[arg-type]
    return None
