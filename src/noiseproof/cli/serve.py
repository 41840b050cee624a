"""`noiseproof serve`: private predictions over HTTP, paid for from a ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from noiseproof.cli import output
from noiseproof.cli.ledger import check_no_password
from noiseproof.cli.options import LedgerOption, note_inside
from noiseproof.cli.registry import command
from noiseproof.errors import SettingError


@command(
    "serve", "Example: noiseproof serve model --ledger postgresql://user@host/budgets --client-answers 1000 --workers 4"
)
def run(
    bundles: Annotated[list[str], typer.Argument(metavar="BUNDLE...", help="Folders of bundles, or NAME=FOLDER.")],
    ledger: LedgerOption = "noiseproof-ledger.db",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8000,
    workers: Annotated[int, typer.Option(help="Processes; they share the port and the ledger.", min=1)] = 2,
    client_answers: Annotated[
        int | None, typer.Option(help="Answers that a client may have of each model, if its key says nothing else.")
    ] = None,
    memoise: Annotated[
        bool, typer.Option("--memoise", help="A client that repeats a question gets the same answer for nothing.")
    ] = False,
    rate: Annotated[float, typer.Option(help="Requests a second that one client may make.")] = 100.0,
    rows: Annotated[int, typer.Option(help="Inputs that one request may have.")] = 1024,
    body: Annotated[int, typer.Option(help="Bytes that one request may have.")] = 8 << 20,
    connections: Annotated[
        int, typer.Option(help="Connections from one address to one worker; more where a proxy is before it.")
    ] = 256,
    metrics_port: Annotated[
        int | None, typer.Option(help="A port of 127.0.0.1 with metrics for a scraper without a key.", min=1, max=65535)
    ] = None,
    data_set: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME or MODEL=NAME",
            help="The data set that bundles were made from, whose releases are counted together; told by its columns "
            "or shape if not named.",
        ),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="A public key: a bundle that its holder did not sign, or not so, is not served.")
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="TLS certificate (PEM).", exists=True)] = None,
    private_key: Annotated[Path | None, typer.Option(help="The certificate's private key (PEM).", exists=True)] = None,
) -> None:
    """Answer queries of many clients within each model's privacy budget, whoever asks and whatever crashes.

    Make keys with `noiseproof keys create`. A console for people is at `/`. What is served must not be answered from
    anywhere else: one release, one ledger.
    """
    output.need_serve()
    check_no_password(ledger)
    from noiseproof.serve import server
    from noiseproof.serve.service import Settings, name_bundles, name_data_sets

    if (certificate is None) != (private_key is None):
        raise SettingError("TLS needs both --certificate and --private-key.")
    settings = Settings(
        ledger=ledger,
        bundles=name_bundles(bundles),
        client_answers=client_answers,
        memoise=memoise,
        data_sets=name_data_sets(data_set or []),
        key=None if key is None else str(key),
        rate=rate,
        rows=rows,
        body=body,
        connections_by_address=connections,
        connections=max(connections, Settings.connections),
    )
    models, left, data_sets = server.check(settings)
    rows_shown = []
    for name, model in models.items():
        if model.basis == "claimed":
            output.note(f"{name}: nothing is proven of it ({model.verdict}); its answers are counted as claimed.")
        note_inside(model.release, Path(settings.bundles[name]))
        proven = output.guarantee(model.card.proven)
        rows_shown.append(
            (name, model.method, model.verdict, proven, model.card.unit, model.signature.status, left[name])
        )
        if not model.signature.valid:
            output.note(f"{name}: {model.signature.sentence}")
    columns = ("model", "method", "verdict", "proven ε", "unit", "signature", "answers left")
    output.show("Served", columns, rows_shown)
    for one in data_sets:
        if len(one.promises) > 1:
            output.note(one.sentence())
    if host not in ("127.0.0.1", "localhost", "::1") and certificate is None:
        output.note("API keys travel in the clear without TLS; give --certificate, or put a TLS proxy before it.")
    scheme = "https" if certificate else "http"
    output.say(f"Listening on {scheme}://{host}:{port}/ with {workers} workers; Ctrl+C stops.")
    server.run(
        settings,
        host=host,
        port=port,
        workers=workers,
        certificate=certificate,
        private_key=private_key,
        metrics_port=metrics_port,
        models=models,
    )
