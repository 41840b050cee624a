"""Speed as ratios: ours and theirs take turns within one run, medians; `noiseproof bench` prints them."""

from __future__ import annotations

import importlib.util
from typing import Any, Literal, get_args

from noiseproof.errors import MissingPartError, SettingError
from noiseproof.progress import SILENT, Progress

Benchmark = Literal["steps", "noise", "shadows", "predictions"]


def run(
    *, against: str | None = None, only: str | None = None, repeats: int = 30, progress: Progress = SILENT
) -> list[dict[str, Any]]:
    """Rows `{what, ours, theirs, ratio, unit}` of all benchmarks, or of one; `against="opacus"` adds that peer."""
    from noiseproof.benchmarks import noise, predictions, shadows, steps

    names = get_args(Benchmark)
    if only is not None and only not in names:
        raise SettingError(f"there is no benchmark {only!r}; there are {', '.join(names)}.")
    if against not in (None, "opacus"):
        raise SettingError(f"the peer to measure against is opacus, not {against!r}.")
    if against and importlib.util.find_spec("opacus") is None:
        raise MissingPartError("Opacus is not installed; `pip install 'noiseproof[bench]'` brings it.")
    chosen = names if only is None else (only,)
    rows: list[dict[str, Any]] = []
    with progress.task("benchmarks", len(chosen)) as task:
        for name in chosen:
            if name == "steps":
                rows += steps.rows(repeats, with_opacus=against == "opacus")
            elif name == "noise":
                rows += noise.rows(max(3, repeats // 2))
            elif name == "shadows":
                rows += shadows.rows()
            else:
                rows += predictions.rows(repeats)
            task.advance(benchmark=name)
    return rows
