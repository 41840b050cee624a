"""Runs one of dpmm's synthesizers on a CSV file; started with the Python of an environment that has dpmm.

`python peer.py METHOD EPSILON DELTA SEED TRAIN.csv SCHEMA.json OUT.csv`
"""

from __future__ import annotations

import json
import resource
import sys
import time

import numpy as np
import pandas as pd

SMALL = 5000
"""Records below which numbers get 16 bins, not 32: noise would hide more."""
MANY = 20
"""Columns above which models are fitted in 1,000 steps, as AIM's always are, not in 5,000: those take half an hour."""


def main(method: str, epsilon: str, delta: str, seed: str, train: str, schema: str, out: str) -> None:
    """Fit, generate as many rows, write them, and print seconds of processor time and megabytes."""
    from dpmm.pipelines import AIMPipeline, MSTPipeline, PrivBayesPipeline  # type: ignore[import-not-found]

    with open(schema) as file:
        about = json.load(file)
    frame = pd.read_csv(train, keep_default_na=False, na_values=[""])
    domain = {}
    for name, column in about["columns"].items():
        if "categories" in column:
            frame[name] = frame[name].astype("category")
            domain[name] = {"categories": [*column["categories"], *([np.nan] if column.get("missing") else [])]}
        else:
            frame[name] = frame[name].astype(float)
            domain[name] = {"lower": column["low"], "upper": column["high"]}
    target = about["target"]
    frame[target["name"]] = frame[target["name"]].astype("category")
    domain[target["name"]] = {"categories": target["classes"]}
    kinds = {"aim": AIMPipeline, "mst": MSTPipeline, "privbayes": PrivBayesPipeline}
    started = time.process_time()
    # Uniform bins within public bounds cost nothing; dpmm's tree of bins (`mst-tree`) has a tenth of the budget.
    kind, *options = method.split("-")
    tree = "tree" in options
    bins = 64 if "64" in options else 32 if len(frame) >= SMALL else 16
    binning = {"proc_epsilon": 0.1 * float(epsilon)} if tree else {"proc_epsilon": None, "n_bins": bins}
    share = 0.9 if tree else 1.0
    fitting = {"gen_kwargs": {"n_iters": 1000}} if len(frame.columns) > MANY else {}
    pipeline = kinds[kind](epsilon=share * float(epsilon), delta=float(delta), n_jobs=1, **binning, **fitting)
    pipeline.fit(frame, domain, random_state=int(seed))
    made = pipeline.generate(n_records=len(frame), random_state=int(seed))
    seconds = time.process_time() - started
    for name, column in about["columns"].items():
        if column.get("integer"):
            made[name] = made[name].round()
    made[frame.columns].to_csv(out, index=False)
    print(json.dumps({"seconds": seconds, "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))


if __name__ == "__main__":
    main(*sys.argv[1:])
