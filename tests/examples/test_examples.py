"""Every example runs, stays short, and prints what its reader is told to expect."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SAID = {
    "answer_queries.py": ("proven: epsilon", "refused: 60 answers were asked for"),
    "audit_claim.py": ("a private mean", "refuted", "proven"),
    "own_loop.py": ("epsilon 3.00 for the 80 steps that ran", "accuracy"),
    "publish_model.py": ("proven: epsilon 1.00", "AUC", "card.json"),
    "publish_records.py": ("proven: epsilon",),
    "publish_weights.py": ("proven: epsilon", "for a record: proven", "for a model: refuted"),
}


def test_every_script_is_run_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAID)


@pytest.mark.parametrize("name", SAID)
def test_an_example_does_what_it_is_for(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capsys.readouterr().out
    for words in SAID[name]:
        assert words in printed


@pytest.mark.parametrize("name", SAID)
def test_an_example_is_short(name):
    assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= 60


@pytest.mark.slow
def test_the_notebook_runs_from_top_to_bottom(tmp_path):
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(EXAMPLES / "tour.ipynb", as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert all(cell.get("execution_count") for cell in notebook.cells if cell.cell_type == "code")
