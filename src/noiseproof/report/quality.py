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
        columns = ("column", "variation", "error of its shares (eq. 22)")
        errors = [(name, found.variations.get(name, "—"), value) for name, value in found.pmf_errors.items()]
        tables.append(QualityTable("shares of each column", columns, errors, caption))
    return tables


_POOR, _OFF = 0.1, 0.1
"""From this total variation on a column is poor, and from this difference of Cramer's V on a pair of columns."""

_NOT_FOR = (
    "Do not use these records to look up people (none of them is anybody), to study groups of a few dozen records or "
    "relations that show only in three columns or more together, or to publish figures as if they had been computed on "
    "the real records. What is found in them should be confirmed on the real ones."
)


def _side_by_side(found: Quality) -> str:
    """Each column's real and synthetic shares, and what is poor."""
    poor = [f"{name} ({value:.2f})" for name, value in found.variations.items() if value >= _POOR]
    off = [f"{pair} ({a:.2f}, synthetic {b:.2f})" for pair, (a, b) in found.pairs.items() if abs(a - b) >= _OFF]
    text = (
        "<h2>Where they are poor</h2>"
        f"<p>Columns whose shares are off by {_POOR} or more (total variation): {escape(', '.join(poor) or 'none')}.</p>"
        f"<p>Pairs of columns whose Cramer’s V is off by {_OFF} or more: {escape('; '.join(off) or 'none')}.</p>"
        f"<h2>What not to use them for</h2><p>{escape(_NOT_FOR)}</p><h2>Columns side by side</h2>"
    )
    for name, rows in found.shares.items():
        most = max(max(real, made) for _, real, made in rows) or 1.0
        cells = "".join(
            f"<tr><td>{escape(value)}</td>"
            + "".join(
                f'<td><meter max="{most:.4g}" value="{part:.4g}"></meter> {part:.1%}</td>' for part in (real, made)
            )
            + "</tr>"
            for value, real, made in rows
        )
        text += (
            f"<table><caption>{escape(name)}</caption><thead><tr><th>value</th><th>real</th><th>synthetic</th></tr></thead>"
            f"<tbody>{cells}</tbody></table>"
        )
    return text


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
    columns = _side_by_side(found) if found.shares else ""
    heading = escape(f"{len(release.dataset)} synthetic records of {release.method}")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>noiseproof: {heading}</title><style>{style}</style></head><body><main><h1>{heading}</h1>"
        f"{release.card._repr_html_()}{warnings}{tables}{columns}</main>"
        "<footer><p>For the eyes of the records’ owner: everything but the "
        "card was measured on private records without noise. The synthetic records and their card may leave; this page may "
        "not.</p></footer></body></html>\n"
    )
