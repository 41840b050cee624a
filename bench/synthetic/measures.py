"""How close synthetic tables are to real ones: marginals, classifiers, correlations, ranges, copies, membership."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.spatial import cKDTree

from bench.synthetic.tables import Table

BINS = 16
"""Parts of a number's range, equally many *real test* values in each, that marginals are counted over."""
MOST_TRIPLES = 300
RANGES = 300
NEAREST = 500


def codes(table: Table, frame: pd.DataFrame) -> npt.NDArray[np.int64]:
    """Every value's place: in the public list of categories, or among parts of the range; missing has one of its own."""
    found = []
    for name in [*table.schema["columns"], table.target]:
        if name in table.categories:
            placed = pd.Categorical(frame[name].astype("string"), categories=table.categories[name]).codes.astype(
                np.int64
            )
            placed = np.where(placed < 0, len(table.categories[name]), placed)
        else:
            real = table.test[name].astype(float)
            edges = np.unique(np.nanquantile(real, np.linspace(0, 1, BINS + 1)[1:-1]))
            values = frame[name].astype(float).to_numpy()
            placed = np.where(np.isnan(values), len(edges) + 1, np.searchsorted(edges, values, side="right"))
        found.append(placed)
    return np.stack(found, axis=1)


def variation(real: npt.NDArray[np.int64], made: npt.NDArray[np.int64], columns: tuple[int, ...]) -> float:
    """Total variation between two tables' marginals over some columns."""
    sizes = [int(max(real[:, place].max(), made[:, place].max())) + 1 for place in columns]
    counts = [
        np.bincount(np.ravel_multi_index(tuple(part[:, columns].T), sizes), minlength=int(np.prod(sizes))) / len(part)
        for part in (real, made)
    ]
    return float(np.abs(counts[0] - counts[1]).sum() / 2)


def measure(table: Table, made: pd.DataFrame, *, seed: int = 0) -> dict[str, float]:
    """All measures of one synthetic table; smaller is better, but for AUC and accuracy."""
    rng = np.random.default_rng(seed)
    real, fake = codes(table, table.train), codes(table, made)
    width = real.shape[1]
    triples: list[tuple[int, ...]] = list(combinations(range(width), 3))
    if len(triples) > MOST_TRIPLES:
        triples = [triples[place] for place in rng.choice(len(triples), MOST_TRIPLES, replace=False)]
    ways: dict[int, list[tuple[int, ...]]] = {
        1: [(place,) for place in range(width)],
        2: list(combinations(range(width), 2)),
        3: triples,
    }
    found = {f"tv{way}": float(np.mean([variation(real, fake, some) for some in sets])) for way, sets in ways.items()}
    return {
        **found,
        **_classifiers(table, made),
        "correlation": float(np.abs(_correlations(real) - _correlations(fake)).mean()),
        "ranges": _ranges(real, fake, rng),
        **_copies(table, made, real, fake, rng),
    }


def _classifiers(table: Table, made: pd.DataFrame) -> dict[str, float]:
    """AUC and accuracy on real records of models that synthetic ones taught."""
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score, roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    positive = table.schema["target"]["classes"][-1]
    truth = (table.test[table.target].astype("string") == positive).to_numpy()
    given = (made[table.target].astype("string") == positive).to_numpy()
    names = ("trees_auc", "trees_accuracy", "logistic_auc", "logistic_accuracy")
    if given.all() or not given.any():
        return dict(zip(names, (0.5, max(truth.mean(), 1 - truth.mean())) * 2, strict=True))
    asked, taught = _features(table, table.test), _features(table, made)
    scores = []
    for model in (
        HistGradientBoostingClassifier(random_state=0),
        make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)),
    ):
        likely = model.fit(taught, given).predict_proba(asked)[:, 1]
        scores += [roc_auc_score(truth, likely), accuracy_score(truth, likely > 0.5)]
    return dict(zip(names, map(float, scores), strict=True))


def _features(table: Table, frame: pd.DataFrame) -> npt.NDArray[np.float32]:
    """One-hot categories and scaled numbers, with what is missing beside them."""
    parts = []
    for name, about in table.schema["columns"].items():
        if "categories" in about:
            placed = pd.Categorical(frame[name].astype("string"), categories=about["categories"]).codes
            parts.append(np.eye(len(about["categories"]) + 1)[placed][:, :-1])
        else:
            values = (frame[name].astype(float).to_numpy() - about["low"]) / (about["high"] - about["low"])
            gaps = np.isnan(values)
            parts.append(np.stack([np.where(gaps, 0.5, values), gaps], axis=1))
    return np.concatenate(parts, axis=1).astype(np.float32)


def _correlations(coded: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Correlations of the columns' places; 0 where a column is constant."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.nan_to_num(np.corrcoef(coded.T.astype(float)))


def _ranges(real: npt.NDArray[np.int64], fake: npt.NDArray[np.int64], rng: np.random.Generator) -> float:
    """Mean error of the share of records in random boxes over two columns."""
    errors = []
    for _ in range(RANGES):
        some = rng.choice(real.shape[1], 2, replace=False)
        ends = np.sort(rng.integers(0, real[:, some].max(0) + 1, (2, 2)), axis=0)
        shares = [((part[:, some] >= ends[0]) & (part[:, some] <= ends[1])).all(1).mean() for part in (real, fake)]
        errors.append(abs(shares[0] - shares[1]))
    return float(np.mean(errors))


def _copies(
    table: Table,
    made: pd.DataFrame,
    real: npt.NDArray[np.int64],
    fake: npt.NDArray[np.int64],
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Exact copies, over those of records that nobody learned from; and AUCs of two membership attacks.

    One attack takes for a member who has a near synthetic neighbour; the other, who lies where synthetic records are denser
    than a reference of real ones (their own held-out half) would have it.
    """
    from sklearn.metrics import roc_auc_score

    held = codes(table, table.test)
    kept = {tuple(row) for row in fake.tolist()}
    copies = [np.mean([tuple(row) in kept for row in part[:NEAREST].tolist()]) for part in (real, held)]
    few = min(NEAREST, len(real), len(held) // 2)
    members, others = real[rng.choice(len(real), few, replace=False)], held[:few]
    reference = held[few:]
    asked = np.concatenate([members, others]).astype(float)
    truth = np.repeat([1, 0], few)
    near = cKDTree(fake.astype(float)).query(asked)[0]
    usual = cKDTree(reference.astype(float)).query(asked)[0]
    return {
        "copies": float(copies[0] - copies[1]),
        "nearest_auc": float(roc_auc_score(truth, -near)),
        "density_auc": float(roc_auc_score(truth, usual - near)),
    }
