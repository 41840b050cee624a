"""Schemas read off the records, for tables that come without one, and what their owner should hear about them."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from noiseproof.data.cells import MISSING_VALUES, check_rows, dates, numbers, texts
from noiseproof.data.dataset import Column, Task
from noiseproof.data.schema import ColumnSchema, Schema, TargetSchema, is_whole, make_target
from noiseproof.data.tables import Problems, listed
from noiseproof.errors import DataError, SettingError

if TYPE_CHECKING:
    import pandas as pd

MOST_CATEGORIES = 100
MOST_CLASSES = 1000
MOST_UNASKED = 20
"""Whole numbers that are taken for classes without asking."""

_DATE = r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})(?:[T ]\d{1,2}:\d{2}.*)?"
_WRITTEN = ("ISO8601", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%d-%m-%Y")
"""Ways of writing dates that are tried, the first that fits all of a column being taken."""
_MARKS = ("?", "-", "--", ".", "n/a", "na", "none", "unknown")
"""Texts among numbers that stand for a missing one, in any case of letters."""
_PERSON = re.compile(
    r"(?:^|[_\W])(?:id|ids|nr|no|mrn|ssn|uuid|patient|person|user|customer|client|subject|member|account|household|author)"
    r"(?:$|[_\W])",
    re.IGNORECASE,
)


class _UnusableError(DataError):
    """A column that cannot be learned from, and so may be skipped: ids, free text, nothing."""


def draft(
    frame: pd.DataFrame,
    target: str,
    *,
    name: str,
    task: Task | None = None,
    target_bounds: tuple[float, float] | None = None,
    person: str | None = None,
    skip: Sequence[str] = (),
    skip_unusable: bool = False,
    gaps: bool = True,
) -> Schema:
    """The schema that fits a table: bounds, categories and classes as the records have them.

    A start for a schema file of the user's, who knows which bounds are public; used as it is where there is none.

    Args:
        frame: The table.
        target: The column to predict.
        name: What the table is called in messages.
        task: What the target is.
        target_bounds: Its bounds, if it is a number.
        person: The column that tells whose a row is.
        skip: Columns to leave alone.
        skip_unusable: Whether columns of ids, free text or nothing are skipped rather than refused.
        gaps: Whether numbers may be missing.

    Returns:
        The schema, marked as `drafted`.

    Raises:
        DataError: If columns cannot be used; all of them are named.
        SettingError: If there is no such column.

    Formal guarantee
    ----------------
    None: the least and the largest value of a column are two people's records. The result is
    marked as `drafted`, so that nothing is proven with it.
    """
    known = [str(column) for column in frame.columns]
    for wanted, what in (
        (target, "to predict"),
        (person, "that could tell whose a row is"),
        *((s, "to skip") for s in skip),
    ):
        if wanted is not None and wanted not in known:
            raise SettingError(f"{name} has no column {wanted!r} {what}; its columns are {', '.join(known)}.")
    check_rows(frame, name)
    problems, columns, unusable = Problems(name), {}, list(skip)
    marks: set[str] = set()
    for column in known:
        if column in (target, person, *skip):
            continue
        with problems.noted():
            try:
                series, marked = _without_marks(frame[column], frame.attrs.get("decimal", "."))
                columns[column] = _draft_column(series, column)
                marks |= marked
            except _UnusableError:
                if not skip_unusable:
                    raise
                unusable.append(column)
                continue
            if skip_unusable and _PERSON.search(column) and frame[column].is_unique:
                unusable.append(column)
                del columns[column]
            elif columns[column].missing and not gaps and not columns[column].categories:
                # Whether a number is missing would be one more thing read off the records: the user is to say it.
                raise DataError(
                    f"column {column!r} has {int(series.isna().sum())} missing numbers; fill them, drop those rows, "
                    "or give a schema that says the column may be missing."
                )
    with problems.noted():
        about = _draft_target(frame[target], target, task, target_bounds)
    if not columns and not problems:
        raise DataError(f"{name} has no column besides the target {target!r}; there is nothing to learn from.")
    problems.check()
    return Schema(
        columns=columns,
        target=about,
        drafted=True,
        missing_values=tuple(sorted(marks)),
        person=person,
        skip=tuple(unusable),
    )


def without_values(schema: Schema) -> Schema:
    """A drafted schema without what was read off the values: bounds and categories are to be bought (`data.bounds`).

    Args:
        schema: What `draft` gave.

    Returns:
        The same columns with the mark `private`. Dates keep a wide range, since their bounds are looked for in one.
    """
    columns = {
        name: ColumnSchema(
            low=datetime.date(1900, 1, 1) if column.date else None,
            high=datetime.date(2100, 1, 1) if column.date else None,
            integer=column.integer,
            missing=column.missing,
            date=column.date,
            private="categories" if column.categories else "bounds",
        )
        for name, column in schema.columns.items()
    }
    target = schema.target
    if target.bounds is not None:
        target = TargetSchema(name=target.name, integer=target.integer, task=target.task, private="bounds")
    return schema.model_copy(update={"columns": columns, "target": target})


def suspicions(frame: pd.DataFrame, known: Sequence[str]) -> tuple[str, ...]:
    """What the data's owner should hear of columns that look as if they told whose a row is, none being declared.

    Args:
        frame: The table.
        known: Columns that have another role: the target.

    Returns:
        A remark, or none. It depends on the records.
    """
    found = []
    for column in map(str, frame.columns):
        if column in known or not _PERSON.search(column):
            continue
        different = frame[column].nunique()
        if MOST_UNASKED < different < 0.95 * len(frame):
            found.append(column)
    if not found:
        return ()
    return (
        f"{listed(found)} looks as if it told whose a row is, and repeats: every guarantee here is for one row, not for a "
        f"person with several; declare it with --person {found[0]}.",
    )


def _draft_target(
    series: pd.Series[Any], name: str, task: Task | None, bounds: tuple[float, float] | None
) -> TargetSchema:
    if task in (None, "classification") and bounds is None:
        classes = _draft_classes(series, name)
        if task is None and len(classes) > MOST_UNASKED and is_whole(classes):
            raise SettingError(
                f"the target {name!r} holds {len(classes)} different whole numbers; say with --task whether they are "
                "classes (classification), numbers (regression) or counts (count)."
            )
        return TargetSchema(name=name, classes=classes)
    values = numbers(series, name, MISSING_VALUES)
    found = _draft_bounds(values[~np.isnan(values)], name, series.dtype, False)
    low, high = bounds or (found.low, found.high)
    whole = found.integer or task == "count"
    return make_target(name=name, low=low, high=high, integer=whole, task=task or "regression")


def _without_marks(series: pd.Series[Any], decimal: str) -> tuple[pd.Series[Any], set[str]]:
    """A column of numbers among which texts stand for missing ones, as numbers, and these texts; another as it is."""
    import pandas as pd

    if not (pd.api.types.is_object_dtype(series.dtype) or pd.api.types.is_string_dtype(series.dtype)):
        return series, set()
    words = series.astype(str).str.strip()
    values = pd.to_numeric(words.str.replace(decimal, "."), errors="coerce")
    odd = set(words[values.isna() & series.notna()]) - set(MISSING_VALUES)
    if not odd or values.isna().all() or not {word.lower() for word in odd} <= set(_MARKS):
        return series, set()
    return values, odd


def _draft_column(series: pd.Series[Any], name: str) -> ColumnSchema:
    import pandas as pd

    kind = series.dtype
    missing = bool(series.isna().any())
    if series.isna().all():
        raise _UnusableError(f"column {name!r} is empty; skip it.")
    if pd.api.types.is_timedelta64_dtype(kind):
        raise DataError(f"column {name!r} holds durations; skip it, or turn it into numbers such as days.")
    if pd.api.types.is_datetime64_any_dtype(kind):
        return _draft_dates(series, Column(name, date="ISO8601"), missing)
    if pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind):
        return _draft_bounds(series.to_numpy(np.float64, na_value=np.nan), name, kind, missing)
    words = _distinct(series, name)
    marked = np.isin(words.astype(str), MISSING_VALUES)
    missing, words = missing or bool(marked.any()), words[~marked]
    if not len(words):
        raise _UnusableError(f"column {name!r} is empty; skip it.")
    parsed = pd.to_numeric(pd.Series(words, dtype=object), errors="coerce").notna().to_numpy()
    if parsed.any() and not parsed.all():
        odd = int((~series.dropna().astype(str).str.strip().isin(list(words[parsed]))).sum())
        if 2 * odd < int(series.notna().sum()):
            raise DataError(
                f"column {name!r} holds numbers but text in {odd} rows; correct them, or give its categories in "
                "a schema."
            )
    if pd.Series(words, dtype=object).str.fullmatch(_DATE).all():
        for written in _WRITTEN:
            if pd.to_datetime(pd.Series(words), format=written, errors="coerce").notna().all():
                return _draft_dates(series, Column(name, date=written), missing)
        raise DataError(f"column {name!r} holds dates written in several ways; write them in one, or skip it.")
    if len(words) > MOST_CATEGORIES:
        if parsed.all():
            return _draft_bounds(numbers(series, name, MISSING_VALUES), name, np.dtype(float), missing)
        raise _UnusableError(
            f"column {name!r} has more than {MOST_CATEGORIES} different texts; skip it, or give its categories, or `text`, "
            "in a schema."
        )
    return ColumnSchema(categories=tuple(sorted(words)), missing=missing)


def _draft_dates(series: pd.Series[Any], column: Column, missing: bool) -> ColumnSchema:
    days = dates(series, column, MISSING_VALUES)
    epoch = datetime.date(1970, 1, 1)
    low = epoch + datetime.timedelta(days=float(np.floor(np.nanmin(days))))
    high = epoch + datetime.timedelta(days=float(np.ceil(np.nanmax(days))))
    return ColumnSchema(low=low, high=max(high, low + datetime.timedelta(days=1)), date=column.date, missing=missing)


def _draft_bounds(values: np.ndarray[Any, np.dtype[np.float64]], name: str, kind: Any, missing: bool) -> ColumnSchema:
    import pandas as pd

    known = values[~np.isnan(values)]
    if not np.isfinite(known).all():
        raise DataError(f"column {name!r} holds infinite numbers; replace them with finite ones.")
    low, high = float(known.min()), float(known.max())
    # A column of whole numbers with gaps is read as floats; without gaps the type is to be believed.
    whole = pd.api.types.is_integer_dtype(kind) or (missing and bool((known == np.round(known)).all()))
    return ColumnSchema(low=low, high=high if high > low else low + 1.0, integer=whole, missing=missing)


def _draft_classes(series: pd.Series[Any], name: str) -> tuple[str | int, ...]:
    import pandas as pd

    empty = int(series.isna().sum())
    if empty:
        raise DataError(f"the target {name!r} is missing in {empty} rows; drop those rows.")
    kind = series.dtype
    classes: tuple[str | int, ...]
    if pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind):
        values = np.unique(series.to_numpy(np.float64))
        if not np.isfinite(values).all() or (values != np.round(values)).any():
            raise DataError(
                f"the target {name!r} holds fractions, not classes; choose a column of classes, or say --task regression."
            )
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
        raise DataError(f"column {name!r} holds lists or objects, not numbers or categories; skip it.") from None
    return np.unique(words)
