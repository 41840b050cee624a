"""Speed as ratios: ours and theirs take turns within one run, medians; `noiseproof bench` prints them."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal, get_args

from noiseproof.errors import MissingPartError, SettingError
from noiseproof.progress import SILENT, Progress

Benchmark = Literal[
    "steps",
    "noise",
    "shadows",
    "predictions",
    "parameters",
    "generators",
    "inputs",
    "scaling",
    "growth",
    "serve",
    "soak",
]
_SERVICE = ("serve", "soak")
"""These need what a service needs."""
_BY_NAME = ("growth", *_SERVICE)
"""These are run where they are asked for by name."""


def run(
    *, against: str | None = None, only: str | None = None, repeats: int = 30, progress: Progress = SILENT
) -> list[dict[str, Any]]:
    """Rows `{what, ours, theirs, ratio, unit}` of all benchmarks but a service's, or of one; `against="opacus"` adds it."""
    from bench import generators, inputs, noise, parameters, predictions, scaling, shadows, steps

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
            if name == "steps":
                rows += steps.rows(repeats, with_opacus=against == "opacus")
            elif name == "noise":
                rows += noise.rows(max(3, repeats // 2))
            elif name == "shadows":
                rows += shadows.rows()
            elif name == "predictions":
                rows += predictions.rows(repeats)
            elif name == "parameters":
                rows += parameters.rows()
            elif name == "generators":
                rows += generators.rows(repeats)
            elif name == "inputs":
                rows += inputs.rows(max(3, repeats // 6))
            elif name == "scaling":
                rows += scaling.rows(max(3, repeats // 4))
            elif name == "growth":
                from bench import growth

                rows += growth.rows()
            else:
                from bench import serve

                rows += serve.rows(repeats) if name == "serve" else serve.soak()
            task.advance(benchmark=name)
    return rows
