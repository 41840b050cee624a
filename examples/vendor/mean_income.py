"""A vendor's program: it reads a table and writes the noisy number and sum of incomes. Its manual says epsilon 2.

`python mean_income.py DATA RELEASE` keeps that promise. With `--fast` it adds noise for epsilon 5 instead.
"""

import csv
import json
import random
import sys

LARGEST = 100_000  # incomes are cut to [0, LARGEST], a public bound


def laplace(scale: float) -> float:
    """A Laplace variable, as the difference of two exponential ones."""
    source = random.SystemRandom()
    return scale * (source.expovariate(1.0) - source.expovariate(1.0))


def main() -> None:
    """Half of epsilon goes to the number of people, half to the sum of their incomes."""
    data, release = (argument for argument in sys.argv[1:] if argument != "--fast")
    epsilon = 5.0 if "--fast" in sys.argv else 2.0
    with open(data, newline="") as file:
        incomes = [min(max(float(row["income"]), 0.0), LARGEST) for row in csv.DictReader(file)]
    found = {
        "people": len(incomes) + laplace(2 / epsilon),
        "income": sum(incomes) + laplace(2 * LARGEST / epsilon),
    }
    with open(release, "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
