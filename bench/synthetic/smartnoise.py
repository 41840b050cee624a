"""Runs smartnoise-synth's DP-CTGAN or PATE-GAN on a CSV file; started with the Python of an environment that has it.

`python smartnoise.py METHOD EPSILON DELTA SEED TRAIN.csv SCHEMA.json OUT.csv`, with everything but bounds, categories and
batches of small tables as it comes. Both are as private as *they* say; nothing is proven here.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import time

import numpy as np
import pandas as pd

MISSING = "(missing)"
"""A category of its own."""


def main(method: str, epsilon: str, delta: str, seed: str, train: str, schema: str, out: str) -> None:
    """Fit, generate as many rows, write them, and print seconds of processor time and megabytes."""
    import torch
    from snsynth import Synthesizer  # type: ignore[import-not-found]
    from snsynth.transform import (  # type: ignore[import-not-found]
        ChainTransformer,
        LabelTransformer,
        MinMaxTransformer,
        OneHotEncoder,
        TableTransformer,
    )

    with open(schema) as file:
        about = json.load(file)
    frame = pd.read_csv(train, keep_default_na=False, na_values=[""])
    np.random.seed(int(seed))  # noqa: NPY002 (what its samplers draw from)
    torch.manual_seed(int(seed))
    started = time.process_time()
    columns = {**about["columns"], about["target"]["name"]: {"categories": about["target"]["classes"]}}
    transformers = []
    for name in frame.columns:
        column = columns[name]
        if "categories" in column:
            frame[name] = frame[name].astype("string").fillna(MISSING).astype(object)
            transformers.append(ChainTransformer([LabelTransformer(nullable=False), OneHotEncoder()]))
        else:
            bounds = {"lower": float(column["low"]), "upper": float(column["high"])}
            transformers.append(MinMaxTransformer(**bounds, nullable=bool(column.get("missing"))))
            frame[name] = frame[name].astype(float)
    # A batch of more than an eighth of the records would spend all at once.
    batch = min(500, len(frame) // 16 * 2)
    settings = {"batch_size": batch, "verbose": False} if method == "dp-ctgan" else {}
    synthesizer = Synthesizer.create(method.replace("-", ""), epsilon=float(epsilon), delta=float(delta), **settings)
    with contextlib.redirect_stdout(sys.stderr):
        synthesizer.fit(frame, transformer=TableTransformer(transformers))
        made = synthesizer.sample(len(frame))
    seconds = time.process_time() - started
    for name, column in columns.items():
        if "categories" in column:
            made[name] = made[name].where(made[name] != MISSING)
        elif column.get("integer"):
            made[name] = made[name].astype(float).round()
    made[frame.columns].to_csv(out, index=False)
    print(json.dumps({"seconds": seconds, "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


if __name__ == "__main__":
    main(*sys.argv[1:])
