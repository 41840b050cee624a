"""`compare` ends with the table, the page and the sentence; `report` joins pages."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One comparison, of one method, at two budgets."""
    from noiseproof.run import Plan, compare

    out = tmp_path_factory.mktemp("runs") / "small"
    plan = Plan("breast-cancer", epsilons=(1.0, 4.0), methods=("dp-sgd",), trials=20)
    return compare(plan, out, jobs=1), out


def test_the_document_has_what_the_contract_asks(finished):
    document = finished[0].model_dump(mode="json")
    assert {"data", "baseline", "rows", "report", "epsilon", "delta", "recommendations", "versions"} <= document.keys()
    assert [(row["method"], row["epsilon"]) for row in document["rows"]] == [("none", 1), ("dp-sgd", 1), ("dp-sgd", 4)]
    for row in document["rows"]:
        assert {"method", "accuracy", "card", "attack", "seconds"} <= row.keys()
    assert document["sentence"].startswith("At epsilon 1 on breast-cancer, dp-sgd has a ROC AUC of")


def test_compare_ends_with_the_table_the_page_and_the_sentence(noiseproof, finished):
    document, out = finished
    outcome = noiseproof(
        "compare", "--data", "breast-cancer", "--epsilon", "1,4", "--methods", "dp-sgd", "--trials", 20, "--out", out,
        "--resume", "--jobs", 1,
    )  # fmt: skip
    assert outcome.code == 0
    table, page, sentence = (outcome.out.index(words) for words in ("Every method on", "The page:", document.sentence))
    assert table < page < sentence
    assert outcome.out.rstrip().endswith(document.sentence)
    assert outcome.err.count("(kept)") == 3


def test_it_says_that_it_is_a_rehearsal_and_which_command_makes_the_release(noiseproof, finished):
    comparison, out = finished
    assert "rehearsal" in comparison.caution
    found = comparison.recommendations[0]
    assert found.command == "noiseproof train dp-sgd --data breast-cancer --epsilon 1 --delta 1e-05 --out release"
    outcome = noiseproof(
        "compare", "--data", "breast-cancer", "--epsilon", "1,4", "--methods", "dp-sgd", "--trials", 20, "--out", out,
        "--resume", "--jobs", 1,
    )  # fmt: skip
    assert comparison.caution in outcome.out
    assert f"--delta 1e-05 --chosen-by {out} --out release" in outcome.out


def test_the_command_trains_exactly_what_the_comparison_showed(noiseproof, tmp_path):
    """In 0.1 `compare` gave shard-mean another batch than `train`: .68 and .80."""
    from noiseproof import load_bundle
    from noiseproof.run import Plan, compare

    row = compare(Plan("digits", methods=("shard-mean",), trials=5, fits=1), tmp_path / "runs", jobs=1).rows[1]
    arguments = ("--data", "digits", "--epsilon", "3", "--seed", "0", "--no-baseline", "--json")
    outcome = noiseproof("train", "shard-mean", *arguments, "--out", tmp_path / "release")
    assert load_bundle(tmp_path / "release").settings == row.settings
    assert outcome.document["accuracy"] == row.accuracy


def test_json_is_one_document_and_nothing_else(noiseproof, finished):
    document, out = finished
    outcome = noiseproof(
        "compare", "--data", "breast-cancer", "--epsilon", "1,4", "--methods", "dp-sgd", "--trials", 20, "--out", out,
        "--resume", "--jobs", 1, "--json",
    )  # fmt: skip
    assert outcome.document["rows"] == document.model_dump(mode="json")["rows"]


def test_report_joins_runs_into_one_page(noiseproof, finished, tmp_path):
    _, out = finished
    outcome = noiseproof("report", out, out, "--out", tmp_path / "both.html", "--json")
    assert outcome.code == 0
    assert [run["data"] for run in outcome.document["runs"]] == ["breast-cancer"] * 2
    assert 'href="#run1"' in (tmp_path / "both.html").read_text()


def test_report_of_a_folder_without_results_says_so(noiseproof, tmp_path):
    outcome = noiseproof("report", tmp_path)
    assert outcome.code == 1
    assert "holds no results.json" in outcome.err


@pytest.mark.parametrize(
    "arguments", [("--epsilon", "three"), ("--epsilon", "1,1"), ("--trials", "2"), ("--queries", "0"), ("--jobs", "0")]
)
def test_bad_usage_is_refused_before_anything_runs(noiseproof, tmp_path, arguments):
    outcome = noiseproof("compare", "--out", tmp_path / "run", *arguments)
    assert outcome.code == 2
    assert not (tmp_path / "run").exists()
