"""Publish synthetic records: a generator trained within a budget, and as many rows as one likes."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import noiseproof as npf
from noiseproof.attacks import AttackSplit, infer_membership
from noiseproof.data import Schema, decode

SCHEMA = Schema.model_validate(
    {
        "columns": {"age": {"low": 18, "high": 90, "integer": True}, "work": {"categories": ["office", "shop", "own"]}},
        "target": {"name": "income", "classes": ["low", "high"]},
    }
)


def write_table(path: Path) -> None:
    """A made-up table of 1000 people: the old and the self-employed earn more."""
    random.seed(0)
    lines = ["age,work,income"]
    for _ in range(1000):
        age, work = random.randint(18, 90), random.choice(["office", "shop", "own"])
        high = age / 90 + (work == "own") / 2 + random.gauss(0, 0.2) > 0.8
        lines.append(f"{age},{work},{'high' if high else 'low'}")
    path.write_text("\n".join(lines) + "\n")


def main() -> None:
    """Learn within a budget, draw rows, and see what they give away."""
    with TemporaryDirectory() as folder:
        write_table(Path(folder, "people.csv"))
        data = npf.load(Path(folder, "people.csv"), schema=SCHEMA)
    release = npf.train("dp-gan", data.train, epsilon=3, rows=500, generator_steps=50)
    proven, made = release.card.proven, release.dataset
    print(f"{release.card.verdict}: epsilon {proven.epsilon:.2f}, delta {proven.delta:g} for {len(made)} rows")
    table = decode(release.public, made.features, made.labels)  # columns, types and categories as the schema has them
    print(table.head(3).to_string(index=False))
    print("mean age of high earners", round(table[table["income"] == "high"]["age"].mean()))

    records = AttackSplit(data.train, data.test).limited(500, 0)
    print(f"nearest-record attack: AUC {infer_membership(release, records, 'nearest').auc:.2f}, 0.5 is guessing")


if __name__ == "__main__":
    main()
