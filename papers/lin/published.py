"""What Lin et al. printed: the 96 cells of Tables 3-5, their baselines, and Tables 6-12, as data."""

from __future__ import annotations

from functools import cache
from importlib import resources

import pandas as pd

PAPER = "Lin, Bao, Li, Si, Chu: Differential privacy protection over deep learning. Computers & Security 99, 2020"


def cells() -> pd.DataFrame:
    """Tables 3-5: accuracy and convergence for each of the 96 settings of the six factors."""
    return _read("cells")


def baselines() -> pd.DataFrame:
    """Tables 3-5: accuracy and convergence without noise, for each data set, model and optimizer."""
    return _read("baselines")


def averages() -> pd.DataFrame:
    """The abstract's gains of AC over CA, in "percent", for each model and data set."""
    return _read("averages")


def table6() -> pd.DataFrame:
    """Table 6: accuracy (a share, not a percentage) and TPVD on MNIST with Adam, by sequence and clipping."""
    return _shares("table6")


def table7() -> pd.DataFrame:
    """Table 7: accuracy and TPVD of the CNN beside adaptive clipping."""
    return _shares("table7")


def table12() -> pd.DataFrame:
    """Table 12: accuracy and TPVD on MNIST as the clipping norm grows."""
    return _shares("table12")


def normality() -> pd.DataFrame:
    """Tables 8 and 9: Shapiro-Wilk for each level of each factor, as the texts that were printed."""
    return _texts("normality")


def significance() -> pd.DataFrame:
    """Tables 10 and 11: Mann-Whitney for each factor of two levels, as the texts that were printed."""
    return _texts("significance")


def agrees(value: float, printed: str) -> bool:
    """Whether a number, rounded to as many decimals as were printed, is the printed one."""
    return float(f"{value:.{len(printed.partition('.')[2])}f}") == float(printed)


def _shares(name: str) -> pd.DataFrame:
    frame = _read(name)
    return frame.assign(accuracy=(frame["accuracy"] / 100).round(6))


def _texts(name: str) -> pd.DataFrame:
    return _read(name, texts=True)


def _read(name: str, *, texts: bool = False) -> pd.DataFrame:
    return _parsed(name, texts).copy()


@cache
def _parsed(name: str, texts: bool) -> pd.DataFrame:
    with resources.files(__package__).joinpath(f"{name}.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file, dtype=str) if texts else pd.read_csv(file)
