"""Every example runs, stays short, and prints what its reader is told to expect."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAID = {
    "answer_queries.py": ("proven: epsilon", "refused: 60 answers were asked for"),
    "audit_claim.py": ("a private mean", "refuted", "proven"),
    "own_loop.py": ("Proven: epsilon 3 at delta 1e-05", "accuracy", "after 120 steps"),
    "publish_model.py": ("proven: epsilon 1.00", "AUC", "card.json"),
    "publish_records.py": ("proven: epsilon",),
    "publish_weights.py": ("proven: epsilon", "for a record: proven", "for a model: refuted"),
}


LOOPS = {
    "loops/mnist.py": ("Proven: epsilon", "accuracy"),
    "loops/cifar10_resnet.py": ("BatchNorm2d(64) became GroupNorm(32, 64)", "Proven: epsilon"),
    "loops/names_lstm.py": ("Proven: epsilon", "accuracy"),
    "loops/text_classification.py": ("Proven: epsilon",),
    "loops/causal_lm_lora.py": ("1,024 of 36,224 parameters were trained", "Proven: epsilon"),
    "loops/vit_linear_probe.py": ("650 of", "Proven: epsilon"),
}


def test_every_script_is_run_here():
    # tests/docs/test_hospital_day.py and tests/audits/test_program.py
    elsewhere = {"hospital_day.py", "vendor/mean_income.py"}
    assert {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py")} == {*SAID, *LOOPS, *elsewhere}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the frameworks
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_does_what_it_is_for(name, capsys, monkeypatch):
    monkeypatch.delenv("NOISEPROOF_DATA", raising=False)
    monkeypatch.setattr(sys, "argv", [name])  # a script's own: pytest's would be read as the name of a data set
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capsys.readouterr().out
    for words in LOOPS[name]:
        assert words in printed


@pytest.mark.parametrize("name", SAID)
def test_an_example_does_what_it_is_for(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capsys.readouterr().out
    for words in SAID[name]:
        assert words in printed


@pytest.mark.parametrize("name", [*SAID, *LOOPS])
def test_an_example_is_short(name):
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= 70


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / "tour.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert all(cell.get("execution_count") for cell in notebook.cells if cell.cell_type == "code")
