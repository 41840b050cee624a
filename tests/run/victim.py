"""Trainings that are killed at random moments: `python -m tests.run.victim FOLDER SEED KILLS secure|reproducible`.

Every training is a forked child, so that none has to import torch again. Prints what came of it as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from noiseproof.data import Split, load
from noiseproof.methods.gradients import DpSgd
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Reproducible, Secure
from noiseproof.releases.release import accuracy
from noiseproof.run.checkpoints import Checkpoints, unpack

BUDGET = Budget(3.0, 1e-5)
METHOD = DpSgd(epochs=40, batch_size=128, max_grad_norm=0.1, lr=2.0, noise_multiplier=3.0)


def train(split: Split, folder: Path, kind: str) -> None:
    """Train to the end, or to the kill; every update is noted in a file as soon as it is visible."""
    network = Network("mlp", split.train.public.shape, split.train.classes)
    visible = os.open(folder / "visible", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    checkpoints = Checkpoints(folder / "checkpoints", every=7, resume=True)
    release = METHOD.fit(
        network,
        split.train,
        BUDGET,
        rng=Secure() if kind == "secure" else Reproducible(5),
        after_step=lambda step, _: os.write(visible, f"{step}\n".encode()) and None,
        checkpoints=checkpoints,
    )
    release.save(folder / "bundle")
    (folder / "accuracy").write_text(str(accuracy(release, split.test)))


def main() -> None:
    torch.set_num_threads(1)
    folder, seed, kills, kind = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    moments = random.Random(seed)
    ends = []
    split = load("digits")
    visible = folder / "visible"
    visible.touch()
    # What a training imports is imported once, here.
    network = Network("mlp", split.train.public.shape, split.train.classes)
    replace(METHOD, epochs=0.1).fit(network, split.train, BUDGET, rng=Reproducible(0))
    for number in range(kills + 1):
        child = os.fork()
        if child == 0:
            try:
                train(split, folder, kind)
                os._exit(0)
            except BaseException as error:
                print(repr(error), file=sys.stderr)
                os._exit(1)
        if number < kills:
            # Most are killed after some steps, anywhere in a step or a checkpoint; some before their first step.
            before = visible.stat().st_size
            patience = time.monotonic() + (30 if moments.random() < 0.8 else 0.05)
            while visible.stat().st_size == before and time.monotonic() < patience:
                time.sleep(0.001)
            time.sleep(moments.uniform(0.0, 0.07))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        ends.append(os.waitstatus_to_exitcode(status))
        # Whatever is there by its final name is whole, at any moment.
        for path in (folder / "checkpoints").glob("step-*.safetensors"):
            unpack(path.read_bytes(), path.name)
    print(json.dumps({"ends": ends}))


if __name__ == "__main__":
    main()
