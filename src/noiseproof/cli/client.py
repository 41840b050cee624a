"""`noiseproof client`: ask a service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noiseproof.cli import output
from noiseproof.cli.options import Json
from noiseproof.cli.registry import group
from noiseproof.errors import DataError

app = group(
    "client",
    "Ask a service for private predictions.",
    "Example: noiseproof client predict http://127.0.0.1:8000 model --inputs rows.csv",
)


@app.callback()
def _group() -> None:
    """Ask a service for private predictions."""


@app.command(epilog="Example: noiseproof client predict http://127.0.0.1:8000 model --inputs rows.json --json")
def predict(
    url: Annotated[str, typer.Argument(help="Address of the service.")],
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    inputs: Annotated[
        Path, typer.Option(help="Coded records: JSON (nested lists) or CSV (a record a line, no header).")
    ],
    key: Annotated[str, typer.Option(envvar="NOISEPROOF_KEY", help="API key; others cannot see it in the variable.")],
    batch: Annotated[int, typer.Option(help="Records in one request.", min=1)] = 256,
    json: Json = False,
) -> None:
    """Predict the labels of records; a request that got lost on the way is sent again and costs once."""
    output.need_serve()
    from noiseproof.serve.client import Client, understood

    records = _read(inputs)
    with Client(url, key) as client, understood():
        if inputs.suffix == ".csv":
            records = _shaped(records, client.card(model)["shape"])
        answers = [client.predict(model, records[i : i + batch]) for i in range(0, len(records), batch)]
        joined = {name: [one for answer in answers for one in answer[name]] for name in ("labels", "probabilities")}
        listed = {f"{name}s": [answer[name] for answer in answers] for name in ("cost", "receipt")}
        last = {name: answers[-1][name] for name in ("classes", "remaining")}
        left = "costs nothing" if last["remaining"] is None else f"{last['remaining']['answers']} answers left"
        pairs = zip(joined["labels"], map(max, joined["probabilities"]), strict=True)
        rows = [(i, label, share) for i, (label, share) in enumerate(pairs)]
    columns = ("record", "label", "probability")
    output.answer(json, {"model": model, **last, **joined, **listed}, f"{model} ({left})", columns, rows)


def _shaped(records: list[object], shape: list[int]) -> list[object]:
    """A table's lines in the model's shape; lines of another length are left as they are, for the service to refuse."""
    import math

    import numpy as np

    size = math.prod(shape)
    return [
        np.reshape(line, shape).tolist() if isinstance(line, list) and len(line) == size else line for line in records
    ]


def _read(file: Path) -> list[object]:
    """Records of a JSON or CSV file as nested lists."""
    import csv
    import json as codec

    if not file.is_file():
        raise DataError(f"there is no file {file}; name one with records.")
    try:
        if file.suffix == ".csv":
            with file.open(newline="") as lines:
                records: object = [[float(value) for value in line] for line in csv.reader(lines) if line]
        else:
            records = codec.loads(file.read_text())
    except (ValueError, UnicodeDecodeError, RecursionError):
        raise DataError(
            f"{file} does not hold numbers as JSON or CSV; write a record a line, without a header."
        ) from None
    if isinstance(records, dict):
        records = records.get("inputs")
    if not isinstance(records, list) or not records:
        raise DataError(f"{file} holds no list of records.")
    return records
