"""The best accuracy among what is proven at the asked budget, for each need; the verdict in a sentence."""

from __future__ import annotations

import json

import pytest

from noiseproof.errors import DataError
from noiseproof.privacy import Budget
from noiseproof.run import NEEDS, Comparison, Row, recommend

BUDGET = Budget(3.0, 1e-5)


AUDIT = {"game": "g", "claimed": None, "proven": None, "verdict": "proven", "estimator": "counting"}
AUDITED = {"epsilon": 0.5, "delta": 1e-5, "confidence": 0.95, "trials": 100, "game": "g"}


def row(method, kind="model", accuracy=0.9, proven=3.0, delta=1e-5, **change):
    card = {
        "method": method,
        "place": "gradients",
        "unit": "record",
        "neighbours": "add-or-remove",
        "randomness": "secure",
        "proven": None if proven is None else {"epsilon": proven, "delta": delta, "accountant": "pld"},
        "why": "a test",
    }
    card |= change.pop("card", {})
    made = {"method": method, "epsilon": 3.0, "delta": 1e-5, "status": "done", "kind": kind, "accuracy": accuracy}
    made |= {"card": card, "verdict": "proven" if proven is not None else "nothing proven", "seconds": 1.0}
    made["audit"] = AUDIT | {"audited": AUDITED} | change.pop("audit", {})
    return Row.model_validate(made | change)


def chosen(*rows, budget=BUDGET):
    return {found.need: found.method for found in recommend(rows, budget)}


def test_each_need_gets_the_most_accurate_that_is_proven():
    found = chosen(
        row("none", accuracy=0.99, proven=None),
        row("a", accuracy=0.90),
        row("b", accuracy=0.92),
        row("unproven", accuracy=0.98, proven=None),
        row("labels", "prediction", accuracy=0.95),
        row("records", "data", accuracy=0.80),
    )
    assert found == {"publish a model": "b", "answer queries": "labels", "publish records": "records"}


def measured(auc, accuracy=0.97, error=0.01, **more):
    found = {"ranked_by": "roc_auc", "standard_error": error, "records": 1000, "roc_auc": auc, "accuracy": accuracy}
    return {"accuracy": accuracy, "measures": {**found, "majority": 0.97, **more}}


def test_where_classes_are_rare_the_auc_ranks_and_what_names_one_class_is_named():
    """At 3% positives a generator of one class alone used to be recommended for everything, by its 97.2%."""
    rows = (
        row("none", proven=None, **measured(0.86)),
        row("zero-gan", "data", **measured(0.42, accuracy=0.972, only_class="no")),
        row("dp-sgd", **measured(0.81)),
    )
    found = {each.need: each for each in recommend(rows, BUDGET)}
    assert found["publish a model"].method == found["answer queries"].method == "dp-sgd"
    assert (found["publish a model"].measure, found["publish a model"].value) == ("roc_auc", 0.81)
    assert "best ROC AUC of the 2 proven" in found["publish a model"].why
    assert "predicts no for every record" in found["publish records"].why
    said = comparison(*rows)
    assert said.sentence.startswith("At epsilon 3 on digits, dp-sgd has a ROC AUC of 0.810 (the baseline's: 0.860)")
    assert said.remarks == [
        "Always predicting the commonest class is 97.0% accurate.",
        "zero-gan: no is predicted for every record.",
    ]


def test_what_hardly_beats_a_guess_says_so_in_its_row_and_under_the_table():
    answers = {"kind": "prediction", "queries": 100}
    rows = (
        row("none", proven=None, **measured(0.86)),
        row("a", **answers, **measured(0.54)),
        row("b", **answers, **measured(0.47)),
        row("c", **answers, **measured(0.56)),
        row("d", **measured(0.55)),
        row("e", "data", **measured(0.5, only_class="no")),
    )
    assert [bool(one.remark) for one in rows] == [False, True, True, False, True, True]
    assert comparison(*rows).remarks[2:] == [
        "a, b: near guessing with the noise of 100 answers; fewer get less each (--queries).",
        "d: near guessing with the noise that epsilon 3 asks for of so many records.",
    ]


def test_differences_within_the_standard_error_are_said_to_be_ties():
    rows = (row("a", **measured(0.80)), row("b", **measured(0.81)), row("c", **measured(0.70)))
    found = recommend(rows, BUDGET)[0]
    assert (found.method, found.ties) == ("b", ("a",))
    assert "a tie with a, within the standard error" in found.why


def test_a_model_answers_queries_if_it_is_better_but_answers_are_no_model():
    found = chosen(row("model", accuracy=0.9), row("labels", "prediction", accuracy=0.8))
    assert found["answer queries"] == "model"
    found = chosen(row("labels", "prediction", accuracy=0.8))
    assert found == {"publish a model": None, "answer queries": "labels", "publish records": None}


def test_a_model_trained_on_published_records_may_be_published():
    assert chosen(row("records", "data"))["publish a model"] == "records"


@pytest.mark.parametrize(
    "change",
    [
        {"proven": 3.1},
        {"delta": 1e-4},
        {"proven": None},
        {"card": {"unit": "batch"}},
        {"card": {"neighbours": "replace-one"}},
        {"verdict": "refuted"},
        {"audit": {"contradicts_proof": True}},
        {"status": "failed"},
        {"epsilon": 10.0},
    ],
)
def test_what_is_not_proven_at_the_asked_budget_is_never_recommended(change):
    assert set(chosen(row("a", accuracy=0.99, **change), row("b", accuracy=0.5)).values()) == {"b", None}


def test_accountants_may_differ_in_the_last_digits():
    assert chosen(row("a", proven=3.0000001))["publish a model"] == "a"


def test_of_equal_accuracies_the_smaller_epsilon_wins_then_the_name():
    assert chosen(row("a", proven=3.0), row("b", proven=2.0))["publish a model"] == "b"
    assert chosen(row("b"), row("a"))["publish a model"] == "a"


def test_epsilons_are_compared_at_the_budgets_delta_only():
    """A pure proof of epsilon 0.1 is more than one of epsilon 0.2 at delta 1e-5, of equal accuracy; at a larger delta than
    the budget's an epsilon says nothing."""
    assert chosen(row("a", proven=0.2), row("b", proven=0.1, delta=0.0))["publish a model"] == "b"
    assert chosen(row("a", proven=3.0), row("b", proven=0.001, delta=1e-4))["publish a model"] == "a"


def test_where_nothing_is_proven_it_says_why():
    reasons = {found.need: found.why for found in recommend([row("a", proven=None)], BUDGET)}
    assert "proves nothing" in reasons["publish a model"]
    assert "no method for it was run" in reasons["publish records"]
    assert reasons.keys() == NEEDS.keys()


FACTS = {
    "name": "digits",
    "records": 100,
    "test_records": 30,
    "shape": [5],
    "classes": 2,
    "kind": "vector",
    "bounds": "data",
}


def comparison(*rows, baseline=0.97, epsilons=(3.0,)):
    return Comparison(
        data="digits",
        baseline=baseline,
        epsilons=epsilons,
        delta=1e-5,
        neighbours="add-or-remove",
        queries=100,
        rows=rows,
        about=FACTS,
        plan={},
        versions={},
        run="0",
    )


def refuted_row(method, claimed, of_the_game, epsilon=3.0, delta=1e-5):
    def claim(value, delta=1e-5):
        return {"epsilon": value, "delta": delta, "source": "a paper"}

    audit = {"claimed": claim(of_the_game), "audited": AUDITED | {"epsilon": 7.9}}
    return row(
        method,
        "prediction",
        proven=None,
        verdict="refuted",
        epsilon=epsilon,
        card={"claimed": claim(claimed, delta)},
        audit=audit,
    )


def test_the_sentence_says_what_is_kept_and_what_was_refuted():
    refuted = refuted_row("neuron-gaussian", claimed=3.0, of_the_game=0.3)
    said = comparison(row("dp-sgd", accuracy=0.9409), refuted).sentence
    assert said == (
        "At epsilon 3 on digits, dp-sgd keeps 97% of the baseline's accuracy (94.1% of 97.0%), proven; "
        "neuron-gaussian's claim of 3 was refuted: at least 7.9."
    )


def test_the_sentence_of_a_sweep_has_every_epsilon():
    said = comparison(row("a", epsilon=1.0, proven=1.0), row("a"), epsilons=(1.0, 3.0)).sentence
    assert said.startswith("At epsilon 1 on digits, a keeps")
    assert "; at epsilon 3, a keeps" in said


def test_a_claim_that_only_the_game_refutes_is_said_to_be_the_games():
    said = comparison(refuted_row("a", claimed=100.0, of_the_game=1.0)).sentence
    assert "a's claim of 1 in its game was refuted: at least 7.9" in said


def test_a_claim_at_a_larger_delta_than_the_audits_is_not_said_to_be_refuted():
    said = comparison(refuted_row("neuron-gaussian", claimed=3.0, of_the_game=1.0, delta=1e-3)).sentence
    assert "claim of 3 was refuted" not in said
    assert "claim of 1 in its game was refuted: at least 7.9" in said


def test_the_sentence_of_a_sweep_names_a_refuted_method_once():
    rows = [refuted_row("a", claimed=epsilon, of_the_game=0.1, epsilon=epsilon) for epsilon in (1.0, 3.0)]
    assert "a's claims of 1, 3 were refuted: at least 7.9, 7.9." in comparison(*rows, epsilons=(1.0, 3.0)).sentence


def test_the_sentence_tells_claims_that_are_alike_together():
    alike = (refuted_row(name, claimed=3.0, of_the_game=3.0) for name in ("a", "b"))
    said = comparison(row("dp-sgd"), *alike).sentence
    assert said.count("were refuted") == 1
    assert "claims of 3 were refuted: a (at least 7.9), b (at least 7.9)." in said


def test_the_sentence_says_when_nothing_is_proven_or_a_method_failed():
    failed = Row(method="b", epsilon=3.0, delta=1e-5, status="failed", error="it broke", seconds=1.0)
    said = comparison(row("a", proven=None), failed).sentence
    assert said == "At epsilon 3 on digits nothing that was run is proven; b came to no result."


def test_a_baseline_that_failed_leaves_the_accuracy_alone():
    assert "is 90.0% accurate, proven" in comparison(row("a"), baseline=None).sentence


def test_a_comparison_survives_its_file(tmp_path):
    made = comparison(row("a", epsilon=1.0, proven=1.0), row("b", card={"claimed": None}), epsilons=(1.0, 3.0))
    (tmp_path / "results.json").write_text(made.model_dump_json())
    assert Comparison.read(tmp_path) == made


def test_results_of_the_first_version_are_read(tmp_path):
    """They had one epsilon as a number, several as a list, and failed rows without most fields."""
    old = comparison(row("a")).model_dump(mode="json")
    del old["epsilons"]
    old["rows"].append(
        {"method": "b", "epsilon": 3.0, "delta": 1e-5, "status": "failed", "error": "no", "seconds": 1.0}
    )
    (tmp_path / "results.json").write_text(json.dumps(old))
    assert Comparison.read(tmp_path).epsilons == (3.0,)
    assert old["epsilon"] == 3.0
    (tmp_path / "results.json").write_text(json.dumps(old | {"epsilon": [1.0, 3.0]}))
    assert Comparison.read(tmp_path).epsilons == (1.0, 3.0)


def test_results_that_are_not_there_or_not_results_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(DataError, match="holds no results"):
        Comparison.read(tmp_path)
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        Comparison.read(tmp_path)
    (tmp_path / "results.json").write_text(json.dumps([1]))
    with pytest.raises(DataError, match="not the result"):
        Comparison.read(tmp_path)
