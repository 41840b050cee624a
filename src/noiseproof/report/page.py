"""The page: one HTML file that needs nothing else, for one comparison or several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from noiseproof.report.figures import epsilon_figure, roc_figure, spent_figure, sweep_figure
from noiseproof.report.series import number

# The browser itself is told to fetch nothing: whoever opens the page tells nobody.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def render(documents: Sequence[Mapping[str, Any]]) -> str:
    """The page of these comparisons, in the order given.

    Formal guarantee
    ----------------
    None: accuracies and attacks were measured on private records without noise. The page says so; it is for the data's
    owner. It names the run by a fingerprint keyed with a salt that is not on the page.
    """
    home = files("noiseproof.report")
    style = home.joinpath("style.css").read_text(encoding="utf-8")
    script = home.joinpath("script.js").read_text(encoding="utf-8")
    title = " · ".join(dict.fromkeys(str(document["data"]) for document in documents))
    runs = "".join(_run(document, f"run{place}") for place, document in enumerate(documents))
    contents = ""
    if len(documents) > 1:
        links = "".join(
            f'<li><a href="#run{place}">{escape(_heading(document))}</a>: {escape(document["sentence"])}</li>'
            for place, document in enumerate(documents)
        )
        contents = f'<nav aria-label="Comparisons"><ul>{links}</ul></nav>'
    return (
        '<!DOCTYPE html>\n<html lang="en-GB"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f'<meta name="color-scheme" content="light dark"><title>noiseproof: {escape(title)}</title>'
        f'<style>{style}</style></head><body><header><p class="brand">noiseproof compare</p>'
        f"<h1>What each promise is worth on {escape(title)}</h1>{contents}</header><main>{runs}</main>"
        "<footer><p>For the eyes of the data’s owner: accuracies and attacks were measured on private records without noise, "
        "and the randomness was seeded. Train the chosen method again with <code>--secure</code> before anything leaves.</p>"
        f'</footer><div id="tip" role="tooltip" hidden></div><script>{script}</script></body></html>\n'
    )


def _heading(document: Mapping[str, Any]) -> str:
    asked = document["epsilon"] if isinstance(document["epsilon"], list) else [document["epsilon"]]
    return (
        f"{document['data']} at epsilon {', '.join(f'{value:g}' for value in asked)}, delta {text(document['delta'])}"
    )


def _run(document: Mapping[str, Any], label: str) -> str:
    sections = [
        f'<section id="{label}" aria-labelledby="{label}-title"><h2 id="{label}-title">{escape(_heading(document))}</h2>',
        f'<p class="verdict">{escape(document["sentence"])}</p>',
        _recommendations(document),
        f"<h3>Every method</h3>{rows_table(document)}{_reading(document)}",
        f"<h3>Accuracy against claimed, proven and audited epsilon</h3>{epsilon_figure(document, f'{label}-epsilon')}",
        f"<h3>What an attacker learns</h3>{roc_figure(document, f'{label}-roc')}{attack_table(document)}",
    ]
    swept = sweep_figure(document, f"{label}-sweep")
    if swept:
        sections.append(f"<h3>Accuracy by epsilon</h3>{swept}")
    spent = spent_figure(document, f"{label}-spent")
    if spent:
        sections.append(f"<h3>How the budget was spent</h3>{spent}{spent_table(document)}")
    cards = "".join(card_details(row, document) for row in document["rows"])
    sections += [f'<h3>Cards in full</h3><div class="cards">{cards}</div>', _how(document), "</section>"]
    return "".join(sections)


def _recommendations(document: Mapping[str, Any]) -> str:
    items = []
    several = isinstance(document["epsilon"], list)
    for found in document["recommendations"]:
        need = found["need"].capitalize() + (f" at ε {found['epsilon']:g}" if several else "")
        if found["method"] is None:
            said = f"<span class='none'>nothing proven: {escape(found['why'])}</span>"
        else:
            said = (
                f"<strong>{escape(found['method'])}</strong>, {found['accuracy']:.1%}, proven ε {found['proven']:.3g}"
                f"<br><small>{escape(found['why'])}</small>"
            )
        items.append(f"<div><dt>{escape(need)}</dt><dd>{said}</dd></div>")
    return f'<h3>What to take</h3><dl class="needs">{"".join(items)}</dl>'


def _reading(document: Mapping[str, Any]) -> str:
    about = document["about"]
    return (
        f"<p class='reading'>Claimed: by the method’s authors. Proven: for what really ran. Audited: what an attack on the "
        f"method’s mechanism showed, at 95% confidence with {document['plan']['trials']} trials in each world. Accuracy: on "
        f"{about['test_records']} test records. Prediction methods have the noise of {document['queries']} answers; their "
        "accuracy is rehearsed on the trusted side, which spends none of them.</p>"
    )


def _how(document: Mapping[str, Any]) -> str:
    about, plan = document["about"], document["plan"]
    notes = "".join(f"<li>{escape(note)}</li>" for note in about["notes"])
    values = {
        "data": document["data"],
        "training records": about["records"],
        "test records": about["test_records"],
        "record shape": " × ".join(str(side) for side in about["shape"]),
        "classes": about["classes"],
        "bounds and classes come from": "public knowledge" if about["bounds"] == "public" else "the private records",
        "neighbours": document["neighbours"],
        "delta": document["delta"],
        "queries": document["queries"],
        "attack": plan["attack"],
        "audit trials in each world": plan["trials"],
        "seed": plan["seed"],
        "versions": document["versions"],
        "run (keyed fingerprint of records, plan and versions)": document["run"],
    }
    said = f"<p>About the data</p><ul>{notes}</ul>" if notes else ""
    return f"<h3>How it was run</h3>{facts(values)}{said}"


# Pieces of the page that are text: tables, cards, lists of facts.


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
