"""The commands: each is registered by a decorator, those of this package and those of a user's own packages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import typer

F = TypeVar("F", bound=Callable[..., Any])

ENTRY_POINTS = "noiseproof.commands"
"""Packages name modules here that register commands; they are imported when a command is not one of this package's."""

app = typer.Typer(
    name="noiseproof",
    help="Differentially private deep learning whose guarantees are checked: every release states the epsilon that was "
    "claimed, the one that is proven for what ran, and the one that an attack audited from below.",
    epilog="Start with `noiseproof compare`. Add --debug to any command to see the traceback of an error.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def command(name: str, examples: str) -> Callable[[F], F]:
    """Register a function as `noiseproof NAME`.

    Its docstring is the help text, its annotated parameters are arguments and options. Import what is heavy inside it,
    so that `--help` stays quick.

    Args:
        name: What users type.
        examples: Shown below the help, as `Example: noiseproof NAME ...`.

    Returns:
        The decorator, which returns the function unchanged.

    Examples:
        >>> @command("hello", "Example: noiseproof hello")
        ... def hello() -> None:
        ...     \"\"\"Greet.\"\"\"
    """
    return app.command(name, epilog=examples)


def group(name: str, help: str, examples: str) -> typer.Typer:
    """Register `noiseproof NAME`, a command with commands of its own.

    Args:
        name: What users type.
        help: What its commands are about.
        examples: Shown below the help.

    Returns:
        The group; decorate functions with its `command`.
    """
    made = typer.Typer(help=help, epilog=examples, no_args_is_help=True)
    app.add_typer(made, name=name)
    return made


def names() -> set[str]:
    """Every command that is registered by now."""
    return {str(one.name) for one in app.registered_commands} | {str(one.name) for one in app.registered_groups}


def load_plugins() -> None:
    """Import what other packages register under `noiseproof.commands`; one that fails is reported and left out."""
    from noiseproof import plugins
    from noiseproof.cli import output
    from noiseproof.errors import SettingError

    try:
        plugins.load_plugins(ENTRY_POINTS)
    except SettingError as error:
        output.note(str(error))
