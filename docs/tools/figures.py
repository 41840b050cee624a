"""Put measured figures into the pages: no number in a generated table is typed by hand.

    noiseproof compare --out runs/demo && python docs/tools/figures.py compare runs/demo
    noiseproof bench --against opacus --json > bench.json && python docs/tools/figures.py bench bench.json
    python -m bench.correlated errors && python docs/tools/figures.py errors bench/results/runs/errors.json
    noiseproof study lu --out runs/lu && python docs/tools/figures.py study:lu runs/lu

replace what stands between `<!-- figures: NAME -->` and `<!-- end of figures -->` in README.md and docs.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))


def replace(name: str, text: str) -> list[Path]:
    """Put `text` where pages ask for the figures of that name, and say which pages did."""
    pattern = re.compile(rf"(<!-- figures: {re.escape(name)} -->\n).*?(?=<!-- end of figures -->)", re.S)
    changed = []
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        after = pattern.sub(lambda found: found[1] + "\n" + text.strip("\n") + "\n\n", before)
        if pattern.search(before):
            page.write_text(after, encoding="utf-8")
            changed.append(page)
    return changed


def table(columns: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def every_method(document: Mapping[str, Any]) -> str:
    """The table of methods: what each is, and what became of its promise."""
    from noiseproof.methods import registry

    found = {row["method"]: row for row in document["rows"] if row["status"] == "done"}
    rows = []
    for name, method in registry().items():
        figures = ["—"] * 5
        if name in found:
            row = found[name]
            promises = [row["card"][kind] for kind in ("claimed", "proven", "audited")]
            epsilons = ["—" if promise is None else f"{promise['epsilon']:.3g}" for promise in promises]
            accuracy = "—" if row["accuracy"] is None else f"{row['accuracy']:.1%}"
            figures = [accuracy, *epsilons, _verdict(row)]
        rows.append([f"[`{name}`]({name}.md)", method.place, _built(method), method.summary(), *figures])
    measured = ["accuracy", "claimed ε", "proven ε", "audited ε ≥", "verdict"]
    return table(["method", "noise at", "built", "what it does", *measured], rows)


def in_short(document: Mapping[str, Any]) -> str:
    """The README's table of methods: what each is, and its verdict."""
    from noiseproof.methods import registry

    found = {row["method"]: _verdict(row) for row in document["rows"] if row["status"] == "done"}
    rows = [
        [f"[`{name}`](docs/methods/{name}.md)", method.place, method.summary(), _built(method), found.get(name, "—")]
        for name, method in registry().items()
    ]
    return table(["method", "noise at", "what it does", "built", "verdict"], rows)


def _built(method: Any) -> str:
    return "as published" if method.paper else "proven" if method.proves else "baseline"


def _verdict(row: Mapping[str, Any]) -> str:
    return f"**{row['verdict']}**" if row["verdict"] == "refuted" else str(row["verdict"])


def compare(folder: Path) -> None:
    """The methods' tables, and what the demo prints."""
    from noiseproof.cli.compare import show
    from noiseproof.run import Comparison, Plan

    comparison = Comparison.read(folder)
    document = comparison.to_json()
    replace("methods", every_method(document))
    replace("methods in short", in_short(document))
    printed = io.StringIO()
    os.environ["COLUMNS"] = "80"
    with contextlib.redirect_stdout(printed):
        show(comparison, Plan(data=comparison.plan["data"]), folder)
    lines = "\n".join(line.rstrip() for line in printed.getvalue().rstrip().splitlines())
    replace("demo", f"```text\n{lines}\n```")


def bench(name: str, file: Path) -> None:
    """The table of benchmarks, or of one kind (`bench:steps`, `bench:batches`)."""
    rows = json.loads(file.read_text())["rows"]
    if name == "bench:batches":
        replace(name, _batches(rows))
        return
    cells = [
        [row["what"], *(_short(row[key]) for key in ("ours", "theirs", "ratio")), row.get("unit", "ms")] for row in rows
    ]
    replace(name, table(["what", "ours", "theirs", "ratio", "unit"], cells))
    replace(f"{name}:in short", _steps_in_short(rows))


ASKED: dict[str, tuple[float | None, float | None]] = {
    **{"mlp": (1.35, 1.8), "mlp 4096-4096": (None, 2), "cnn": (1.15, 1.3), "lstm": (1.4, None), "resnet": (1.3, 1.5)},
    **{"vit": (1.5, None), "bert": (1.2, None), "gpt2": (1.2, None), "embedding": (None, 6), "bag": (3, None)},
}
"""By network how many times a plain step's time a private step was to take at most, seeded and secure; of memory 1.3."""


def _steps_in_short(rows: list[dict[str, Any]]) -> str:
    """Ratios to plain torch alone, a line a network and batch."""
    found: dict[str, dict[str, float]] = {}
    pattern = re.compile(
        r"(.+?)(?: at batch (\d+))?, (dp-sgd|dp-sgd, secure|memory of .* of \d+, .*) / non-private torch"
    )
    for row in rows:
        if match := pattern.fullmatch(row["what"]):
            network, batch, kind = match.groups()
            # Memory has no batch of its own here, and belongs to the network's first line.
            line = f"{network}, {batch}" if batch else next(key for key in found if key.startswith(f"{network}, "))
            found.setdefault(line, {})[re.sub(r" of \d+, .*", "", kind)] = row["ratio"]
    lines = []
    for line, ratios in found.items():
        seeded, secure = ASKED.get(line.rpartition(", ")[0], (None, None))
        cells = [ratios.get("dp-sgd"), seeded, ratios.get("dp-sgd, secure"), secure]
        cells += [ratios.get("memory of a step"), ratios.get("memory of a checked step")]
        shown = [
            "" if cell is None else f"{cell:.2f}" if number % 2 == 0 or number > 3 else f"{cell:g}"
            for number, cell in enumerate(cells)
        ]
        lines.append([line, *shown, "1.3" if cells[4] else ""])
    return table(["network, batch", "seeded", "asked", "secure", "asked", "memory", "of checked steps", "asked"], lines)


def _batches(rows: list[dict[str, Any]]) -> str:
    """Ratios to plain torch at growing sizes, a line a network: seeded / secure."""
    found: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        match = re.fullmatch(r"(batch|length): (.+) at (\d+), .*", row["what"])
        assert match is not None, row["what"]
        kind, network, size = match.groups()
        of = found.setdefault(f"{network}, {kind}", {})
        of.setdefault(size, []).append(f"{row['ratio']:.2f}")
    lines = [
        [line, ", ".join(sizes), ", ".join(" / ".join(pair) for pair in sizes.values())]
        for line, sizes in found.items()
    ]
    return table(["network, what grows", "sizes", "ratio to plain torch, seeded / secure"], lines)


def errors(file: Path) -> None:
    """The expected errors of strategies, of a record that takes part k times."""
    rows = json.loads(file.read_text())["rows"]
    columns = [column for column in max(rows, key=len) if column != "k"]
    cells = [[str(row["k"]), *(f"{row[column]:.3f}" if column in row else "" for column in columns)] for row in rows]
    replace("errors", table(["k", *columns], cells))


def study(name: str, folder: Path) -> None:
    """Every table that a study wrote, each where a page asks for it by name: `study:lu:table-6`."""
    for table_name, text in written(folder).items():
        replace(f"{name}:{table_name}", text)


def written(folder: Path) -> dict[str, str]:
    """The tables that a study wrote to a folder, as pages show them, by name."""
    found = {}
    for file in sorted(folder.glob("*.csv")):
        with file.open(newline="", encoding="utf-8") as lines:
            columns, *rows = csv.reader(lines)
        found[file.stem] = table(columns, [[_rounded(cell) for cell in row] for row in rows])
    return found


def _rounded(cell: str) -> str:
    try:
        return _short(float(cell)) if "." in cell else cell or "—"
    except ValueError:
        return cell


def _short(value: Any) -> str:
    if value is None:
        return "—"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    """`figures.py NAME FILE`."""
    name, source = sys.argv[1], Path(sys.argv[2])
    if name == "compare":
        compare(source)
    elif name == "errors":
        errors(source)
    elif name.partition(":")[0] == "bench":
        bench(name, source)
    else:
        study(name, source)


if __name__ == "__main__":
    main()
