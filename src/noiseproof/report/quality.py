"""How good synthetic records are, as tables for a terminal and as one HTML file that needs nothing else."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from noiseproof import palette
from noiseproof.notebook import html_table

if TYPE_CHECKING:
    from noiseproof.methods.losses.quality import Quality
    from noiseproof.releases.release import DataRelease


class QualityTable(NamedTuple):
    """A table about synthetic records."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    caption: str | None = None


def quality_tables(found: Quality) -> list[QualityTable]:
    """What was measured of synthetic records, table by table.

    Args:
        found: The measures.

    Returns:
        The tables; of a table's records also the errors of its columns.
    """
    taught: list[tuple[Any, ...]] = [
        ("synthetic records", "real ones", found.synthetic_to_real),
        ("real records", "real ones", found.real_to_real),
        ("the commonest class", "real ones", found.majority),
        ("real records", "synthetic ones", found.real_to_synthetic),
        *(("real records", f"synthetic ones of {name}", value) for name, value in found.by_class.items()),
    ]
    title = "quality, for the owner of the records only"
    tables = [QualityTable(title, ("a classifier taught by", "tested on", "accuracy"), taught)]
    if found.pmf_errors:
        caption = f"pairs of columns: Cramer's V is off by {found.correlation_error:.3g} on average."
        columns = ("column", "error of its shares (eq. 22)")
        tables.append(QualityTable("shares of each column", columns, list(found.pmf_errors.items()), caption))
    return tables


def render_quality(release: DataRelease, found: Quality) -> str:
    """The page about synthetic records: their card and every measure.

    Args:
        release: The synthetic records.
        found: What was measured of them.

    Returns:
        An HTML document that fetches nothing.

    Formal guarantee
    ----------------
    None: the measures were computed from private records without noise. The page says so; it is for the records' owner.
    """
    style = palette.style() + (Path(__file__).parent / "style.css").read_text("utf-8")
    tables = "".join(
        html_table(
            one.title,
            one.columns,
            [[f"{cell:.3f}" if isinstance(cell, float) else cell for cell in row] for row in one.rows],
        )
        + (f"<p>{escape(one.caption)}</p>" if one.caption else "")
        for one in quality_tables(found)
    )
    warnings = "".join(f'<p class="caution">{escape(one)}</p>' for one in found.warnings)
    heading = escape(f"{len(release.dataset)} synthetic records of {release.method}")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>noiseproof: {heading}</title><style>{style}</style></head><body><main><h1>{heading}</h1>"
        f"{release.card._repr_html_()}{warnings}{tables}</main><footer><p>For the eyes of the records’ owner: everything but the "
        "card was measured on private records without noise. The synthetic records and their card may leave; this page may "
        "not.</p></footer></body></html>\n"
    )
