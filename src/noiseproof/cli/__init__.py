"""The command line: one file a command. Heavy imports happen inside commands, so that `--help` is quick."""

from __future__ import annotations

import importlib
import os
import sys
import traceback

import typer

from noiseproof.cli.output import label
from noiseproof.cli.registry import app, command, group, load_plugins, names
from noiseproof.errors import NoiseproofError, SettingError

__all__ = ["app", "command", "group", "main"]

# In the order in which the help lists them.
for _name in (
    *("compare", "methods", "data", "account", "train", "choose", "predict", "publish", "synth", "attack"),
    *("audit", "canaries", "verify", "report", "study", "serve", "keys", "ledger", "client"),
):
    importlib.import_module(f"noiseproof.cli.{_name}")


def _version(wanted: bool) -> None:
    if wanted:
        from noiseproof import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Take the options that come before any command."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line: exit 0 done, 1 failed, 2 bad usage; an error is one sentence, never a traceback.

    Args:
        arguments: What was typed after `noiseproof`; without it, `sys.argv`.

    Raises:
        SystemExit: Always, with the exit code.
    """
    given = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        if not given or given[0] not in names():
            load_plugins()
        app(given, prog_name="noiseproof")
    except NoiseproofError as error:
        _fail(str(error), debug, 2 if isinstance(error, SettingError) else 1)
    except (KeyboardInterrupt, SystemExit) as stop:
        # Typer turns an interruption into an exit with 130 without a word.
        if isinstance(stop, SystemExit) and stop.code != 130:
            raise
        kept = given[:1] in (["compare"], ["study"]) or "--checkpoint" in given
        rest = "; what was finished is kept: run the same command with --resume to go on." if kept else "."
        if given[:1] == ["train"] and not kept:
            rest = "; nothing was saved. With --checkpoint DIR an interrupted training can be resumed."
        if given[:1] == ["audit"] and "--resume" in given:
            rest = "; what was finished is kept: run the same command again to go on."
        _fail(f"interrupted{rest}", debug, 130)
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
        # The message of a foreign exception may hold private values, so only its type is shown.
        kind = type(error).__name__
        _fail(f"an unexpected error occurred ({kind}); run again with --debug to see where.", debug, 1)


def _fail(sentence: str, debug: bool, code: int) -> None:
    if debug:
        traceback.print_exc()
    label("error:", "red", sentence)
    sys.exit(code)
