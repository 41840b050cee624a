"""What mkdocs does besides: commands are listed from their own `--help`, and colours are those of every other page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_HERE = "<!-- every command -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put every command's help where a page asks for it."""
    return markdown.replace(_HERE, "\n".join(_commands())) if _HERE in markdown else markdown


def on_files(files: Any, config: Any) -> Any:
    """Add the colours of the shared design, for the light and the dark scheme."""
    from mkdocs.structure.files import File

    from noiseproof.palette import tokens

    colours = tokens('[data-md-color-scheme="default"]') + tokens('[data-md-color-scheme="slate"]', dark=True)
    files.append(File.generated(config, "design.css", content=colours))
    return files


def _commands() -> Iterator[str]:
    import typer.main

    from noiseproof.cli import app

    root = typer.main.get_command(app)
    for name, command in sorted(root.commands.items()):  # type: ignore[attr-defined]
        yield from _section(f"noiseproof {name}", command, 2)


def _section(name: str, command: Any, depth: int) -> Iterator[str]:
    yield f"\n{'#' * depth} {name}\n"
    yield f"{(command.help or '').strip()}\n"
    children = getattr(command, "commands", {})
    if not children:
        shown = [parameter for parameter in command.params if parameter.name != "help"]
        yield "| argument or option | meaning | default |\n| --- | --- | --- |"
        for parameter in shown:
            if parameter.param_type_name == "argument":
                label = parameter.metavar or parameter.name.upper()
            else:
                label = ", ".join((*parameter.opts, *parameter.secondary_opts))
            default = parameter.default
            told = "" if default in (None, False, ()) or callable(default) else f"`{default}`"
            if parameter.required:
                told = "needed"
            yield f"| `{_cell(label)}` | {_cell(parameter.help or '')} | {told} |"
    if command.epilog:
        kind, _, example = command.epilog.partition(": ")
        yield f"\n{kind}:\n\n```\n{example.replace('; ', chr(10))}\n```\n"
    for child, inner in sorted(children.items()):
        yield from _section(f"{name} {child}", inner, depth + 1)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
