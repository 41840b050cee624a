"""Lu et al.'s numbers: Tables 3 to 6 and the correlations of figure 2, as printed."""

from __future__ import annotations

from functools import cache
from importlib import resources

import pandas as pd

PAPER = (
    "Lu, Asghar, Kaafar, Webb, Dickinson: A differentially private framework for deep learning with convexified loss "
    "functions. IEEE Transactions on Information Forensics and Security 17, 2022"
)

EPSILONS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0)

PURCHASE_FEATURES = 594
"""What the paper's numbers for Purchase follow from, where Table 3 says 600."""


@cache
def rows() -> pd.DataFrame:
    """Tables 3 to 6, one row a data set, by its name in the paper."""
    return _read("published.csv").set_index("row")


def number(row: str, column: str) -> float:
    """One printed number."""
    return float(rows()[column].to_dict()[row])


@cache
def correlations() -> pd.DataFrame:
    """The correlations of figure 2 over the sets that are learned well, with p-values."""
    return _read("correlations.csv").set_index("pair")


def _read(name: str) -> pd.DataFrame:
    with resources.files(__package__).joinpath(name).open(encoding="utf-8") as file:
        return pd.read_csv(file)
