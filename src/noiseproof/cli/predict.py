"""`noiseproof predict`: predictions for the rows of a table, in the table's own words."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noiseproof.cli import options as o
from noiseproof.cli import output
from noiseproof.cli.ledger import check_no_password, shown_address
from noiseproof.cli.registry import command
from noiseproof.errors import BundleError, SettingError, UnsupportedError

if TYPE_CHECKING:
    import torch

    from noiseproof.releases.release import Release

SHOWN = 20
"""Rows that are printed where no file is written."""


@command("predict", "Example: noiseproof predict model new-people.csv --out scored.csv")
def run(
    bundle: Annotated[Path, typer.Argument(help="The folder of a bundle.")],
    rows: Annotated[Path, typer.Argument(help="A table with the columns that the release was trained on.")],
    out: Annotated[
        Path | None,
        typer.Option(help="CSV or Parquet for the rows with their predictions; without it they are printed."),
    ] = None,
    force: o.Force = False,
    encoding: o.Encoding = None,
    ledger: o.LedgerOption = "noiseproof-ledger.db",
    key: Annotated[
        Path | None, typer.Option(help="The signer's public key: a bundle that it did not sign, or not so, is refused.")
    ] = None,
    json: o.Json = False,
) -> None:
    """Predict the target of new rows: classes by their names with probabilities, numbers in the target's units.

    Rows are read as the records were: missing values and unknown categories by the schema's rules. The answers of a model
    cost nothing. Those of a prediction release are paid for from the ledger, before they are given and all or none of them;
    rows that cannot be used are refused before that.
    """
    from noiseproof.data.formats import check_file, read_table
    from noiseproof.data.schema import Schema
    from noiseproof.data.tables import answers_table, code_rows
    from noiseproof.files import check_out, whole_file
    from noiseproof.releases import bundles, signing
    from noiseproof.releases.signing_keys import read_public_key

    if out is not None:
        if out.suffix not in (".csv", ".parquet"):
            raise SettingError(f"predictions are written as .csv or .parquet, not {out.name}; rename --out.")
        check_out(out, force=force, inputs=(rows, bundle))
    release = bundles.load(bundle)
    signed = signing.verify_bundle(bundle, None if key is None else read_public_key(key), release)
    if key is not None and not signed.valid:
        raise BundleError(f"{bundle}: {signed.findings[0]}")
    if not signed.valid:
        output.note(f"{bundle}: {signed.sentence}")
    if release.public.kind != "table":
        raise UnsupportedError(f"{bundle} was made from records that are no table; use Python's `release.predict`.")
    check_file(rows)
    schema = Schema.of(release.public).model_copy(update={"others": "refuse"})
    frame = read_table(rows, schema, encoding or "utf-8")
    features, remarks = code_rows(frame, release.public, name=rows.name)
    output.note(*remarks)
    answers = _answer(release, features, bundle, ledger)
    named = release.named(answers) if release.public.task == "classification" else None
    found = answers_table(release.public, answers, labels_only=release.labels_only, named=named)
    if clash := [name for name in found.columns if name in frame.columns]:
        found = found.rename(columns={name: f"{name} (new)" for name in clash})
    found.index = frame.index
    scored = frame.join(found)
    if out is not None:
        with whole_file(out) as file:
            if out.suffix == ".csv":
                scored.to_csv(file, index=False)
            else:
                scored.to_parquet(file, index=False)
    document: dict[str, Any] = {"rows": len(scored), "out": None if out is None else str(out)}
    document["signature"] = signed.status
    if out is not None:
        output.tell(json, document, f"Wrote {len(scored)} rows with their predictions to {out}.")
        return
    document["predictions"] = found.to_dict("records")
    shown = found.head(SHOWN)
    caption = None if len(shown) == len(found) else f"The first {SHOWN} of {len(found)} rows; --out writes them all."
    output.answer(json, document, None, tuple(map(str, shown.columns)), shown.itertuples(index=False), caption)


def _answer(release: Release, features: torch.Tensor, bundle: Path, ledger: str) -> torch.Tensor:
    """The answers; those that cost are paid for first."""
    from noiseproof.privacy import Secure
    from noiseproof.releases.release import PredictionRelease

    if not isinstance(release, PredictionRelease):
        return release.predict(features)
    output.need_serve()
    check_no_password(ledger)
    from noiseproof.serve.server import pay

    left = pay(bundle, release, ledger, answers=len(features), client="predict")
    output.note(f"{len(features)} answers were paid for from {shown_address(ledger)}; {left} are left.")
    return release.answer_paid(features, Secure())
