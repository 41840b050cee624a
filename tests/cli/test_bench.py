"""`noiseproof bench`: which benchmark is run."""

from __future__ import annotations

import pytest

import bench

ROW = {"what": "a", "ours": 1.0, "theirs": 2.0, "ratio": 0.5}


@pytest.mark.parametrize("words", [("synthetic",), ("--only", "synthetic")])
def test_a_benchmark_is_named_after_the_command_or_by_only(noiseproof, monkeypatch, words):
    asked = []
    monkeypatch.setattr(bench, "run", lambda *, only, **_: asked.append(only) or [ROW])
    assert noiseproof("bench", *words, "--json").document["rows"] == [ROW]
    assert asked == ["synthetic"]


def test_two_benchmarks_or_one_that_is_not_there_are_refused_in_a_sentence(noiseproof):
    assert "name a benchmark once" in noiseproof("bench", "steps", "--only", "noise").err
    assert "there is no benchmark 'nothing'" in noiseproof("bench", "nothing").err
