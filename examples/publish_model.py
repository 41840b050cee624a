"""Publish a model of a private table: public bounds, a budget, a card, an attack."""

from __future__ import annotations

import random
from pathlib import Path
from tempfile import TemporaryDirectory

import noiseproof as npf
from noiseproof.attacks import AttackSplit, infer_membership
from noiseproof.data import read_schema

SCHEMA = """
{"columns": {"age": {"low": 18, "high": 90, "integer": true},
             "hours": {"low": 0, "high": 80, "integer": true},
             "work": {"categories": ["office", "shop", "own"]}},
 "target": {"name": "income", "classes": ["low", "high"]}}
"""


def write_table(path: Path) -> None:
    """A made-up table of 2000 people."""
    random.seed(0)
    lines = ["age,hours,work,income"]
    for _ in range(2000):
        age, hours, work = random.randint(18, 90), random.randint(0, 80), random.choice(["office", "shop", "own"])
        high = age / 90 + hours / 80 + (work == "own") / 2 + random.gauss(0, 0.2) > 1.2
        lines.append(f"{age},{hours},{work},{'high' if high else 'low'}")
    path.write_text("\n".join(lines) + "\n")


def main() -> None:
    """Train, read the card, attack, save."""
    with TemporaryDirectory() as folder:
        table, schema = Path(folder, "people.csv"), Path(folder, "people.json")
        write_table(table)
        schema.write_text(SCHEMA)  # what is public about the columns; without it nothing would be proven
        data = npf.load(table, schema=read_schema(schema))

        release = npf.train("dp-sgd", data.train, epsilon=1)  # no seed: secure randomness, so it may leave
        card = release.card
        print(f"{card.verdict}: epsilon {card.proven.epsilon:.2f}, delta {card.proven.delta:g}, {card.neighbours}")
        print(f"accuracy {npf.accuracy(release, data.test):.1%} (for the owner's eyes)")

        records = AttackSplit(data.train, data.test).limited(1000, 0)
        print(f"membership attack: AUC {infer_membership(release, records, 'loss').auc:.2f}, 0.5 is guessing")

        release.save(Path(folder, "model"))
        print(sorted(path.name for path in Path(folder, "model").iterdir()))


if __name__ == "__main__":
    main()
