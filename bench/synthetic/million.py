"""`python -m bench.synthetic.million FOLDER [ROWS]`: a CSV file of a million hospital visits, and its public schema.

Numbers, whole numbers, dates, two to two hundred categories, missing values.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

CODES = [f"D{place:03}" for place in range(180)]
WARDS = ["surgery", "medicine", "cardiology", "maternity", "oncology", "emergency"]


def visits(rows: int, seed: int = 0) -> pd.DataFrame:
    """So many visits, drawn at random."""
    rng = np.random.default_rng(seed)
    age = np.clip(rng.gamma(9, 6.5, rows), 0, 110).round().astype(int)
    ward = np.array(WARDS)[rng.choice(len(WARDS), rows, p=[0.25, 0.3, 0.15, 0.08, 0.1, 0.12])]
    shares = 1 / np.arange(1, len(CODES) + 1) ** 0.9
    code = np.array(CODES)[(rng.choice(len(CODES), rows, p=shares / shares.sum()) + 7 * (ward == "surgery")) % 180]
    day = np.datetime64("2020-01-01") + rng.integers(0, 1461, rows)
    glucose = np.clip(np.exp(rng.normal(1.65 + 0.004 * age, 0.25)), 2, 40).round(2)
    stay = np.clip(rng.poisson(2 + 0.03 * age + 3 * (ward == "surgery")), 0, 60)
    smoker = np.where(rng.random(rows) < 0.15 + 0.15 * (ward == "cardiology"), "yes", "no")
    cost = np.clip(np.exp(rng.normal(6.5 + 0.08 * stay, 0.8)), 0, 250_000).round(2)
    risk = -5.5 + 0.04 * age + 0.9 * (smoker == "yes") + 0.1 * stay
    frame = pd.DataFrame(
        {
            "age": age,
            "sex": np.where(rng.random(rows) < 0.52, "f", "m"),
            "ward": ward,
            "diagnosis": code,
            "admitted": day.astype(str),
            "glucose": glucose,
            "stay": stay,
            "smoker": smoker,
            "cost": cost,
            "back": np.where(rng.random(rows) < 1 / (1 + np.exp(-risk)), "yes", "no"),
        }
    )
    frame["glucose"] = frame["glucose"].where(rng.random(rows) > 0.2)
    frame["smoker"] = frame["smoker"].where(rng.random(rows) > 0.08)
    return frame


SCHEMA: dict[str, Any] = {
    "columns": {
        "age": {"low": 0, "high": 110, "integer": True},
        "sex": {"categories": ["f", "m"]},
        "ward": {"categories": WARDS},
        "diagnosis": {"categories": CODES},
        "admitted": {"low": "2020-01-01", "high": "2023-12-31", "date": "ISO8601"},
        "glucose": {"low": 2, "high": 40, "missing": True},
        "stay": {"low": 0, "high": 60, "integer": True},
        "smoker": {"categories": ["no", "yes"], "missing": True},
        "cost": {"low": 0, "high": 250_000},
    },
    "target": {"name": "back", "classes": ["no", "yes"]},
}


def main(folder: str, rows: str = "1000000") -> None:
    """Write both files."""
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    visits(int(rows)).to_csv(where / "visits.csv", index=False)
    (where / "visits.json").write_text(json.dumps(SCHEMA, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
