"""Two neighbouring files, the same fixed randomness, the whole way through a command; and everything that it left behind.

A guarantee is about files: whatever a command prints or writes is either noised (declared as such below, with the reason),
or equal for two files that differ in one record. New methods, formats, fields and files need not be named here: what is not
declared must be equal.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.font_manager  # noqa: F401 (it writes its list of fonts when it is first loaded: not in a world)
import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load as load_tensors

from noiseproof import releases
from noiseproof.cli import main
from noiseproof.data import load
from noiseproof.privacy import Secure, accountants
from noiseproof.privacy.events import ComposedDpEvent, DpEvent, GaussianDpEvent, LaplaceDpEvent, PureDpEvent
from noiseproof.privacy.randomness import Bits

KEY = bytes(range(32))

SCHEMA = {
    "columns": {
        "age": {"low": 0, "high": 100},
        "hours": {"low": 0, "high": 60},
        "city": {"categories": ["a", "b", "c"]},
    },
    "target": {"name": "label", "classes": ["no", "yes"]},
}

EXTREMES = (
    {"age": 0.0, "hours": 0.0, "city": "a", "label": "no"},
    {"age": 100.0, "hours": 60.0, "city": "c", "label": "yes"},
)
"""Two records as different as can be."""

NUMERIC = SCHEMA | {"target": {"name": "label", "low": 0, "high": 10}}
"""The schema of the same people with a number to predict."""

OTHERS = 140
"""Records that both files have, beside the one in the middle."""

Record = Mapping[str, Any]

ALWAYS: Mapping[str, str] = {
    r"(\d+ )?stdout:((baseline_)?(accuracy|measures)|quality|disagreement|warnings)\b.*": "for the owner's eyes",
    r"(\d+ )?stdout:seconds": "time",
    r".*\.private\.json:.*": "for the eyes of the records' owner: it lies beside the bundle, readable by nobody else",
    r".*settings\.json:digests\..*": "digests of files that are compared by themselves, or stay inside",
}
"""What may differ between the worlds even if they share all draws, as `file:path within it`, and why."""

DECLARED: Mapping[str, str] = {
    **ALWAYS,
    r".*card(\.json:|\.)ran\.scale on a feature.*": "computed from relevances that were released with noise",
    r".*weights\.safetensors:\d+\.(low|high|running_mean|running_var)": "of hidden units over records noised one by one",
}
"""What may differ where each world draws its own noise."""

UNPROVEN: Mapping[str, str] = {
    r".*card(\.json:|\.)(notes\.\d+|ran\.grid points)": "dp-pg and dp-pgp measure the networks' densities, as published",
}
"""What differs besides where a card proves nothing and says so."""


@pytest.fixture
def fixed_randomness(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call it before each world: from then on the system's entropy is the same stream again."""

    def restart() -> None:
        bits = Bits(KEY)
        monkeypatch.setattr(os, "urandom", lambda count: bits.words(-(-count // 8)).tobytes()[:count])

    return restart


class Tape:
    """What two worlds noise: the values of both, and the first world's draws, which the second gets as well.

    With the same draws everything after a draw, later releases included, is a function of the same numbers, so that in the
    second world nothing that leaves may differ at all; and what the worlds' values differ by, in units of the noise, is
    all that tells them apart. What that costs is accounted exactly and held against the card.
    """

    def __init__(self) -> None:
        self._drawn: list[tuple[str, torch.Tensor, torch.Tensor, torch.Tensor]] = []
        self._place: int | None = None
        self._paused = False
        self.events: list[DpEvent] = []
        """What each draw costs, from the pair of values."""
        self.largest: list[float] = []
        """The largest privacy loss of each, which add up: of a few choices that is less than what their ranges compose to."""
        self.differing: list[str] = []
        """Draws of the second world that are not the first's: of another shape or scale, one more or one fewer."""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """While it lasts secure noise is recorded, or, the second time, played again."""
        with pytest.MonkeyPatch.context() as patch:
            for kind in ("add_gaussian", "add_laplace", "choose"):
                patch.setattr(Secure, kind, self._instead(kind, getattr(Secure, kind)))
            # Measured on answers that are rehearsed for the owner's eyes: they are no release.
            patch.setattr(releases, "evaluate", self._unheard(releases.evaluate))
            yield
        if self._place is not None and self._place != len(self._drawn):
            self.differing.append("the number of draws")
        self._place = 0

    def _unheard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            self._paused = True
            try:
                return function(*given)
            finally:
                self._paused = False

        return call

    def _instead(self, kind: str, real: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def draw(
            rng: Secure, value: torch.Tensor, scale: Any = 1.0, *, out: torch.Tensor | None = None
        ) -> torch.Tensor:
            if self._paused:
                return real(rng, value) if kind == "choose" else real(rng, value, scale, out=out)
            given, scales = (torch.as_tensor(each).detach().double().clone() for each in (value, scale))
            # Drawn in the second world as well: what is drawn after it comes from the same stream.
            drawn = real(rng, value) if kind == "choose" else real(rng, value, scale)
            if self._place is None:
                self._drawn.append((kind, given, scales, drawn.clone()))
            else:
                drawn = self._again(kind, given, scales, drawn)
            return drawn.clone() if out is None else out.copy_(drawn)

        return draw

    def _again(self, kind: str, given: torch.Tensor, scale: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """The first world's draw at this place; its own if that was something else."""
        if self._place >= len(self._drawn):
            self.differing.append("one draw more")
            return drawn
        was, before, before_scale, again = self._drawn[self._place]
        self._place += 1
        if (kind, given.shape, scale.shape) != (was, before.shape, before_scale.shape):
            self.differing.append(f"{was} of {tuple(before.shape)} is {kind} of {tuple(given.shape)}")
            return drawn
        if not scale.equal(before_scale):
            self.differing.append(f"the scale of {kind}")
        for event, largest in _costs(kind, before, given, scale):
            self.events.append(event)
            self.largest.append(largest)
        return again

    def epsilon(self, delta: float) -> float:
        """What telling the worlds apart by everything that was drawn costs."""
        composed = accountants.epsilon(ComposedDpEvent(self.events), delta).epsilon if self.events else 0.0
        return min(composed, sum(self.largest))


def _costs(kind: str, one: torch.Tensor, other: torch.Tensor, scale: torch.Tensor) -> Iterator[tuple[DpEvent, float]]:
    if kind == "choose":
        for ratio in (one.log_softmax(-1) - other.log_softmax(-1)).reshape(-1, one.shape[-1]):
            ratio = ratio[ratio.isfinite()]
            if ratio.abs().max() > 0:
                yield PureDpEvent(float(ratio.max() - ratio.min()), bounded_range=True), float(ratio.abs().max())
        return
    distance = (one - other).abs() / scale
    if kind == "add_gaussian" and distance.any():
        yield GaussianDpEvent(1 / float(distance.norm())), math.inf
    elif distance.any():
        yield LaplaceDpEvent(1 / float(distance.sum())), float(distance.sum())


def table(one: Record | None) -> pd.DataFrame:
    """The others' records, with this one in their middle."""
    random = np.random.default_rng(7)
    rows = [
        {
            "age": float(random.integers(18, 90)),
            "hours": float(random.integers(0, 60)),
            "city": "abc"[random.integers(3)],
            "label": "yes" if random.random() < 0.5 else "no",
        }
        for _ in range(OTHERS)
    ]
    return pd.DataFrame([*rows[: OTHERS // 2], *([] if one is None else [dict(one)]), *rows[OTHERS // 2 :]])


def _write_arrays(frame: pd.DataFrame, path: Path) -> None:
    coded = np.stack([frame["age"], frame["hours"], frame["city"].map("abc".index)], axis=1).astype(np.float32)
    labels = (frame["label"] == "yes").astype(np.int64)
    np.savez(path, x=coded, y=labels, class_names=["no", "yes"], low=[0, 0, 0], high=[100, 60, 2])


def _write_text(frame: pd.DataFrame, path: Path) -> None:
    text = frame.to_csv(index=False, sep="\t" if ".tsv" in path.name else ",").encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


WRITERS: Mapping[str, Callable[[pd.DataFrame, Path], None]] = {
    **dict.fromkeys((".csv", ".csv.gz", ".tsv", ".tsv.gz"), _write_text),
    ".parquet": lambda frame, path: frame.to_parquet(path, index=False),
    ".xlsx": lambda frame, path: frame.to_excel(path, index=False),
    ".npz": _write_arrays,
}
"""How a test writes each format that `load` reads."""


def write_world(folder: Path, one: Record | None, extension: str = ".csv", *, numeric: bool = False) -> tuple[str, ...]:
    """Write a world's file and schema into a folder of its own; the options of a command that is run there."""
    folder.mkdir(parents=True)
    people = table(one)
    if numeric:
        people["label"] = 5.0 * (people["label"] == "yes") + people["hours"] / 12
    WRITERS[extension](people, folder / f"people{extension}")
    if extension == ".npz":
        return ("--data", f"people{extension}")
    (folder / "people.json").write_text(json.dumps(NUMERIC if numeric else SCHEMA))
    return ("--data", f"people{extension}", "--schema", "people.json")


PERSON_ROW = int(np.searchsorted(np.sort(np.arange(OTHERS) % 95), 48))
"""The first row of the person in the middle."""
MARK = b"Xq7secret"
"""What every person's id begins with, so that it is found wherever it went."""


def text_id(owner: int) -> str:
    """An id of a person that nothing else looks like."""
    return f"{MARK.decode()}-{owner:04}"


def write_persons(
    folder: Path, person: Sequence[Record], name: Callable[[int], str | int] = text_id
) -> tuple[str, ...]:
    """Write a world of 95 persons with one or two rows each, and this one's in their middle; the options of a command."""
    folder.mkdir(parents=True)
    others = table(None)
    others["patient"] = [name(owner) for owner in np.sort(np.arange(OTHERS) % 95)]
    middle = PERSON_ROW
    rows = pd.DataFrame(list(person), columns=[*others.columns]).assign(patient=name(9999))
    pd.concat([others[:middle], rows, others[middle:]]).to_csv(folder / "people.csv", index=False)
    (folder / "people.json").write_text(json.dumps(SCHEMA | {"person": "patient"}))
    return ("--data", "people.csv", "--schema", "people.json")


def twins(folder: Path, extension: str = ".csv", *, numeric: bool = False) -> tuple[Record, Record]:
    """Two records as different as can be that both fall into the training part, wherever the split puts others."""
    from noiseproof.data import load

    def training(name: str, one: Record | None) -> int:
        given = write_world(folder / name, one, extension, numeric=numeric)
        path = folder / name / given[1]
        return len(load(path, schema=folder / name / given[3] if len(given) > 2 else None).train)

    alone = training("alone", None)
    found = []
    for age, rest in (
        (20, {"hours": 0.0, "city": "a", "label": "no"}),
        (80, {"hours": 59.0, "city": "c", "label": "yes"}),
    ):
        candidates = ({"age": age + step / 4, **rest} for step in range(40))
        found.append(next(one for step, one in enumerate(candidates) if training(f"try{age}-{step}", one) == alone + 1))
    return found[0], found[1]


def extremes(*, numeric: bool = False) -> tuple[Record, Record]:
    """Those records, moved a little until both are trained on under replace-one: all others then keep their places."""

    def write(folder: Path, one: Record) -> tuple[str, ...]:
        return write_world(folder, one, numeric=numeric)

    first, second = (
        trained_on(
            write, ({**record, "age": record["age"] + inwards * step} for step in itertools.count()), OTHERS // 2
        )
        for record, inwards in zip(EXTREMES, (0.01, -0.01), strict=True)
    )
    return first, second


def trained_on(
    write: Callable[[Path, Any], tuple[str, ...]], candidates: Iterable[Any], row: int, part: int = 0
) -> Any:
    """The first of some records, or persons, at a row of a file that are trained on (or held out: 1) under replace-one."""
    for one in candidates:
        with tempfile.TemporaryDirectory() as folder:
            given = write(Path(folder) / "world", one)
            path, schema = (Path(folder) / "world" / given[place] for place in (1, 3))
            rows = load(path, schema=schema, neighbours="replace-one").rows
        if rows is not None and row in rows[part]:
            return one
    raise AssertionError("none of them is in that part")


def without_times(text: str) -> bytes:
    """A text without times, durations and sizes of the process, and without hexadecimal ids and hashes, which hold a time."""
    text = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:.]+", "TIME", text)
    text = re.sub(r'("(?:at|ms|paid_at)": ?)[\d.]+', r"\1TIME", text)
    text = re.sub(r"[0-9a-f]{16,}", "ID", text)
    return re.sub(r"(?m)^\w*(seconds|bytes|process|python|created)\w*[ {].*$", "PROCESS", text).encode()


Left = dict[str, bytes]
"""Everything that a command left behind: stdout, stderr, and files by their path in the world's folder."""


def run(folder: Path, arguments: tuple[str, ...], given: tuple[str, ...] = ()) -> Left:
    """Run a command in a world's folder, with a home of its own there, and gather what it left."""
    before = {path for path in folder.rglob("*") if path.is_file()}
    out, err = io.StringIO(), io.StringIO()
    with _living_in(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([*arguments, *given])
        except SystemExit as stop:
            if stop.code:
                raise AssertionError(err.getvalue()) from None
    files = {path for path in folder.rglob("*") if path.is_file()} - before
    found = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(files)}
    # What is said of synthetic records that are all alike stands in `warnings`, too, for the owner's eyes.
    said = re.sub(r"(?m)^note: mode collapse:.*\n", "", err.getvalue())
    return {"stdout": out.getvalue().encode(), "stderr": said.encode(), **found}


@contextlib.contextmanager
def _living_in(folder: Path) -> Iterator[None]:
    home = folder / "home"
    home.mkdir(exist_ok=True)
    names = ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "TMPDIR")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "200")
        for name in names:
            patch.setenv(name, str(home))
        yield


def leaks(first: Left, second: Left, folder: Path, *, asked: str = "release", noised: bool = True) -> list[str]:
    """What differs between two worlds' leavings and is not declared; nothing may.

    `folder` is the first world's. `asked` is what the names of files begin with that the command was asked to write:
    anything elsewhere (a cache, a log) is named, too. What is `noised` differs; not so where the worlds shared all draws.
    """
    found = [f"{name} is there in one world only" for name in sorted(first.keys() ^ second.keys())]
    for name in sorted(first.keys() & second.keys()):
        if "." in name and not name.startswith(asked):
            found.append(f"{name} was written unasked")
        if first[name] != second[name]:
            found += [f"{name}:{where} differs" for where in _differences(name, first, second, folder, noised)]
    if not noised:
        return [what for what in found if not any(re.fullmatch(f"{pattern} differs", what) for pattern in ALWAYS)]
    cards = [content for name, content in first.items() if name.endswith("card.json")]
    proven = any(json.loads(card)["proven"] is not None for card in cards)
    declared = DECLARED if proven else {**DECLARED, **UNPROVEN}
    return [what for what in found if not any(re.fullmatch(f"{pattern} differs", what) for pattern in declared)]


def _differences(name: str, first: Left, second: Left, folder: Path, noised: bool) -> Iterator[str]:
    """Where within a file two worlds differ."""
    one, other = first[name], second[name]
    if name.endswith(".safetensors"):
        yield from _tensors(name, first, second, folder, noised)
    elif name.endswith((".json", "stdout")) and one[:1] == b"{":
        yield from _paths(json.loads(one), json.loads(other))
    elif not noised or not re.fullmatch(r"release\.(csv|npz|parquet|png)", name):
        # What `synth` was asked to write are the noised records themselves; their card lies beside them.
        yield "all"


def _paths(one: Any, other: Any, at: str = "") -> Iterator[str]:
    """Paths of the leaves in which two JSON documents differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            yield from _paths(one.get(key), other.get(key), f"{at}.{key}" if at else key)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, pair in enumerate(zip(one, other, strict=True)):
            yield from _paths(*pair, f"{at}.{index}")
    elif one != other:
        yield at


def _tensors(name: str, first: Left, second: Left, folder: Path, noised: bool) -> Iterator[str]:
    """Parameters of a network are what a method noises; buffers and everything else in a public bundle must be equal."""
    from noiseproof.releases import ModelRelease, load_bundle

    one, other = load_tensors(first[name]), load_tensors(second[name])
    release = load_bundle((folder / name).parent)
    if one.keys() != other.keys():
        yield "names"
    elif release.stays_inside:
        return  # it holds the records, of which a person has any number
    elif any(one[key].shape != other[key].shape for key in one):
        yield "shapes"
    elif isinstance(release, ModelRelease):
        parameters = {key for key, _ in release.module.named_parameters()} if noised else set()
        yield from (key for key in one if key not in parameters and not one[key].equal(other[key]))
