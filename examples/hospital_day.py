"""A data scientist's day at a hospital: from a messy table to models, predictions and synthetic records.

Every step is the command that one would type, timed; what is done in Python or over HTTP is beside it. `python
examples/hospital_day.py` runs all of it in a temporary folder, and prints each command with its seconds.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import json
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

import noiseproof as npf
from noiseproof.cli import main as command_line

WARDS = ("surgery", "medicine", "children", "heart")

SCHEMA: dict[str, Any] = {
    "columns": {
        "age": {"low": 0, "high": 110, "missing": True},
        "dose [mg]": {"low": 0, "high": 200, "missing": True},
        "ward": {"categories": list(WARDS), "missing": True},
        "admitted": {"low": "2024-01-01", "high": "2025-12-31", "date": "%d.%m.%Y"},
        "earlier visits": {"low": 0, "high": 20, "integer": True},
        "stay": {"low": 0, "high": 30},
    },
    "target": {"name": "readmitted", "classes": ["no", "yes"]},
    "person": "patient",
    "skip": ["visit", "note"],
}
"""What is public: what the forms allow, not what the records hold."""

STAY: dict[str, Any] = {
    **SCHEMA,
    "columns": {name: column for name, column in SCHEMA["columns"].items() if name != "stay"},
    "target": {"name": "stay", "low": 0, "high": 30},
    "skip": ["visit", "note", "readmitted"],
}
"""The same table, with another column to predict."""


def write_visits(path: Path, rows: int = 20_000, seed: int = 0) -> None:
    """A made-up table as hospitals have it: semicolons, decimal commas, ids, dates, gaps, several rows a patient."""
    random = np.random.default_rng(seed)
    patients = random.integers(0, int(rows * 0.6), rows)
    frail = random.normal(size=int(rows * 0.6))[patients]
    age = np.clip(55 + 18 * random.normal(size=rows) + 6 * frail, 0, 109)
    dose = np.clip(60 + 30 * random.normal(size=rows) + 0.3 * age, 0, 200)
    ward = random.integers(0, 4, rows)
    earlier = random.poisson(np.exp(0.4 * frail))
    stay = np.clip(random.gamma(2.0, 1 + 0.02 * age + 0.6 * np.clip(frail, 0, None) + (ward == 0)), 0.1, 30)
    odds = 1.0 * frail + 0.035 * (age - 55) + 0.5 * earlier + 0.9 * (ward == 3) + 0.008 * (dose - 75)
    odds += 0.5 * random.normal(size=rows)
    yes = odds > np.quantile(odds, 1 - 0.031)
    first = datetime.date(2024, 1, 1)
    days = [first + datetime.timedelta(days=int(day)) for day in random.integers(0, 730, rows)]
    frame = pd.DataFrame(
        {
            "visit": [f"V{number:06d}" for number in range(rows)],
            "patient": [f"P{number:05d}" for number in patients],
            "admitted": [day.strftime("%d.%m.%Y") for day in days],
            "age": np.where(random.random(rows) < 0.03, np.nan, age.round(1)),
            "dose [mg]": np.where(random.random(rows) < 0.08, np.nan, dose.round(1)),
            "ward": np.where(random.random(rows) < 0.02, None, np.array(WARDS, dtype=object)[ward]),
            "earlier visits": np.clip(earlier, 0, 20),
            "stay": stay.round(1),
            "note": [f"seen by dr. {letter}, stable" for letter in random.choice(list("abcdef"), rows)],
            "readmitted": np.where(yes, "yes", "no"),
        }
    )
    frame.to_csv(path, sep=";", decimal=",", index=False)


class Day:
    """The commands that were typed, and the seconds that each took."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, float]] = []

    def run(self, typed: str) -> dict[str, Any]:
        """Type a command with `--json`; its document."""
        out, err, started = io.StringIO(), io.StringIO(), time.perf_counter()
        code = 0
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                command_line([*shlex.split(typed)[1:], "--json"])
        except SystemExit as stop:
            code = int(stop.code or 0)
        seconds = time.perf_counter() - started
        self.commands.append((typed, seconds))
        print(f"$ {typed}  # {seconds:.0f} s", flush=True)
        if code:
            raise SystemExit(err.getvalue())
        return dict(json.loads(out.getvalue())) if out.getvalue() else {}


@contextlib.contextmanager
def served(bundle: str) -> Iterator[str]:
    """A bundle behind HTTP, on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    typed = [sys.executable, "-m", "noiseproof", "serve", bundle, "--port", str(port), "--workers", "1"]
    process = subprocess.Popen(typed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def main(rows: int = 20_000, seed: int = 0, methods: str = "proven", trials: int = 100) -> dict[str, Any]:
    """The whole day, in the current folder; what came of it."""
    day = Day()
    write_visits(Path("visits.csv"), rows, seed)
    new = pd.read_csv("visits.csv", sep=";", decimal=",").drop(columns=["readmitted"]).head(50)
    new.to_csv("new.csv", sep=";", decimal=",", index=False)

    # A first look: what the columns seem to be. Then somebody who knows what is public writes it down.
    day.run("noiseproof data visits.csv --target readmitted --person patient --draft-schema draft.json")
    Path("visits.json").write_text(json.dumps(SCHEMA))

    about = "--data visits.csv --schema visits.json"
    rehearsed = day.run(
        f"noiseproof compare {about} --epsilon 3 --delta 1e-6 --methods {methods} --trials {trials} --seed {seed} --out compared"
    )
    chosen = next(one for one in rehearsed["recommendations"] if one["need"] == "publish a model")
    trained = day.run(
        f"noiseproof train {chosen['method']} {about} --epsilon 3 --delta 1e-6 --chosen-by compared --out model --no-baseline"
    )

    # The same fifty new rows three times: a file, a data frame, a request.
    day.run("noiseproof predict model new.csv --out scored.csv")
    scored = pd.read_csv("scored.csv")
    release: Any = npf.load_bundle("model")
    in_python = release.predict(new)
    day.run("noiseproof ledger init")
    key = day.run("noiseproof keys create analyst")["key"]
    with served("model") as url:
        from noiseproof.serve.client import Client

        records = json.loads(new.drop(columns=["visit", "patient", "note"]).to_json(orient="records"))
        with Client(url, key) as client:
            over_http = client.predict("model", records)

    Path("stay.json").write_text(json.dumps(STAY))
    stay = day.run(
        "noiseproof train functional --data visits.csv --schema stay.json --epsilon 3 --delta 1e-6 --out stay --no-baseline"
    )
    made = day.run(
        f"noiseproof synth dp-gan {about} --epsilon 3 --delta 1e-6 --rows 2000 --out synthetic.csv --page quality.html"
    )
    minutes = sum(seconds for _, seconds in day.commands) / 60
    print(f"{len(day.commands)} commands, {minutes:.1f} minutes")
    return {
        "compared": rehearsed,
        "chosen": chosen,
        "trained": trained,
        "scored": scored,
        "in_python": in_python,
        "over_http": over_http,
        "stay": stay,
        "synthetic": made,
        "commands": day.commands,
    }


if __name__ == "__main__":
    with TemporaryDirectory() as folder, contextlib.chdir(folder):
        main()
