"""The page: one HTML file that needs nothing else, for one comparison or several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from noiseproof.report import parts
from noiseproof.report.figures import epsilon_figure, roc_figure, spent_figure, sweep_figure

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
    return f"{document['data']} at epsilon {', '.join(f'{value:g}' for value in asked)}, delta {parts.text(document['delta'])}"


def _run(document: Mapping[str, Any], label: str) -> str:
    sections = [
        f'<section id="{label}" aria-labelledby="{label}-title"><h2 id="{label}-title">{escape(_heading(document))}</h2>',
        f'<p class="verdict">{escape(document["sentence"])}</p>',
        _recommendations(document),
        f"<h3>Every method</h3>{parts.rows_table(document)}{_reading(document)}",
        f"<h3>Accuracy against claimed, proven and audited epsilon</h3>{epsilon_figure(document, f'{label}-epsilon')}",
        f"<h3>What an attacker learns</h3>{roc_figure(document, f'{label}-roc')}{parts.attack_table(document)}",
    ]
    swept = sweep_figure(document, f"{label}-sweep")
    if swept:
        sections.append(f"<h3>Accuracy by epsilon</h3>{swept}")
    spent = spent_figure(document, f"{label}-spent")
    if spent:
        sections.append(f"<h3>How the budget was spent</h3>{spent}{parts.spent_table(document)}")
    cards = "".join(parts.card_details(row, document) for row in document["rows"])
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
    return f"<h3>How it was run</h3>{parts.facts(values)}{said}"
