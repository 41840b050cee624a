"""Runs one of our methods on a CSV file, in a process of its own, so that time and memory are measured as the peers' are.

`python ours.py METHOD EPSILON DELTA SEED TRAIN.csv SCHEMA.json OUT.csv`
"""

from __future__ import annotations

import json
import resource
import sys
import time

import pandas as pd


def main(method: str, epsilon: str, delta: str, seed: str, train: str, schema: str, out: str) -> None:
    """Fit, generate as many rows, write them, and print seconds of processor time and megabytes."""
    from noiseproof.data.schema import Schema
    from noiseproof.data.tables import code, decode
    from noiseproof.methods.losses.coding import DIGITS
    from noiseproof.releases.release import DataRelease
    from noiseproof.run.training import train as fit

    with open(schema) as file:
        about = json.load(file)
    frame = pd.read_csv(train, keep_default_na=False, na_values=[""])
    started = time.process_time()
    records = code(frame, Schema.model_validate(about), name="train")[0]
    release = fit(method, records, epsilon=float(epsilon), delta=float(delta), seed=int(seed))
    assert isinstance(release, DataRelease)
    made = decode(records.public, release.dataset.features, release.dataset.labels, digits=DIGITS)
    seconds = time.process_time() - started
    made.to_csv(out, index=False)
    print(json.dumps({"seconds": seconds, "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


if __name__ == "__main__":
    main(*sys.argv[1:])
