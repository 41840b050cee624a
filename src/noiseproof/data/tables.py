"""Tables to tensors and back by a schema (numbers scaled by bounds, categories one-hot), and schemas drafted from tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from noiseproof.data.dataset import Column, Dataset, Public, Task
from noiseproof.data.schema import ColumnSchema, Schema, TargetSchema, is_whole, make_target
from noiseproof.errors import DataError, SettingError

if TYPE_CHECKING:
    import pandas as pd


MISSING_VALUES = ("", "NA", "N/A", "#N/A", "<NA>", "NaN", "nan", "NULL", "null", "None")
"""Texts that stand for a missing value, unless a schema lists them as a category."""


READ_OFF = (
    "bounds, categories and classes were read off the records, which no guarantee accounts for; give a schema of public "
    "ones, without the mark `drafted`."
)


def layout(columns: Sequence[Column]) -> list[tuple[Column, slice]]:
    """Where each column's coded features lie: a number (and its missing-indicator), or one slot a category."""
    places = []
    start = 0
    for column in columns:
        places.append((column, slice(start, start + column.width)))
        start += column.width
    return places


def code(
    frame: pd.DataFrame,
    schema: Schema,
    *,
    name: str,
    notes: tuple[str, ...] = (),
) -> tuple[Dataset, tuple[str, ...]]:
    """Code a table by its schema; also returns remarks for the data's owner, which must not be released.

    Numbers are scaled to [0, 1] by the column's bounds and clipped to it. Categories become one-hot; a category that is
    not in the list becomes all zeros. Where a column may be missing, a missing number is coded as the middle of its
    bounds with an indicator beside it, and a missing category has a slot of its own.

    Formal guarantee
    ----------------
    With a public schema every record is coded by itself, by a map that does not depend on any other record. So
    neighbouring tables, under add-or-remove as under replace-one, are coded as neighbouring data sets, and what is
    proven for the coded records holds for the table's rows. With a drafted schema the map depends on all the records and
    nothing is proven of it; the public part says so (`bounds` is `data`). The remarks depend on the records and carry no
    guarantee.
    """
    if frame.empty:
        raise DataError(f"{name} has no records, only a header; give a table with rows.")
    _check_columns(frame, schema, name)
    order = tuple(column for column in frame.columns if column in schema.names and column != schema.person)
    columns = schema.features(order)
    marks = (*MISSING_VALUES, *schema.missing_values)
    features = np.zeros((len(frame), sum(column.width for column in columns)), np.float32)
    clipped, unlisted = [], []
    for column, place in layout(columns):
        if column.numeric:
            if _code_numbers(frame[column.name], column, marks, features[:, place]):
                clipped.append(column.name)
        elif _code_categories(frame[column.name], column, marks, features[:, place]):
            unlisted.append(column.name)
    public = Public(
        shape=(features.shape[1],),
        classes=schema.classes,
        kind="table",
        columns=columns,
        target=schema.target.name,
        order=order,
        integer_classes=schema.integer_classes,
        bounds="data" if schema.drafted else "public",
        notes=(*notes, READ_OFF) if schema.drafted else notes,
        task=schema.target.task,
        target_bounds=schema.target.bounds,
        class_shares=schema.target.shares,
        person=schema.person,
    )
    labels, beyond = _code_labels(frame[schema.target.name], schema, marks)
    if beyond:
        clipped.append(schema.target.name)
    groups = None if schema.person is None else torch.from_numpy(dense(person_hashes(frame, schema)))
    remarks = (
        *_remark(clipped, "values outside the public bounds, which were clipped to them"),
        *_remark(unlisted, "categories outside the public list, which were coded as none of them"),
    )
    return Dataset(name, torch.from_numpy(features), torch.from_numpy(labels), public, groups), remarks


def person_hashes(frame: pd.DataFrame, schema: Schema) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """A number of 64 bits for each row that is the same for all rows of a person, by the schema's column of ids.

    Two ids that meet by chance (3 in a million, with ten million persons) are taken for one person, whom everything that
    is proven then covers as a whole.
    """
    import pandas as pd

    series = frame[schema.person]
    words, marks = texts(series), (*MISSING_VALUES, *schema.missing_values)
    missing = int((series.isna().to_numpy() | np.isin(words.astype(str), marks)).sum())
    if missing:
        raise DataError(
            f"column {schema.person!r}, which tells whose a row is, is empty in {missing} rows; give each row its person, "
            "or drop those rows."
        )
    return pd.util.hash_array(words)


def dense(ids: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Ids as numbers from 0 on, in the order in which they first come."""
    import pandas as pd

    return pd.factorize(ids)[0].astype(np.int64)


def decode(public: Public, features: torch.Tensor, labels: torch.Tensor) -> pd.DataFrame:
    """The table that coded records stand for: columns in the file's order, whole numbers rounded, categories by name.

    The inverse of `code` for values within their bounds (to float32's precision: whole numbers are exact where their
    range is below 2^23). Generated records may lie between codes: the largest slot names the category, an indicator
    above a half means missing. A record with no slot above zero has no listed category and is decoded as missing.

    Formal guarantee
    ----------------
    Post-processing: reads only its arguments, so it costs nothing beyond what made them.
    """
    import pandas as pd

    if public.kind != "table" or public.target is None:
        raise SettingError(f"only records of a table can be written as one; these are of kind {public.kind!r}.")
    if tuple(features.shape[1:]) != public.shape or len(features) != len(labels):
        raise DataError(
            f"features of shape {tuple(features.shape)} and {len(labels)} labels do not fit records of shape "
            f"{public.shape}."
        )
    coded = features.detach().cpu().to(torch.float64).numpy()
    decoded: dict[str, Any] = {}
    for column, place in layout(public.columns):
        part = coded[:, place]
        decoded[column.name] = _decode_numbers(part, column) if column.numeric else _decode_categories(part, column)
    answers = labels.detach().cpu().numpy()
    if public.target_bounds is None:
        target = Column(public.target, categories=public.classes, integer=public.integer_classes)
        decoded[public.target] = _named(answers, target)
    else:
        target = Column(public.target, *public.target_bounds, integer=public.integer_classes)
        decoded[public.target] = _decode_numbers(answers.astype(np.float64)[:, None], target)
    return pd.DataFrame({name: decoded[name] for name in public.order or decoded})


def texts(values: Any) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Values (distinct ones, as a rule) as texts: whole numbers without a point, other texts without outer blanks."""
    import pandas as pd

    index = pd.Index(values)
    if pd.api.types.is_float_dtype(index.dtype):
        numbers = index.to_numpy(np.float64)
        whole = np.isfinite(numbers) & (numbers == np.round(numbers)) & (np.abs(numbers) < 2.0**63)
        shown = np.where(whole, numbers, 0).astype(np.int64).astype(str).astype(object)
        return np.where(whole, shown, numbers.astype(str).astype(object))
    words: np.ndarray[Any, np.dtype[np.object_]] = index.astype(str).str.strip().to_numpy(object)
    return words


def _check_columns(frame: pd.DataFrame, schema: Schema, name: str) -> None:
    absent = [column for column in schema.names if column not in frame.columns]
    if absent:
        raise DataError(
            f"{name} has no column {_listed(absent)}, which the schema names; correct the schema or the file."
        )
    extra = [str(column) for column in frame.columns if column not in schema.names]
    if extra and schema.others == "refuse":
        raise DataError(
            f"{name} has columns that the schema does not name ({_listed(extra)}); add them, or set its `others` to "
            "`ignore`."
        )


def _code_numbers(series: pd.Series[Any], column: Column, marks: Sequence[str], out: np.ndarray[Any, Any]) -> bool:
    values = _numbers(series, column.name, marks)
    missing = np.isnan(values)
    _check_missing(int(missing.sum()), column)
    if not np.isfinite(values[~missing]).all():
        raise DataError(f"column {column.name!r} holds infinite numbers; replace them by finite ones.")
    low, high = _bounds(column)
    with np.errstate(invalid="ignore"):
        outside = bool(((values < low) | (values > high)).any())
    scaled = np.clip((values - low) / (high - low), 0.0, 1.0)
    out[:, 0] = np.where(missing, 0.5, scaled)
    if column.missing:
        out[:, 1] = missing
    return outside


def _numbers(series: pd.Series[Any], name: str, marks: Sequence[str]) -> np.ndarray[Any, np.dtype[np.float64]]:
    import pandas as pd

    kind = series.dtype
    if pd.api.types.is_bool_dtype(kind) or pd.api.types.is_numeric_dtype(kind):
        return series.to_numpy(np.float64, na_value=np.nan)
    missing = series.isna().to_numpy()
    if pd.api.types.is_datetime64_any_dtype(kind):
        values = np.full(len(series), np.nan)
    else:
        words = series.astype(str).str.strip()
        missing = missing | words.isin(list(marks)).to_numpy()
        values = pd.to_numeric(words.where(~missing), errors="coerce").to_numpy(np.float64, na_value=np.nan)
    wrong = int((np.isnan(values) & ~missing).sum())
    if wrong:
        raise DataError(
            f"column {name!r} is to hold numbers but holds text in {wrong} rows; correct them, or give its categories "
            "in a schema."
        )
    return values


def _code_categories(series: pd.Series[Any], column: Column, marks: Sequence[str], out: np.ndarray[Any, Any]) -> bool:
    slots = _slots(series, column, marks)
    _check_missing(int((slots == len(column.categories)).sum()), column)
    rows = np.flatnonzero(slots >= 0)
    out[rows, slots[rows]] = 1.0
    return len(rows) < len(slots)


def _slots(series: pd.Series[Any], column: Column, marks: Sequence[str]) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Each record's place in the list of categories: -1 where it is not in it, the list's length where missing."""
    import pandas as pd

    try:
        codes, distinct = pd.factorize(series)
    except TypeError:
        raise DataError(f"column {column.name!r} holds lists or objects, not categories; drop it.") from None
    words = texts(distinct)
    lookup = pd.Index(column.categories, dtype=object).get_indexer(pd.Index(words, dtype=object))
    lookup[(lookup < 0) & np.isin(words.astype(str), marks)] = len(column.categories)
    # Code -1, for what pandas itself takes for missing, reads the entry appended here.
    return np.append(lookup, len(column.categories))[codes]


def _code_labels(series: pd.Series[Any], schema: Schema, marks: Sequence[str]) -> tuple[np.ndarray[Any, Any], bool]:
    """The coded target, and whether some of its numbers lie beyond their bounds."""
    beyond, unknown = False, 0
    if schema.target.bounds is not None:
        # A missing target is counted as any missing number, by the indicator beside it, and then refused.
        target = Column(schema.target.name, *schema.target.bounds, missing=True)
        coded = np.empty((len(series), 2), np.float32)
        beyond = _code_numbers(series, target, marks, coded)
        labels, missing = coded[:, 0].copy(), int(np.count_nonzero(coded[:, 1]))
    else:
        target = Column(schema.target.name, categories=schema.classes)
        labels = _slots(series, target, marks).astype(np.int64)
        missing, unknown = int((labels == len(schema.classes)).sum()), int((labels < 0).sum())
    if missing:
        raise DataError(f"the target {target.name!r} is missing in {missing} rows; drop those rows.")
    if unknown:
        raise DataError(
            f"the target {target.name!r} is none of the {len(schema.classes)} classes in {unknown} rows; correct the "
            "rows or the schema's classes."
        )
    if target.categories and (labels == labels[0]).all():
        raise DataError(f"the target {target.name!r} has one class only; there is nothing to learn.")
    return labels, beyond


def _check_missing(count: int, column: Column) -> None:
    if count and not column.missing:
        raise DataError(
            f"column {column.name!r} has {count} missing values; fill them, drop those rows, or give a schema that "
            "says the column may be missing."
        )


def _bounds(column: Column) -> tuple[float, float]:
    if column.low is None or column.high is None:
        raise SettingError(f"column {column.name!r} has neither bounds nor categories.")
    return column.low, column.high


def _decode_numbers(part: np.ndarray[Any, Any], column: Column) -> Any:
    import pandas as pd

    low, high = _bounds(column)
    values = low + np.clip(part[:, 0], 0.0, 1.0) * (high - low)
    missing = part[:, 1] > 0.5 if column.missing else np.zeros(len(part), bool)
    if not column.integer:
        return np.where(missing, np.nan, values)
    whole = np.round(values).astype(np.int64)
    return pd.arrays.IntegerArray(whole, missing) if column.missing else whole


def _decode_categories(part: np.ndarray[Any, Any], column: Column) -> Any:
    if not len(part):
        return _named(np.zeros(0, np.int64), column)
    slots = part.argmax(axis=1)
    return _named(np.where(part.max(axis=1) > 0, slots, len(column.categories)), column)


def _named(slots: np.ndarray[Any, Any], column: Column) -> Any:
    """The categories at `slots`, in the type they had; the slot past the list is a missing value."""
    import pandas as pd

    missing = slots == len(column.categories)
    kept = np.where(missing, 0, slots)
    if column.integer:
        whole = np.array([int(category) for category in column.categories], np.int64)[kept]
        return pd.arrays.IntegerArray(whole, missing) if missing.any() or column.missing else whole
    if set(column.categories) <= {"False", "True"}:
        truths = np.array([category == "True" for category in column.categories])[kept]
        return pd.arrays.BooleanArray(truths, missing) if missing.any() or column.missing else truths
    words = np.array(column.categories, dtype=object)[kept]
    words[missing] = None
    return words


def _remark(columns: list[str], what: str) -> tuple[str, ...]:
    if not columns:
        return ()
    count = "1 column holds" if len(columns) == 1 else f"{len(columns)} columns hold"
    return (f"{count} {what}: {_listed(columns)}.",)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


# A schema read off the records, for tables that come without one. Nothing is proven of what it reads.


MOST_CATEGORIES = 100
MOST_CLASSES = 1000
MOST_UNASKED = 20
"""Whole numbers that are taken for classes without asking."""

_DATE = r"(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})(?:[T ]\d{1,2}:\d{2}.*)?"


def draft(
    frame: pd.DataFrame,
    target: str,
    *,
    name: str,
    task: Task | None = None,
    target_bounds: tuple[float, float] | None = None,
    person: str | None = None,
) -> Schema:
    """The schema that fits a table: bounds, categories and classes as the records have them.

    A start for a schema file of the user's, who knows which bounds are public; used as it is where there is none.
    Dates and free text have no bounds or lists worth having and are refused.

    Formal guarantee
    ----------------
    None: the least and the largest value of a column are two people's records. The result is
    marked as `drafted`, so that nothing is proven with it.
    """
    if target not in frame.columns:
        there = ", ".join(str(column) for column in frame.columns)
        raise SettingError(f"{name} has no column {target!r} to predict; its columns are {there}.")
    if frame.empty:
        raise DataError(f"{name} has no records, only a header; give a table with rows.")
    if person is not None and person not in frame.columns:
        raise SettingError(f"{name} has no column {person!r} that could tell whose a row is.")
    kept = [column for column in frame.columns if column not in (target, person)]
    columns = {str(column): _draft_column(frame[column], str(column)) for column in kept}
    if not columns:
        raise DataError(f"{name} has no column besides the target {target!r}; there is nothing to learn from.")
    about = _draft_target(frame[target], target, task, target_bounds)
    return Schema(columns=columns, target=about, drafted=True, person=person)


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
    values = _numbers(series, name, MISSING_VALUES)
    found = _draft_bounds(values[~np.isnan(values)], name, series.dtype, False)
    low, high = bounds or (found.low, found.high)
    whole = found.integer or task == "count"
    return make_target(name=name, low=low, high=high, integer=whole, task=task or "regression")


def _draft_column(series: pd.Series[Any], name: str) -> ColumnSchema:
    import pandas as pd

    kind = series.dtype
    missing = bool(series.isna().any())
    if series.isna().all():
        raise DataError(f"column {name!r} is empty; drop it.")
    if pd.api.types.is_datetime64_any_dtype(kind) or pd.api.types.is_timedelta64_dtype(kind):
        raise _date(name)
    if pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind):
        return _draft_bounds(series.to_numpy(np.float64, na_value=np.nan), name, kind, missing)
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


def _draft_bounds(values: np.ndarray[Any, np.dtype[np.float64]], name: str, kind: Any, missing: bool) -> ColumnSchema:
    import pandas as pd

    known = values[~np.isnan(values)]
    if not np.isfinite(known).all():
        raise DataError(f"column {name!r} holds infinite numbers; replace them by finite ones.")
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
        raise DataError(f"column {name!r} holds lists or objects, not numbers or categories; drop it.") from None
    return np.unique(words)


def _date(name: str) -> DataError:
    return DataError(f"column {name!r} holds dates; drop it, or turn it into numbers such as days or years.")
