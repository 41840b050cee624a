"""How results look at the end of a notebook's cell."""

from __future__ import annotations

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
    head = "".join(f"<th>{escape(str(name))}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
