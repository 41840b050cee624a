"""A schema read off the records, for tables that come without one. Nothing is proven of what it reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from noiseproof.data.schema import ColumnSchema, Schema, TargetSchema
from noiseproof.data.tables import MISSING_VALUES, texts
from noiseproof.errors import DataError, SettingError

if TYPE_CHECKING:
    import pandas as pd


MOST_CATEGORIES = 100
MOST_CLASSES = 1000

_DATE = r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})(?:[T ]\d{1,2}:\d{2}.*)?"


def draft(frame: pd.DataFrame, target: str, *, name: str) -> Schema:
    """The schema that fits a table: bounds, categories and classes as the records have them.

    A start for a schema file of the user's, who knows which bounds are public; used as it is where there is none.
    Dates and free text have no bounds or lists worth having and are refused.

    Formal guarantee
    ----------------
    None: the least and the largest value of a column are two people's records. Whoever uses the result marks it
    `bounds="data"`.
    """
    if target not in frame.columns:
        there = ", ".join(str(column) for column in frame.columns)
        raise SettingError(f"{name} has no column {target!r} to predict; its columns are {there}.")
    if frame.empty:
        raise DataError(f"{name} has no records, only a header; give a table with rows.")
    columns = {str(column): _column(frame[column], str(column)) for column in frame.columns if column != target}
    if not columns:
        raise DataError(f"{name} has no column besides the target {target!r}; there is nothing to learn from.")
    return Schema(columns=columns, target=TargetSchema(name=target, classes=_classes(frame[target], target)))


def _column(series: pd.Series[Any], name: str) -> ColumnSchema:
    import pandas as pd

    kind = series.dtype
    missing = bool(series.isna().any())
    if series.isna().all():
        raise DataError(f"column {name!r} is empty; drop it.")
    if pd.api.types.is_datetime64_any_dtype(kind) or pd.api.types.is_timedelta64_dtype(kind):
        raise _date(name)
    if pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind):
        return _bounds(series.to_numpy(np.float64, na_value=np.nan), name, kind, missing)
    words = _distinct(series, name)
    marked = np.isin(words.astype(str), MISSING_VALUES)
    missing, words = missing or bool(marked.any()), words[~marked]
    if not len(words):
        raise DataError(f"column {name!r} is empty; drop it.")
    parsed = pd.to_numeric(pd.Series(words, dtype=object), errors="coerce").notna().to_numpy()
    if parsed.any() and not parsed.all():
        odd = int((~series.dropna().astype(str).str.strip().isin(list(words[parsed]))).sum())
        if 2 * odd < int(series.notna().sum()):
            raise DataError(
                f"column {name!r} holds numbers but text in {odd} rows; correct them, or give its categories in "
                "a schema."
            )
    if pd.Series(words, dtype=object).str.fullmatch(_DATE).all():
        raise _date(name)
    if len(words) > MOST_CATEGORIES:
        raise DataError(
            f"column {name!r} has more than {MOST_CATEGORIES} different texts; drop it, or give its categories in a "
            "schema."
        )
    return ColumnSchema(categories=tuple(sorted(words)), missing=missing)


def _bounds(values: np.ndarray[Any, np.dtype[np.float64]], name: str, kind: Any, missing: bool) -> ColumnSchema:
    import pandas as pd

    known = values[~np.isnan(values)]
    if not np.isfinite(known).all():
        raise DataError(f"column {name!r} holds infinite numbers; replace them by finite ones.")
    low, high = float(known.min()), float(known.max())
    # A column of whole numbers with gaps is read as floats; without gaps the type is to be believed.
    whole = pd.api.types.is_integer_dtype(kind) or (missing and bool((known == np.round(known)).all()))
    return ColumnSchema(low=low, high=high if high > low else low + 1.0, integer=whole, missing=missing)


def _classes(series: pd.Series[Any], name: str) -> tuple[str | int, ...]:
    import pandas as pd

    empty = int(series.isna().sum())
    if empty:
        raise DataError(f"the target {name!r} is missing in {empty} rows; drop those rows.")
    kind = series.dtype
    classes: tuple[str | int, ...]
    if pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind):
        values = np.unique(series.to_numpy(np.float64))
        if not np.isfinite(values).all() or (values != np.round(values)).any():
            raise DataError(f"the target {name!r} holds fractions, not classes; choose a column of classes.")
        classes = tuple(int(value) for value in values)
    else:
        classes = tuple(sorted(set(_distinct(series, name))))
    if len(classes) == 1:
        raise DataError(f"the target {name!r} has one class only; there is nothing to learn.")
    if len(classes) > MOST_CLASSES:
        raise DataError(f"the target {name!r} has more than {MOST_CLASSES} classes; choose a column of classes.")
    return classes


def _distinct(series: pd.Series[Any], name: str) -> np.ndarray[Any, np.dtype[np.object_]]:
    try:
        words = texts(series.dropna().unique())
    except TypeError:
        raise DataError(f"column {name!r} holds lists or objects, not numbers or categories; drop it.") from None
    return np.unique(words)


def _date(name: str) -> DataError:
    return DataError(f"column {name!r} holds dates; drop it, or turn it into numbers such as days or years.")
