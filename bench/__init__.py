"""Speed as ratios: ours and theirs take turns within one run, medians; `noiseproof bench` prints them."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Literal, get_args

from noiseproof.errors import MissingPartError, SettingError
from noiseproof.progress import SILENT, Progress

Benchmark = Literal[
    "steps", "noise", "shadows", "predictions", "parameters", "generators", "inputs", "scaling", "growth", "batches", "serve",
    "soak", "synthetic",
]  # fmt: skip
_REPEATS: dict[str, int | None] = {
    **{"steps": 1, "noise": 2, "shadows": None, "predictions": 1, "parameters": None, "generators": 1},
    **{"inputs": 6, "scaling": 4, "growth": None, "batches": None, "serve": 1, "soak": None, "synthetic": None},
}
"""Each takes that part of the repeats; None where it has a number of its own."""
_SERVICE = ("serve", "soak")
"""These need what a service needs."""
_BY_NAME = ("growth", "batches", "synthetic", *_SERVICE)
"""These are run where they are asked for by name."""


def run(
    *, against: str | None = None, only: str | None = None, repeats: int = 30, progress: Progress = SILENT
) -> list[dict[str, Any]]:
    """Rows `{what, ours, theirs, ratio, unit}` of all benchmarks but a service's, or of one; `against="opacus"` adds it."""
    names = get_args(Benchmark)
    if only is not None and only not in names:
        raise SettingError(f"there is no benchmark {only!r}; there are {', '.join(names)}.")
    if against not in (None, "opacus"):
        raise SettingError(f"the peer to measure against is opacus, not {against!r}.")
    if against and importlib.util.find_spec("opacus") is None:
        raise MissingPartError("Opacus is not installed; `pip install 'noiseproof[bench]'` brings it.")
    if only in _SERVICE and importlib.util.find_spec("fastapi") is None:
        raise MissingPartError("a service's parts are not installed; `pip install 'noiseproof[serve]'` brings them.")
    chosen = [name for name in names if name not in _BY_NAME] if only is None else [only]
    rows: list[dict[str, Any]] = []
    with progress.task("benchmarks", len(chosen)) as task:
        for name in chosen:
            task.advance(0, benchmark=name)  # said before its minutes, not after
            module = importlib.import_module(f"bench.{'serve' if name == 'soak' else name}")
            part, options = _REPEATS[name], {"with_opacus": against == "opacus"} if name == "steps" else {}
            times = () if part is None else (repeats if part == 1 else max(3, repeats // part),)
            rows += (module.soak if name == "soak" else module.rows)(*times, **options)
            task.advance()
    return rows
