"""One design for every page: colours for people of all kinds of colour vision, and the style sheet that all pages share."""

from __future__ import annotations

from functools import cache
from pathlib import Path

PALETTE = (
    *(("#4d4d4d", "#c8c8c8"), ("#0072b2", "#56b4e9"), ("#b84700", "#ff9557"), ("#00755a", "#2ccb9b")),
    *(("#a23b7c", "#ee9fcb"), ("#806000", "#f0c24b"), ("#5b4bb7", "#b3a7ff"), ("#007a8a", "#4fd8e6")),
)
"""Each colour on light and on dark ground. Lines and points differ in more than colour wherever it is used."""

COLOURS = {
    "ground": ("#ffffff", "#0f1419"),
    "panel": ("#f5f7f9", "#171d24"),
    "ink": ("#1b1f24", "#e6edf3"),
    "soft": ("#535b65", "#a4afbb"),
    "rule": ("#d5dae0", "#343c46"),
    "accent": ("#0b5cad", "#79b8ff"),
    "on-accent": ("#ffffff", "#0c1116"),
    "good": ("#116329", "#56d364"),
    "good-panel": ("#e9f6ec", "#12261a"),
    "warn": ("#7a4b00", "#e3b341"),
    "warn-panel": ("#fdf4e1", "#2a2210"),
    "bad": ("#a40e26", "#ff8f88"),
    "bad-panel": ("#fdecec", "#2d1718"),
    "void": ("#4b535d", "#b1bac4"),
    "trough": ("#e3e8ed", "#2c343d"),
}
"""Every other colour by its use, on light and on dark ground. Each text colour has a contrast of 4.5 on its panel."""


def tokens(selector: str, *, dark: bool = False) -> str:
    """All colours as a CSS rule of custom properties.

    Args:
        selector: What they hold for.
        dark: Whether that is on dark ground.

    Returns:
        The rule.

    >>> "--accent: #0b5cad;" in tokens(":root")
    True
    """
    named = {**COLOURS, **{f"c{place}": pair for place, pair in enumerate(PALETTE)}}
    values = " ".join(f"--{name}: {pair[dark]};" for name, pair in named.items())
    return f"{selector} {{ color-scheme: {'dark' if dark else 'light'}; {values} }}\n"


@cache
def style() -> str:
    """The style sheet that all pages share: colours by the reader's system, type, tables, badges, focus, print.

    Returns:
        CSS that fetches nothing. `data-theme` on the root element overrules the system's choice of light or dark.
    """
    system = tokens(':root:not([data-theme="light"])', dark=True)
    series = "".join(f".s{place} {{ --c: var(--c{place}); }}\n" for place in range(len(PALETTE)))
    return (
        tokens(":root")
        + f"@media (prefers-color-scheme: dark) {{ {system} }}\n"
        + tokens(':root[data-theme="dark"]', dark=True)
        + f"@media print {{ {tokens(':root:root:root')} }}\n"  # ink on paper, whatever the screen's colours are
        + series
        + Path(__file__).with_suffix(".css").read_text("utf-8")
    )
