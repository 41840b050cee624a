"""Results of a comparison, made up: every verdict, a failure, an infinite claim, a name that wants escaping."""

from __future__ import annotations

import math

import pytest

from noiseproof.run import Comparison, Plan


def made_row(
    method, accuracy, claimed, proven, audited, verdict, *, kind="model", epsilon=3.0, spending=None, place=1.0
):
    def promise(value, **more):
        return (
            None if value is None else {"epsilon": value if math.isfinite(value) else "Infinity", "delta": 1e-5, **more}
        )

    card = {
        "method": method,
        "place": "gradients",
        "unit": "record",
        "neighbours": "add-or-remove",
        "randomness": "reproducible",
        "claimed": promise(claimed, source="a theorem <5>"),
        "proven": promise(proven, accountant="pld", assumptions=["batches are Poisson samples", "sums are exact"]),
        "why": None if proven is not None else "The noise is a function of private gradients.",
        "audited": promise(audited, confidence=0.95, trials=500, game=f"{method}: a canary"),
        "ran": {"records": 1348, "steps": 79, "sample_rate": 0.3798, "noise_multiplier": 2.5},
        "notes": ["The randomness was seeded, for research."],
        "verdict": verdict,
    }
    fpr = [0.0, 0.002, 0.004, 0.01, 0.05, 0.2, 0.5, 1.0]
    tpr = [0.0, 0.002 * place, 0.006 * place, min(1, 0.02 * place), 0.06, 0.22, 0.51, 1.0]
    return {
        "method": method,
        "epsilon": epsilon,
        "delta": 1e-5,
        "status": "done",
        "kind": kind,
        "accuracy": accuracy,
        "network": "mlp",
        "settings": {"epochs": 30.0, "noise_multiplier": None},
        "queries": 100 if kind == "prediction" else None,
        "attack": {
            "attack": "loss",
            "auc": 0.52,
            "advantage": 0.03,
            "balanced_accuracy": 0.515,
            "tpr_at_fpr": {"0.001": 0.0, "0.01": 0.02},
            "intervals": {
                name: [0.0, 0.1] for name in ("auc", "advantage", "balanced_accuracy", "tpr_at_0.001", "tpr_at_0.01")
            },
            "members": 449,
            "nonmembers": 449,
            "roc": {"fpr": fpr, "tpr": tpr},
        },
        "card": card,
        "audit": {
            "game": f"{method}: a canary",
            "claimed": card["claimed"],
            "proven": card["proven"],
            "audited": card["audited"],
            "verdict": verdict,
            "estimator": "counting",
            "contradicts_proof": False,
        },
        "verdict": verdict,
        "spending": spending,
        "bundle": f"bundles/{method}-{epsilon:g}",
        "problem": None,
        "seconds": 4.25,
    }


def made_comparison(epsilons=(3.0,), data="digits"):
    steps = {"unit": "steps", "done": [0, 20, 40, 79]}
    answers = {"unit": "answers", "done": [0, 25, 50, 100]}
    rows = [made_row("none", 0.973, None, None, 4.39, "nothing proven", epsilon=epsilons[0], place=6)]
    for e in epsilons:
        course = [0.0, 0.4 * e, 0.65 * e, e]
        rows += [
            made_row(
                "dp-sgd", 0.80 + 0.04 * e, e, e, 0.9 * e, "proven", epsilon=e, spending=steps | {"epsilon": course}
            ),
            made_row("dp-sgd-adaptive", 0.79 + 0.04 * e, e, e, 0.8 * e, "proven", epsilon=e),
            made_row("<b>ours</b>", 0.6, math.inf, None, 0.0, "nothing proven", epsilon=e),
            made_row("quantile-flat", 0.90, None, None, 4.4, "nothing proven", epsilon=e, place=3),
            made_row("neuron-gaussian", 0.93, e, None, 7.9, "refuted", kind="prediction", epsilon=e, place=2),
            made_row(
                "logits",
                0.88,
                e,
                e,
                0.7 * e,
                "proven",
                kind="prediction",
                epsilon=e,
                spending=answers | {"epsilon": course},
            ),
            made_row("dp-pg", 0.7, e, 2 * e, 0.5 * e, "weaker than claimed", epsilon=e),
        ]
    rows.append(
        {
            "method": "teachers",
            "epsilon": epsilons[0],
            "delta": 1e-5,
            "status": "failed",
            "error": "ran out of memory; try fewer records, a smaller batch or a smaller network.",
            "accuracy": None,
            "card": None,
            "attack": None,
            "audit": None,
            "verdict": None,
            "bundle": None,
            "seconds": 12.0,
        }
    )
    plan = Plan(data, epsilons=tuple(epsilons))
    document = {
        "data": data,
        "baseline": 0.973,
        "epsilon": epsilons[0] if len(epsilons) == 1 else list(epsilons),
        "delta": 1e-5,
        "neighbours": "add-or-remove",
        "queries": 100,
        "rows": rows,
        "about": {
            "name": data,
            "records": 1348,
            "test_records": 449,
            "shape": [1, 8, 8],
            "classes": 10,
            "kind": "image",
            "bounds": "public",
            "notes": ["a stand-in & nothing more"],
        },
        "plan": plan.to_json(),
        "versions": {"noiseproof": "0.1.0", "torch": "2"},
        "run": "0123456789abcdef",
        "report": None,
    }
    return Comparison.model_validate(document)


@pytest.fixture(scope="session")
def comparison():
    return made_comparison()


@pytest.fixture(scope="session")
def swept():
    return made_comparison((0.5, 1.0, 3.0), "people.csv")
