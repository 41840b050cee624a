"""`noiseproof card` and `report`: what may be said of a bundle, and a page about a release, an audit or comparisons."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noiseproof.cli import options as o
from noiseproof.cli import output
from noiseproof.cli.registry import command
from noiseproof.errors import DataError, SettingError
from noiseproof.files import check_out, write_whole

if TYPE_CHECKING:
    from noiseproof.releases.signing_keys import PublicKey

_FORMATS = (".html", ".pdf")


@command("card", "Example: noiseproof card model --hugging-face README.md")
def card(
    bundle: Annotated[Path, typer.Argument(help="The folder of a bundle.")],
    hugging_face: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write it as a model card for the Hugging Face hub.")
    ] = None,
    force: o.Force = False,
    json: o.Json = False,
) -> None:
    """Show a bundle's card: what is claimed, proven and audited, on what assumptions."""
    from noiseproof.releases import bundles, signing
    from noiseproof.report import model_card

    release = bundles.load(bundle)
    found = release.card
    if hugging_face is not None:
        check_out(hugging_face, force=force)
        write_whole(hugging_face, model_card(release))
    output.answer(json, found, str(release), ("", "ε", "δ", ""), found.promises, caption=found.why)
    if not json:
        assumed = found.proven.assumptions if found.proven else ()
        for sentence in (*(f"assumed: {one}" for one in assumed), *found.notes):
            output.say(f"- {sentence}")
    signature = signing.verify_bundle(bundle, None).sentence
    (output.note if json else output.say)(signature)
    o.note_inside(release, bundle)


@command(
    "report",
    "Example: noiseproof report digits-model --key vendor.pem.pub --out report.pdf\n\n"
    "Example: noiseproof report runs/compare-digits runs/compare-people --out both.html",
)
def report(
    subjects: Annotated[
        list[Path],
        typer.Argument(
            metavar="BUNDLE|CARD|AUDIT|DIR...",
            help="A bundle, its card.json, the JSON of an audit, or folders that `noiseproof compare` wrote.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The page to write: .html, or .pdf (which needs Chromium).")] = Path(
        "report.html"
    ),
    key: Annotated[Path | None, typer.Option(help="The signer's public key, from a source that you trust.")] = None,
    ledger: Annotated[
        str | None, typer.Option(help="A ledger's file or address, to show what was spent on the same data.")
    ] = None,
    force: o.Force = False,
    json: o.Json = False,
) -> None:
    """Write one printable page that works offline: what left, what its epsilon means, what it rests on, who signed it.

    Of a bundle, a card or an audit it is the page for whoever decides whether it may leave. Of comparisons it shows every
    method, and is for the data's owner alone.
    """
    from noiseproof.releases.signing_keys import read_public_key
    from noiseproof.report.pdf import print_pdf

    if out.suffix not in _FORMATS:
        raise SettingError(f"a page is written as .html or .pdf, not {out.name}; rename --out.")
    check_out(out, force=force, inputs=subjects)
    page, document = _page(subjects, None if key is None else read_public_key(key), ledger)
    if out.suffix == ".pdf":
        print_pdf(page, out)
    else:
        write_whole(out, page)
    told = [document[name] for name in ("answer", "signed") if name in document]
    output.tell(json, {"out": str(out), **document}, " ".join([*told, f"The page: {out}"]))


def _page(subjects: list[Path], key: PublicKey | None, ledger: str | None) -> tuple[str, dict[str, Any]]:
    """The page, and what it says in short."""
    from noiseproof.releases import bundles
    from noiseproof.report import evidence, render, render_audit, render_release
    from noiseproof.run.results import RESULTS, Comparison

    first = subjects[0]
    if any((one / RESULTS).is_file() for one in subjects) or (first.is_dir() and not (first / bundles.CARD).is_file()):
        comparisons = [Comparison.read(folder) for folder in subjects]
        return render(comparisons), {"runs": [{"data": one.data, "sentence": one.sentence} for one in comparisons]}
    if len(subjects) > 1:
        raise SettingError("a page is about one bundle, card or audit; only comparisons are joined.")
    if not first.exists():
        raise DataError(f"there is no {first}; give a bundle, a card, an audit's JSON or a comparison's folder.")
    found: evidence.Evidence | evidence.AuditEvidence
    if not first.is_dir() and not evidence.is_card(first):
        found = evidence.of_audit(first, key)
        page = render_audit(found)
    else:
        account = None if ledger is None else _account(ledger, first)
        found = (evidence.of_bundle if first.is_dir() else evidence.of_card)(first, key, account)
        page = render_release(found)
    decision = found.decision
    said = {"signature": found.signature.status, "signed": found.signature.sentence}
    return page, {"answer": decision.answer, "why": decision.why, **said}


def _account(ledger: str, bundle: Path) -> list[str]:
    """What a ledger says of all data sets, and of the account with the bundle's name."""
    from noiseproof.cli.ledger import open_ledger

    with open_ledger(ledger) as database:
        from noiseproof.serve.ledger import History, Ledger

        found = [one.sentence() for one in Ledger(database).data_sets()]
        for account in History(database).accounts():
            if account.model == bundle.resolve().name:
                spent, limit = (
                    amount.to_json()["amounts"][0] for amount in (account.everyone.spent, account.everyone.capacity)
                )
                found.append(
                    f"{account.model}: {account.entries} entries by {len(account.clients)} clients, {spent} of {limit} spent "
                    f"({account.everyone.spent.measure}); the last entry's hash is {account.head}."
                )
    return found or ["The ledger knows no release yet."]
