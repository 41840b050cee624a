"""How results look to people: at the end of a notebook's cell, and with nothing hidden in their text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def html_table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A small table, with everything escaped.

    Args:
        caption: Stands above it.
        columns: The names of the columns.
        rows: The cells.

    Returns:
        HTML that needs no style sheet.

    >>> html_table("card", ("what", "value"), [("epsilon", "<3")]).count("&lt;3")
    1
    """

    def shown(value: Any) -> str:
        return escape(visible(str(value)))

    head = "".join(f"<th>{shown(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{shown(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{shown(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def visible(text: str) -> str:
    r"""Text in which nothing hides: characters that move the cursor or turn the reading order are written out.

    A stranger's card or the name of a file could otherwise paint over the sentence that calls it changed.

    Args:
        text: What is to be shown.

    Returns:
        The text with such characters as escapes; lines stay lines.

    >>> visible("card\x1b[2K.json")
    'card\\x1b[2K.json'
    """
    return _HIDING.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


_HIDING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters but tabs and line feeds, marks of direction, further ends of lines, and halves of characters."""
