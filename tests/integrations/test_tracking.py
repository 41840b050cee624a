"""What is logged to a tracker, and what must not be."""

from __future__ import annotations

import pytest

import noiseproof as npf
from noiseproof.errors import MissingPartError, SettingError, UnsupportedError
from noiseproof.integrations.tracking import log_release
from noiseproof.releases import evaluate


@pytest.fixture(scope="module")
def release():
    return npf.train("functional", "breast-cancer", epsilon=1)


@pytest.mark.filterwarnings("default")
def test_mlflow_gets_card_settings_and_numbers(release, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())
    log_release(release, "mlflow", run_name="first")
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    assert run.data.metrics["proven_epsilon"] == release.card.proven.epsilon
    assert run.data.tags["verdict"] == "proven"
    assert run.data.params["ridge"] == "0.4"
    assert "accuracy" not in run.data.metrics
    (card,) = tmp_path.rglob("card.json")
    assert npf.Card.from_json(card.read_text()) == release.card


@pytest.mark.filterwarnings("default")
def test_wandb_gets_card_settings_and_numbers(release, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    measures = evaluate(release, npf.load("breast-cancer").test)
    log_release(release, "wandb", measures=measures, inside=True, dir=str(tmp_path), project="p")
    (written,) = tmp_path.rglob("run-*.wandb")
    content = written.read_bytes()
    assert all(word in content for word in (b"proven_epsilon", b"balanced_accuracy", b"ridge", b"verdict"))


def test_what_must_not_leave_is_not_logged(release):
    measures = evaluate(release, npf.load("breast-cancer").test)
    with pytest.raises(UnsupportedError, match="exact numbers of private records"):
        log_release(release, "mlflow", measures=measures)
    with pytest.raises(UnsupportedError, match="rehearsal"):
        log_release(npf.train("functional", "breast-cancer", seed=0), "mlflow")


def test_a_tracker_that_is_not_there_is_named(release, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(MissingPartError, match="pip install wandb"):
        log_release(release, "wandb")
    with pytest.raises(SettingError, match="mlflow or wandb"):
        log_release(release, "comet")
