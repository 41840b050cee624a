"""The command line: one file a command. Heavy imports happen inside commands, so that `--help` is quick."""

from __future__ import annotations

import os
import sys
import traceback

import typer

from noiseproof.cli import (
    account,
    attack,
    audit,
    bench,
    calibrate,
    client,
    compare,
    data,
    keys,
    ledger,
    methods,
    publish,
    report,
    serve,
    study,
    synth,
    train,
)
from noiseproof.cli.output import stderr
from noiseproof.errors import NoiseproofError, SettingError

app = typer.Typer(
    name="noiseproof",
    help="Differentially private deep learning whose guarantees are checked: every release states the epsilon that was "
    "claimed, the one that is proven for what ran, and the one that an attack audited from below.",
    epilog="Start with `noiseproof compare`. `--debug` anywhere shows the traceback of an error.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (
    compare,
    methods,
    data,
    account,
    calibrate,
    train,
    publish,
    synth,
    attack,
    audit,
    report,
    study,
    bench,
    serve,
):
    name = module.__name__.rpartition(".")[2]
    app.command(name, epilog=module.EXAMPLES)(module.run)
for group in (keys, ledger, client):
    app.add_typer(group.app, name=group.__name__.rpartition(".")[2])


def _version(wanted: bool) -> None:
    if wanted:
        from noiseproof import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print it.")) -> None:
    """Take the options that come before any command."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line: exit 0 done, 1 failed, 2 bad usage; an error is one sentence, never a traceback."""
    given = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in given
    try:
        app([argument for argument in given if argument != "--debug"], prog_name="noiseproof")
    except NoiseproofError as error:
        _fail(str(error), debug, 2 if isinstance(error, SettingError) else 1)
    except KeyboardInterrupt:
        _fail("interrupted.", debug, 130)
    except BrokenPipeError:
        # The reader of our output went away (`| head`): not an error of ours; keep Python from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        _fail(f"the operating system says: {error.strerror or type(error).__name__}{where}.", debug, 1)
    except MemoryError:
        _fail("there is not enough memory; try fewer records, a smaller batch or a smaller network.", debug, 1)
    except Exception as error:
        # The message of a foreign exception may hold private values, so only its kind is told.
        _fail(
            f"something unforeseen went wrong ({type(error).__name__}); run again with --debug to see where.", debug, 1
        )


def _fail(sentence: str, debug: bool, code: int) -> None:
    if debug:
        traceback.print_exc()
    stderr.print(f"[red]error:[/red] {sentence}", highlight=False, soft_wrap=True)
    sys.exit(code)
