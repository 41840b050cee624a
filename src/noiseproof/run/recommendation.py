"""Which method to take: best accuracy among what is proven at the asked budget, for each of three needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from noiseproof.privacy.budget import Budget
from noiseproof.run.plan import BASELINE

NEEDS: Mapping[str, tuple[str, ...]] = {
    "publish a model": ("model", "data"),
    "answer queries": ("prediction", "model", "data"),
    "publish records": ("data",),
}
"""What each need can be met with. Whoever may publish a model may answer queries with it, and whoever may publish records
may train and publish a model on them: what is done with a release costs nothing more. Not the other way round."""

_SLACK = 1 + 1e-6
"""Accountants agree to some 1e-6."""


@dataclass(frozen=True)
class Recommendation:
    """The best proven method for a need at an epsilon, or why there is none."""

    need: str
    epsilon: float
    method: str | None
    accuracy: float | None
    proven: float | None
    why: str

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON."""
        return asdict(self)


def is_proven(row: Mapping[str, Any], budget: Budget) -> bool:
    """Whether a row's card proves the asked budget for a record, and its audit does not speak against the proof."""
    card = row.get("card")
    if row["status"] != "done" or card is None or card["proven"] is None:
        return False
    proven = card["proven"]
    audit = row.get("audit") or {}
    return bool(
        card["unit"] == "record"
        and card["neighbours"] == budget.neighbours
        and proven["epsilon"] <= budget.epsilon * _SLACK
        and proven["delta"] <= budget.delta * _SLACK
        and row["verdict"] != "refuted"
        and not audit.get("contradicts_proof")
    )


def recommend(rows: Sequence[Mapping[str, Any]], budget: Budget) -> tuple[Recommendation, ...]:
    """For each need, the row of the best accuracy among those run at the budget's epsilon and proven within it.

    Of equal accuracies the smaller proven epsilon wins, then the name. Accuracies are measured on the same test records;
    a difference smaller than their standard error, some sqrt(a (1 - a) / records), is no reason to prefer one.
    """
    asked = [row for row in rows if row["method"] != BASELINE and row["epsilon"] == budget.epsilon]
    proven = [row for row in asked if is_proven(row, budget)]
    found = []
    for need, kinds in NEEDS.items():
        able = [row for row in proven if row["kind"] in kinds]
        if able:
            best = min(able, key=lambda row: (-row["accuracy"], row["card"]["proven"]["epsilon"], row["method"]))
            why = f"best accuracy of the {len(able)} proven at epsilon {budget.epsilon:g}"
            if best["kind"] != kinds[0]:
                why += "; its model can answer any number of queries" if best["kind"] == "model" else "; by its records"
            found.append(
                Recommendation(
                    need, budget.epsilon, best["method"], best["accuracy"], best["card"]["proven"]["epsilon"], why
                )
            )
            continue
        ran = any(row.get("kind") in kinds for row in asked)
        why = "what was run for it proves nothing within the budget" if ran else "no method for it was run"
        found.append(Recommendation(need, budget.epsilon, None, None, None, why))
    return tuple(found)


def verdict_sentence(document: Mapping[str, Any]) -> str:
    """The result in a sentence: what keeps how much of the baseline's accuracy, and which claims were refuted."""
    epsilons = document["epsilon"] if isinstance(document["epsilon"], list) else [document["epsilon"]]
    parts = [_at(document, epsilon, first=place == 0) for place, epsilon in enumerate(epsilons)]
    refuted: dict[str, list[tuple[str, str]]] = {}
    for row in document["rows"]:
        if row["status"] == "done" and row["verdict"] == "refuted":
            refuted.setdefault(row["method"], []).append(_refutation(row))
    alike: dict[str, list[tuple[str, str]]] = {}
    for method, found in refuted.items():
        claims, bounds = (", ".join(column) for column in zip(*found, strict=True))
        alike.setdefault(claims, []).append((method, bounds))
    for claims, of in alike.items():
        if len(of) == 1:
            said = f"claim of {claims} was" if "," not in claims else f"claims of {claims} were"
            parts.append(f"{of[0][0]}'s {said} refuted: at least {of[0][1]}")
        else:
            names = ", ".join(f"{method} (at least {bounds})" for method, bounds in of)
            parts.append(f"claims of {claims} were refuted: {names}")
    failed = [row["method"] for row in document["rows"] if row["status"] != "done"]
    sentence = "; ".join(parts)
    if failed:
        sentence += f"; {', '.join(dict.fromkeys(failed))} came to no result"
    return sentence + "."


def _refutation(row: Mapping[str, Any]) -> tuple[str, str]:
    """The claim that was refuted and the bound: the run's claim if it was, else the one for exactly what was played."""
    claim, bound = row["card"]["claimed"], float(row["audit"]["audited"]["epsilon"])
    if claim is not None and float(claim["epsilon"]) < bound:
        return f"{float(claim['epsilon']):.3g}", f"{bound:.3g}"
    return f"{float(row['audit']['claimed']['epsilon']):.3g} in its game", f"{bound:.3g}"


def _at(document: Mapping[str, Any], epsilon: float, *, first: bool) -> str:
    chosen = {
        found["need"]: found
        for found in document["recommendations"]
        if found["epsilon"] == epsilon and found["method"] is not None
    }
    where = f"{'At' if first else 'at'} epsilon {epsilon:g}" + (f" on {document['data']}" if first else "")
    if not chosen:
        return f"{where} nothing that was run is proven"
    if "publish a model" not in chosen:
        best = chosen["answer queries"]
        return f"{where}, {best['method']} {_keeps(best, document)} for {document['queries']} answers, proven"
    best = chosen["publish a model"]
    return f"{where}, {best['method']} {_keeps(best, document)}, proven"


def _keeps(best: Mapping[str, Any], document: Mapping[str, Any]) -> str:
    accuracy, baseline = best["accuracy"], document["baseline"]
    if not baseline:
        return f"is {accuracy:.1%} accurate"
    return f"keeps {accuracy / baseline:.0%} of the baseline's accuracy ({accuracy:.1%} of {baseline:.1%})"
