"""Six tables with public schemas: two real ones, four that a script makes with one difficulty each. And two unseen ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from noiseproof.data.load import load
from noiseproof.data.tables import decode

ROWS = 20_000
TEST = 10_000


@dataclass(frozen=True)
class Table:
    """A table to imitate, one that nobody trains on, and what is public about both."""

    name: str
    train: pd.DataFrame
    test: pd.DataFrame
    schema: dict[str, Any]
    """As a schema file has it: bounds or categories of every column, and the target's classes."""

    @property
    def target(self) -> str:
        """The column that classifiers predict."""
        return str(self.schema["target"]["name"])

    @property
    def categories(self) -> dict[str, list[str]]:
        """The public categories of every column that has them, the target's classes included."""
        found = {
            name: list(about["categories"]) for name, about in self.schema["columns"].items() if "categories" in about
        }
        return {**found, self.target: list(self.schema["target"]["classes"])}


def named(name: str) -> Table:
    """The table of that name."""
    return {**TABLES, **UNSEEN}[name]()


def _loaded(name: str) -> Table:
    """A named set of the package, as a table, with the package's own public schema."""
    split = load(name)
    public = split.train.public
    columns: dict[str, Any] = {}
    for column in public.columns:
        about: dict[str, Any] = {"missing": True} if column.missing else {}
        if column.categories:
            columns[column.name] = {"categories": list(column.categories), **about}
        else:
            columns[column.name] = {"low": column.low, "high": column.high, "integer": column.integer, **about}
    target = {"name": public.target, "classes": list(public.classes)}
    train, test = (decode(public, part.features, part.labels) for part in (split.train, split.test))
    return Table(name, train, test, {"columns": columns, "target": target})


def _halves(name: str, frame: pd.DataFrame, columns: dict[str, Any], target: str, classes: list[str]) -> Table:
    frame = frame[[*columns, target]]
    train, test = frame.iloc[:ROWS].reset_index(drop=True), frame.iloc[ROWS:].reset_index(drop=True)
    return Table(name, train, test, {"columns": columns, "target": {"name": target, "classes": classes}})


def _visits() -> Table:
    """A hospital's visits: missing values, a rare outcome, dependent vital signs."""
    rng = np.random.default_rng(1)
    n = ROWS + TEST
    age = np.clip(rng.gamma(9, 6.5, n), 18, 100).round()
    ward = rng.choice(["surgery", "medicine", "cardiology", "maternity"], n, p=[0.3, 0.4, 0.2, 0.1])
    smoker = np.where(rng.random(n) < 0.15 + 0.15 * (ward == "cardiology"), "yes", "no")
    pressure = np.clip(95 + 0.5 * age + 12 * (smoker == "yes") + rng.normal(0, 14, n), 70, 230).round()
    glucose = np.clip(np.exp(rng.normal(1.65 + 0.004 * age, 0.25)), 2, 40)
    stay = np.clip(rng.poisson(2 + 0.03 * age + 3 * (ward == "surgery")), 0, 60)
    risk = -6.5 + 0.045 * age + 0.02 * (pressure - 130) + 0.9 * (smoker == "yes") + 0.1 * stay
    back = np.where(rng.random(n) < 1 / (1 + np.exp(-risk)), "yes", "no")
    frame = pd.DataFrame(
        {
            "age": age,
            "ward": ward,
            "smoker": smoker,
            "pressure": pressure,
            "glucose": glucose,
            "stay": stay,
            "back": back,
        }
    )
    frame["glucose"] = frame["glucose"].where((rng.random(n) > 0.2) | (ward == "medicine"))
    frame["smoker"] = frame["smoker"].where(rng.random(n) > 0.08)
    frame["pressure"] = frame["pressure"].where(rng.random(n) > 0.05)
    columns: dict[str, Any] = {
        "age": {"low": 18, "high": 100, "integer": True},
        "ward": {"categories": ["surgery", "medicine", "cardiology", "maternity"]},
        "smoker": {"categories": ["no", "yes"], "missing": True},
        "pressure": {"low": 70, "high": 230, "integer": True, "missing": True},
        "glucose": {"low": 2, "high": 40, "missing": True},
        "stay": {"low": 0, "high": 60, "integer": True},
    }
    return _halves("visits", frame, columns, "back", ["no", "yes"])


def _wide() -> Table:
    """A hundred columns of two to five categories, tied together by eight hidden kinds of people."""
    rng = np.random.default_rng(2)
    n, kinds = ROWS + TEST, 8
    kind = rng.choice(kinds, n, p=rng.dirichlet(np.full(kinds, 5.0)))
    columns, values = {}, {}
    for place in range(100):
        size = int(rng.integers(2, 6))
        shares = rng.dirichlet(np.full(size, 0.7), kinds)
        drawn = (shares[kind].cumsum(1) < rng.random((n, 1))).sum(1).clip(max=size - 1)
        names = [f"v{value}" for value in range(size)]
        columns[f"c{place:02}"] = {"categories": names}
        values[f"c{place:02}"] = np.array(names)[drawn]
    score = np.array([np.unique(values[f"c{place:02}"], return_inverse=True)[1] for place in range(5)]).sum(0)
    likely = 1 / (1 + np.exp(-(score - score.mean()) - 1.5 * (kind % 2) + 0.75))
    values["outcome"] = np.where(rng.random(n) < likely, "yes", "no")
    return _halves("wide", pd.DataFrame(values), columns, "outcome", ["no", "yes"])


def _categories() -> Table:
    """A column of two hundred categories (a postal code), on which everything else depends."""
    rng = np.random.default_rng(3)
    n = ROWS + TEST
    names = [f"code {place:03}" for place in range(200)]
    shares = 1 / np.arange(1, 201) ** 0.8
    code = rng.choice(200, n, p=shares / shares.sum())
    wealth = rng.normal(0, 1, 200)[code]
    income = np.clip(np.exp(rng.normal(10.2 + 0.4 * wealth, 0.4)), 0, 300_000)
    rooms = np.clip(rng.poisson(np.exp(1.1 + 0.2 * wealth)), 1, 12)
    heating = np.array(["gas", "oil", "electric", "district"])[
        (code * 7 + (rng.random(n) < 0.3) * rng.integers(0, 4, n)) % 4
    ]
    likely = 1 / (1 + np.exp(-(wealth + 0.3 * (rooms - 3))))
    frame = pd.DataFrame(
        {
            "code": np.array(names)[code],
            "income": income,
            "rooms": rooms,
            "heating": heating,
            "owner": np.where(rng.random(n) < likely, "yes", "no"),
        }
    )
    columns: dict[str, Any] = {
        "code": {"categories": names},
        "income": {"low": 0, "high": 300_000},
        "rooms": {"low": 1, "high": 12, "integer": True},
        "heating": {"categories": ["gas", "oil", "electric", "district"]},
    }
    return _halves("categories", frame, columns, "owner", ["no", "yes"])


def _tails() -> Table:
    """Numbers with heavy tails: amounts over four orders of magnitude, which depend on each other."""
    rng = np.random.default_rng(4)
    n = ROWS + TEST
    base = rng.standard_t(4, n)
    amount = np.clip(np.exp(4 + 1.1 * base + rng.normal(0, 0.5, n)), 0, 100_000)
    balance = np.clip(np.exp(6 + 0.8 * base + rng.normal(0, 0.8, n)), 0, 500_000)
    count = np.clip(rng.zipf(2.0, n), 1, 200)
    delay = np.where(rng.random(n) < 0.6, 0.0, np.clip(rng.exponential(20, n), 0, 365))
    kind = np.array(["card", "transfer", "cash"])[
        (rng.random(n) < 0.3).astype(int) + (amount > 200) * (rng.random(n) < 0.5)
    ]
    risk = 0.9 * base + 0.03 * delay - 0.5 * (kind == "card") - 1.2
    frame = pd.DataFrame(
        {
            "amount": amount,
            "balance": balance,
            "count": count,
            "delay": delay,
            "kind": kind,
            "default": np.where(rng.random(n) < 1 / (1 + np.exp(-risk)), "yes", "no"),
        }
    )
    columns: dict[str, Any] = {
        "amount": {"low": 0, "high": 100_000},
        "balance": {"low": 0, "high": 500_000},
        "count": {"low": 1, "high": 200, "integer": True},
        "delay": {"low": 0, "high": 365},
        "kind": {"categories": ["card", "transfer", "cash"]},
    }
    return _halves("tails", frame, columns, "default", ["no", "yes"])


def _loans() -> Table:
    """Loans: numbers that depend on each other through hidden ones, and an outcome that takes three columns together."""
    rng = np.random.default_rng(7)
    n = ROWS + TEST
    hidden = rng.multivariate_normal([0, 0, 0], [[1, 0.6, -0.4], [0.6, 1, 0.1], [-0.4, 0.1, 1]], n)
    income = np.clip(np.exp(10.3 + 0.5 * hidden[:, 0]), 0, 400_000)
    debt = np.clip(income * rng.beta(2, 5, n) * np.exp(0.3 * hidden[:, 2]), 0, 400_000)
    years = np.clip(rng.poisson(np.exp(1.5 + 0.5 * hidden[:, 1])), 0, 50)
    score = np.clip(650 + 70 * hidden[:, 1] - 40 * hidden[:, 2] + rng.normal(0, 25, n), 300, 850).round()
    region = np.array([f"region {place:02}" for place in range(24)])[(rng.beta(1, 2, n) * 24).astype(int)]
    purpose = np.array(["car", "house", "study", "business", "other"])[
        (rng.random((n, 1)) > np.cumsum([[0.3, 0.25, 0.15, 0.1]], axis=1)).sum(1)
    ]
    renting = rng.random(n) < 1 / (1 + np.exp(2 * hidden[:, 0]))
    odds = (
        -1.5 + 3 * (debt / (income + 1) > 0.4) * renting - 0.012 * (score - 650) + (purpose == "business") * (years < 3)
    )
    frame = pd.DataFrame(
        {
            "income": income,
            "debt": debt,
            "years": years,
            "score": score,
            "region": region,
            "purpose": purpose,
            "home": np.where(renting, "rents", "owns"),
            "late": np.where(rng.random(n) < 1 / (1 + np.exp(-odds)), "yes", "no"),
        }
    )
    columns: dict[str, Any] = {
        "income": {"low": 0, "high": 400_000},
        "debt": {"low": 0, "high": 400_000},
        "years": {"low": 0, "high": 50, "integer": True},
        "score": {"low": 300, "high": 850, "integer": True},
        "region": {"categories": [f"region {place:02}" for place in range(24)]},
        "purpose": {"categories": ["car", "house", "study", "business", "other"]},
        "home": {"categories": ["rents", "owns"]},
    }
    return _halves("loans", frame, columns, "late", ["no", "yes"])


def _digits() -> Table:
    """Real: scikit-learn's digits, the mean ink of sixteen squares of each picture, and whether it is five or more."""
    from sklearn.datasets import load_digits

    found = load_digits()
    ink = found.images.reshape(-1, 4, 2, 4, 2).mean((2, 4)).reshape(len(found.images), -1)
    columns: dict[str, Any] = {f"square {place:02}": {"low": 0, "high": 16} for place in range(16)}
    frame = pd.DataFrame(ink, columns=[*columns])
    frame["high"] = np.where(found.target >= 5, "yes", "no")
    order = np.random.default_rng(8).permutation(len(frame))
    train, test = (frame.iloc[part].reset_index(drop=True) for part in (order[:1297], order[1297:]))
    schema = {"columns": columns, "target": {"name": "high", "classes": ["no", "yes"]}}
    return Table("digits", train, test, schema)


UNSEEN: dict[str, Callable[[], Table]] = {"loans": _loans, "digits": _digits}
"""Tables that nothing was chosen on: they were made after all settings were."""

TABLES: dict[str, Callable[[], Table]] = {
    "adult": lambda: _loaded("adult"),
    "breast-cancer": lambda: _loaded("breast-cancer"),
    "visits": _visits,
    "wide": _wide,
    "categories": _categories,
    "tails": _tails,
}
