"""Pieces of the page that are text: tables, cards, lists of facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from noiseproof.report.series import number

MARKS = {"proven": "✓", "weaker than claimed": "▽", "nothing proven": "∅", "refuted": "✗", "failed": "!"}


def text(value: Any) -> str:
    """A value of a card as a reader would write it."""
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}".replace("e-0", "e-")
    if isinstance(value, list | tuple):
        return ", ".join(text(item) for item in value) or "—"
    return str(value)


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: frozenset[int]) -> str:
    """A table whose first column names the rows; cells are HTML. It scrolls sideways by itself on a phone."""
    head = "".join(f'<th scope="col"{_align(place, numeric)}>{escape(name)}</th>' for place, name in enumerate(columns))
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{cell}</th>' if place == 0 else f"<td{_align(place, numeric)}>{cell}</td>"
            for place, cell in enumerate(row)
        )
        + "</tr>"
        for row in rows
    )
    label = escape(caption, quote=True)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}"><table><caption>{escape(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _align(place: int, numeric: frozenset[int]) -> str:
    return ' class="number"' if place in numeric else ""


def epsilon(card: Mapping[str, Any] | None, kind: str) -> str:
    """A card's claimed, proven or audited epsilon in a cell."""
    if card is None or card[kind] is None:
        return "—"
    value = number(card[kind]["epsilon"])
    return ("≥ " if kind == "audited" else "") + (f"{value:.3g}" if value is not None else "—")


def badge(verdict: str) -> str:
    """A verdict with a sign of its own, so that colour is not all that tells it."""
    sign = MARKS.get(verdict, "")
    return f'<span class="badge {verdict.replace(" ", "-")}"><span aria-hidden="true">{sign}</span> {escape(verdict)}</span>'


def rows_table(document: Mapping[str, Any]) -> str:
    """Every row: accuracy, three epsilons, verdict, attack, seconds; or what happened instead."""
    several = isinstance(document["epsilon"], list)
    columns = ["method", *(["asked ε"] if several else []), "accuracy", "claimed ε", "proven ε", "audited ε", "verdict"]
    columns += ["attack AUC", "releases", "seconds"]
    body = []
    for row in document["rows"]:
        name = escape(row["method"])
        asked = [f"{row['epsilon']:g}" if row["method"] != "none" else "—"] if several else []
        if row["status"] != "done":
            sentence = f"{badge('failed')} {escape(row['error'])}"
            body.append([name, *asked, "—", "—", "—", "—", sentence, "—", "—", f"{row['seconds']:.1f}"])
            continue
        card, attack = row["card"], row["attack"]
        said = badge(row["verdict"]) + (f" <small>{escape(row['problem'])}</small>" if row.get("problem") else "")
        if (row.get("audit") or {}).get("contradicts_proof"):
            said += (
                " <small>the audit is above the proof: a false alarm (1 in 20), or a broken proof or program</small>"
            )
        released = row["kind"] if row["queries"] is None else f"{row['queries']}\u00a0answers"
        body.append(
            [
                name,
                *asked,
                f"{row['accuracy']:.1%}",
                *(epsilon(card, kind) for kind in ("claimed", "proven", "audited")),
                said,
                f"{attack['auc']:.3f}",
                released,
                f"{row['seconds']:.1f}",
            ]
        )
    numeric = frozenset(place for place, name in enumerate(columns) if name not in ("method", "verdict", "releases"))
    return table(f"Every method on {document['data']}", columns, body, numeric=numeric)


def attack_table(document: Mapping[str, Any]) -> str:
    """The attacks' measures with their intervals: the ROC chart in numbers."""
    body = []
    for row in document["rows"]:
        if row["status"] != "done":
            continue
        attack = row["attack"]
        cells = [f"{escape(row['method'])}{_asked(document, row)}", escape(attack["attack"])]
        for name in ("auc", "advantage", "tpr_at_0.01", "tpr_at_0.001"):
            low, high = attack["intervals"][name]
            value = attack["tpr_at_fpr"][name.removeprefix("tpr_at_")] if name.startswith("tpr") else attack[name]
            cells.append(f"{value:.3f} <small>({low:.3f} to {high:.3f})</small>")
        cells.append(f"{attack['members']} / {attack['nonmembers']}")
        body.append(cells)
    columns = ("method", "attack", "AUC", "advantage", "TPR at 1% FPR", "TPR at 0.1% FPR", "members / others")
    return table("Membership attacks, with 95% intervals", columns, body, numeric=frozenset(range(2, 7)))


def spent_table(document: Mapping[str, Any]) -> str:
    """What one step or answer costs beside the whole: the budget chart in numbers."""
    body = []
    for row in document["rows"]:
        spending = row.get("spending")
        if row["status"] == "done" and spending:
            total = spending["done"][-1]
            half = spending["epsilon"][len(spending["done"]) // 2]
            cells = [f"{escape(row['method'])}{_asked(document, row)}", f"{total} {spending['unit']}"]
            body.append([*cells, f"{half:.3g}", f"{spending['epsilon'][-1]:.3g}"])
    columns = ("method", "split over", "ε half-way", "ε at the end")
    return table("How each proven budget was split", columns, body, numeric=frozenset((2, 3))) if body else ""


def _asked(document: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    several = isinstance(document["epsilon"], list) and row["method"] != "none"
    return f" <small>at ε {row['epsilon']:g}</small>" if several else ""


def facts(values: Mapping[str, Any]) -> str:
    """Names and values; values that are mappings become lists of their own."""
    items = []
    for name, value in values.items():
        inner = (
            facts(value)
            if isinstance(value, Mapping) and value
            else escape(text(value or None if value == {} else value))
        )
        items.append(f"<div><dt>{escape(str(name))}</dt><dd>{inner}</dd></div>")
    return f"<dl>{''.join(items)}</dl>"


def card_details(row: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    """A row's card in full, folded."""
    title = f"<strong>{escape(row['method'])}</strong>{_asked(document, row)}"
    if row["status"] != "done":
        return f"<details><summary>{title} {badge('failed')}</summary><p>{escape(row['error'])}</p></details>"
    card = dict(row["card"])
    lists = {name: card.pop(name) for name in ("notes",)}
    notes = "".join(f"<li>{escape(note)}</li>" for note in lists["notes"])
    found = row["audit"]
    audit = "<p>There is no audit.</p>"
    if found is not None:
        kept = {key: found[key] for key in ("game", "claimed", "proven", "audited", "verdict", "estimator")}
        audit = f"<p>The audit's game: what was claimed, proven and found of exactly what was played</p>{facts(kept)}"
    return (
        f"<details><summary>{title} {badge(row['verdict'])}</summary>{facts(card)}"
        + (f"<p>Notes</p><ul>{notes}</ul>" if notes else "")
        + (f'<p class="problem">{escape(row["problem"])}</p>' if row.get("problem") else "")
        + audit
        + f"<p>Settings, chosen by public facts alone</p>{facts({'network': row['network'], **row['settings']})}</details>"
    )
