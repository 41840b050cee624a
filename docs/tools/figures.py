"""Put measured figures into the pages: no number in a generated table is typed by hand.

    noiseproof compare --out runs/demo && python docs/tools/figures.py compare runs/demo
    noiseproof bench --against opacus --json > bench.json && python docs/tools/figures.py bench bench.json
    noiseproof study lin --out runs/lin && python docs/tools/figures.py study:lin runs/lin

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
    """The table of benchmarks, or of one kind (`bench:steps`)."""
    rows = json.loads(file.read_text())["rows"]
    cells = [
        [row["what"], *(_short(row[key]) for key in ("ours", "theirs", "ratio")), row.get("unit", "ms")] for row in rows
    ]
    replace(name, table(["what", "ours", "theirs", "ratio", "unit"], cells))


def study(name: str, folder: Path) -> None:
    """Every table that a study wrote, each where a page asks for it by name: `study:lin:table-12`."""
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
    elif name.partition(":")[0] == "bench":
        bench(name, source)
    else:
        study(name, source)


if __name__ == "__main__":
    main()
