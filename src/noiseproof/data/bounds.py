"""Private bounds: what a schema leaves open is bought from the records, with noise, out of the budget."""

from __future__ import annotations

import datetime
import math
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from noiseproof.data.cells import MISSING_VALUES, check_rows, dates, numbers, texts
from noiseproof.data.dataset import Bought, Column
from noiseproof.data.persons import numbered
from noiseproof.data.schema import ColumnSchema, Schema, TargetSchema, as_day, as_number
from noiseproof.data.tables import Problems, check_columns, hashed_persons
from noiseproof.errors import DataError, SettingError

if TYPE_CHECKING:
    import pandas as pd

    from noiseproof.privacy import AboveThreshold, Laplace, Neighbours, Randomness

Floats = npt.NDArray[np.float64]
Part = TypeVar("Part", ColumnSchema, TargetSchema)

_OCTAVE, _LEAST, _LARGEST = 8, -20, 40
"""Without a declared range: places for each doubling, between these powers of 2."""
_STEPS = 1024
"""With one: equal steps between its ends."""
_STOP = 4.0
"""Records beyond a bound at which a scan is to stop, in scales of the noise: so many that it does not go on for long where
there are none."""
_LEFT = 0.1
"""The share of the records beyond a bound from which on buying it makes no sense."""
_WEIGHT = 1 << 20
"""Records' weights are multiples of 1 over this."""


def buy_bounds(
    frame: pd.DataFrame,
    schema: Schema,
    *,
    epsilon: float,
    delta: float = 0.0,
    neighbours: Neighbours = "add-or-remove",
    name: str = "the table",
    rng: Randomness | None = None,
) -> Schema:
    """Buy the bounds and categories that a schema marks as `private` from the records.

    A number is looked for on a public grid: of 1,024 steps between the `low` and `high` that the schema declares as a wide
    range, or, without one, of the powers of 2^(1/8) from 2^-20 to 2^40 and their negatives. What lies far from 0 compared
    with its spread (a year, a temperature) needs the range. Some records are left beyond each bound (`scan_threshold`), the
    fewer the more is spent.

    Args:
        frame: The table, all of it: test records are private, too.
        schema: Names, kinds and gaps of the columns, and what is public of their values.
        epsilon: What may be spent on all bounds and categories together, in equal shares.
        delta: Likewise; only categories need it.
        neighbours: When two tables are neighbours.
        name: What to call the table in messages.
        rng: Where the noise comes from; secure by default. With a reproducible one the schema is marked as `drafted`.

    Returns:
        The schema with bounds and categories in the place of the marks, and what they cost as `bought`. It may be released.

    Raises:
        SettingError: If nothing is to be bought, or the budget is too small for so many records.
        DataError: If the table does not fit the schema, or no category is common enough.

    Formal guarantee
    ----------------
    (epsilon, delta)-DP for one row, or for one person with all their rows where the schema names the person's column. Each
    end of a column's range is the place at which an `AboveThreshold` on (less) the number of records beyond it stops; a person's
    rows count for 1 together, so that one person moves each of these monotone counts by at most 1. A category is kept if
    its number of records (of persons, each counted at their first row) with Laplace noise exceeds a threshold, which one
    that a single person brought does with probability delta at most (Korolova et al. 2009). All of it composes by adding
    up. Neighbours: as given. Assumes that the schema, the grid and the number of records or persons are public.

    Examples:
        >>> import numpy as np
        >>> import pandas as pd
        >>> from noiseproof.data import Schema, buy_bounds
        >>> people = pd.DataFrame({"age": np.arange(1000) % 90, "ill": ["no", "yes"] * 500})
        >>> age = {"private": "bounds", "low": 0, "high": 200}  # a wide public range to look for bounds in
        >>> target = {"name": "ill", "classes": ["no", "yes"]}
        >>> schema = buy_bounds(people, Schema.model_validate({"columns": {"age": age}, "target": target}), epsilon=1.0)
        >>> schema.private, schema.bought.epsilon
        ((), 1.0)
    """
    from noiseproof.privacy import AboveThreshold, Laplace, Secure
    from noiseproof.privacy.budget import check_delta, check_epsilon, check_neighbours

    check_epsilon(epsilon)
    check_delta(delta)
    exchange = check_neighbours(neighbours) == "replace-one"
    rng = Secure() if rng is None else rng
    parts: dict[str, Any] = {**schema.columns, schema.target.name: schema.target}
    wanted = {column: parts[column] for column in schema.private}
    lists = sum(part.private == "categories" for part in wanted.values())
    if not wanted:
        raise SettingError('the schema leaves nothing to be bought; mark columns with "private": "bounds".')
    if schema.bought is not None:
        raise SettingError("the schema holds bounds that were bought already; buy all of them at once.")
    if lists and not delta:
        raise SettingError("to buy categories takes a delta above 0: with that probability a rare one shows.")
    check_rows(frame, name)
    problems = Problems(name)
    check_columns(frame, schema, name, problems)
    problems.check()
    persons = None if schema.person is None else numbered(hashed_persons(frame, schema))
    units = len(frame) if persons is None else int(persons.max()) + 1
    weights, marks = _weights(len(frame), persons), (*MISSING_VALUES, *schema.missing_values)
    share = epsilon / (2 * len(wanted) - lists)
    scan = AboveThreshold(1.0, share, neighbours, monotone=not exchange)
    for column, part in wanted.items():
        with problems.noted():
            if part.private == "categories":
                noise = Laplace(2.0 if exchange else 1.0, share)
                found: Any = _common(_counted(frame[column], marks, persons), noise, delta / lists, column, rng)
            else:
                grid = _grid(part)
                threshold = scan_threshold(scan)
                if threshold > _LEFT * units:
                    raise SettingError(
                        f"epsilon {epsilon:g} for {len(wanted)} columns would leave about {threshold:.0f} of {units} "
                        f"{'records' if persons is None else 'persons'} beyond each bound; spend more, buy for fewer "
                        "columns, or declare public bounds."
                    )
                about = part.column(column) if isinstance(part, ColumnSchema) else Column(column)
                series = frame[column]
                values = dates(series, about, marks) if about.date else numbers(series, column, marks)
                found = _range(values, weights, grid, threshold, scan, rng)
            parts[column] = _filled(part, found)
    problems.check()
    bought = Bought(
        columns=tuple(wanted),
        epsilon=epsilon,
        delta=delta if lists else 0.0,
        unit="record" if persons is None else "person",
        neighbours=neighbours,
    )
    made = {"target": parts.pop(schema.target.name), "columns": parts, "bought": bought}
    return schema.model_copy(update={**made, "drafted": schema.drafted or rng.kind == "reproducible"})


def scan_threshold(scan: AboveThreshold) -> float:
    """About how many records are left beyond a bound that a scan finds."""
    return _STOP * (2 if scan.monotone else 4) / scan.epsilon


def _weights(records: int, persons: npt.NDArray[np.int64] | None) -> Floats:
    """What each record counts for: a person's together at most 1, in sums that float64 holds exactly."""
    if persons is None:
        return np.ones(records)
    return np.asarray((_WEIGHT // np.bincount(persons))[persons] / _WEIGHT)


def _grid(part: ColumnSchema | TargetSchema) -> Floats:
    """The places where a bound may lie, in order."""
    if part.low is None or part.high is None:
        powers = 2.0 ** (np.arange(_LEAST * _OCTAVE, _LARGEST * _OCTAVE + 1) / _OCTAVE)
        # To three digits, for whoever reads the schema.
        powers = np.array([float(f"{power:.3g}") for power in powers])
        grid = np.concatenate([-powers[::-1], [0.0], powers])
    else:
        grid = np.linspace(as_number(part.low), as_number(part.high), _STEPS + 1)
    whole = part.integer or isinstance(part.low, datetime.date)
    # + 0.0: a bound of -0.0 would look odd in a schema.
    return np.unique(np.round(grid) + 0.0) if whole else grid


def _range(
    values: Floats, weights: Floats, grid: Floats, threshold: float, scan: AboveThreshold, rng: Randomness
) -> tuple[float, float]:
    """A low and a high bound: each the first place, coming from the other end of the grid, that few records lie beyond.

    From that side all counts are large until the records end, and small from there on: a scan that does not stop at once
    goes on by a few places only.
    """
    known = ~np.isnan(values)
    values, weights = values[known], weights[known]
    below, above = _below(grid, values, weights)[::-1], _below(-grid[::-1], -values, weights)[::-1]
    last = len(grid) - 1
    stops = [min(last, int(scan.release(torch.from_numpy(-counts), -threshold, rng))) for counts in (below, above)]
    low, high = sorted((last - stops[0], stops[1]))
    if low == high:
        low = min(low, len(grid) - 2)
        high = low + 1
    return float(grid[low]), float(grid[high])


def _below(grid: Floats, values: Floats, weights: Floats) -> Floats:
    """How much the records less than each place of an ascending grid count for."""
    places = np.searchsorted(grid, values, side="right")
    counted = np.bincount(places, weights=weights, minlength=len(grid)).astype(np.float64)
    return np.cumsum(counted)[: len(grid)]


def _counted(series: pd.Series[Any], marks: tuple[str, ...], persons: npt.NDArray[np.int64] | None) -> pd.Series[Any]:
    """How many records have each category; of persons, each is counted once, at the first of their rows that has one."""
    import pandas as pd

    words = pd.Series(texts(series), dtype=object)
    kept = np.flatnonzero(~(series.isna().to_numpy() | words.isin(list(marks)).to_numpy()))
    if persons is not None:
        kept = kept[np.unique(persons[kept], return_index=True)[1]]
    # In the order of their names: that of the rows, or of the counts, is private.
    return words[kept].value_counts().sort_index()


def _common(counts: pd.Series[Any], noise: Laplace, delta: float, name: str, rng: Randomness) -> tuple[str, ...]:
    """The categories whose noised counts exceed what one person could bring about but with probability delta."""
    # One person brings at most 1 category; exchanging a person takes 1 away as well, which the sensitivity of 2 tells.
    threshold = 1 + noise.sensitivity / noise.epsilon * math.log(noise.sensitivity / (2 * delta))
    noised = rng.add_laplace(torch.tensor(counts.to_numpy(np.float64)), noise.scale(rng, 2))
    kept = tuple(str(word) for word, count in zip(counts.index, noised.tolist(), strict=True) if count > threshold)
    if not kept:
        raise DataError(
            f"no category of column {name!r} is common enough to be bought (about {threshold:.0f} records); spend more, or "
            "declare public categories."
        )
    return kept


def _filled(part: Part, found: Any) -> Part:
    """The column or target with what was bought."""
    if part.private == "categories":
        return part.model_copy(update={"categories": found, "private": None})
    bounds = [as_day(bound) if isinstance(part.low, datetime.date) else bound for bound in found]
    return part.model_copy(update={"low": bounds[0], "high": bounds[1], "private": None})
