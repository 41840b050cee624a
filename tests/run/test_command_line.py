"""`noiseproof train` under torchrun, and killed and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.run.launch import ROOT

pytestmark = pytest.mark.slow

TRAIN = ("train", "dp-sgd", "--recipe", "none", "--no-baseline", "--json", "--network", "mlp")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def noiseproof(*arguments: str, ranks: int = 1) -> subprocess.Popen[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [*start, "-m", "noiseproof", *arguments] if start else [sys.executable, "-m", "noiseproof", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def answer(process: subprocess.Popen[str]) -> dict:
    out, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return json.loads(out)


def test_torchrun_gives_one_document_one_bundle_and_the_epsilon_of_one_process(tmp_path):
    settings = ("--set", "epochs=4", "--set", "noise_multiplier=2")
    alone = answer(noiseproof(*TRAIN, *settings))
    both = answer(noiseproof(*TRAIN, *settings, "--out", str(tmp_path / "bundle"), ranks=2))
    assert both["card"]["proven"] == alone["card"]["proven"]
    assert both["card"]["ran"]["ranks"] == 2
    assert (tmp_path / "bundle" / "card.json").is_file()
    refused = noiseproof("train", "teachers", "--no-baseline", ranks=2)
    _, said = refused.communicate(timeout=300)
    assert refused.returncode != 0
    assert "not trained by descent" in said


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_training_that_is_told_to_stop_goes_on_where_it_was(tmp_path, ranks):
    settings = ("--seed", "0", "--set", "epochs=150", "--set", "batch_size=128", "--set", "noise_multiplier=5")
    folder = tmp_path / "checkpoints"
    first = noiseproof(*TRAIN, *settings, "--checkpoint", str(folder), "--every", "20", ranks=ranks)
    patience = time.monotonic() + 120
    while not list(folder.glob("step-*[1-9]*.safetensors")) and time.monotonic() < patience:
        time.sleep(0.05)
    first.send_signal(signal.SIGTERM)
    _, said = first.communicate(timeout=120)
    assert first.returncode != 0
    assert "stopped by SIGTERM" in said
    # Under torchrun the supervisor may have killed ranks a step later; the checkpoint is whole in any case.
    again = noiseproof(*TRAIN, *settings, "--checkpoint", str(folder), ranks=ranks)
    _, said = again.communicate(timeout=120)
    assert "is not empty" in said
    resumed = answer(noiseproof(*TRAIN, *settings, "--checkpoint", str(folder), "--resume", ranks=ranks))
    assert "lost steps" not in resumed["card"]["ran"]
    whole = answer(noiseproof(*TRAIN, *settings, ranks=ranks))
    assert resumed["accuracy"] == whole["accuracy"]
    assert resumed["card"]["proven"] == whole["card"]["proven"]
