"""Tables to tensors and back by a schema: numbers and dates scaled by bounds, categories one-hot, texts hashed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from noiseproof.data.compact import CompactTable, Kept, narrow
from noiseproof.data.dataset import Column, Dataset, Public
from noiseproof.data.lazy import SMALL, StoredTensor
from noiseproof.data.persons import numbered, person_hashes
from noiseproof.data.schema import Schema
from noiseproof.errors import DataError, SettingError

if TYPE_CHECKING:
    import pandas as pd
from noiseproof.data.cells import MISSING_VALUES, as_words, check_rows, dates, numbers, texts

READ_OFF = (
    "bounds, categories and classes were read off the records, which no guarantee accounts for; give a schema of public "
    "ones, without the mark `drafted`."
)

_TEXTS = 1 << 12
"""Texts that are hashed together."""


def layout(columns: Sequence[Column]) -> list[tuple[Column, slice]]:
    """Where each column's coded features lie: a number (and its missing-indicator), or one slot a category.

    Args:
        columns: A table's columns, as `Public.columns` has them.

    Returns:
        Each column with the slice of its coded features.

    Examples:
        >>> from noiseproof.data import Column, layout
        >>> [place for _, place in layout([Column("age", 0, 120), Column("job", categories=("nurse", "other"))])]
        [slice(0, 1, None), slice(1, 3, None)]
    """
    ends = accumulate(column.width for column in columns)
    return [(column, slice(end - column.width, end)) for column, end in zip(columns, ends, strict=True)]


def code(
    frame: pd.DataFrame, schema: Schema, *, name: str, notes: tuple[str, ...] = (), compact: bool = False
) -> tuple[Dataset, tuple[str, ...]]:
    """Code a table by its schema; also returns remarks for the data's owner, which must not be released.

    Numbers are scaled to [0, 1] by the column's bounds and clipped to it. Categories become one-hot; a category that is
    not in the list becomes all zeros. Where a column may be missing, a missing number is coded as the middle of its
    bounds with an indicator beside it, and a missing category has a slot of its own. With `compact`, features of more than
    256 MB are a `StoredTensor` of a `CompactTable`: coded when they are looked at.

    Formal guarantee
    ----------------
    With a public schema every record is coded by itself, by a map that does not depend on any other record. So
    neighbouring tables, under add-or-remove as under replace-one, are coded as neighbouring data sets, and what is
    proven for the coded records holds for the table's rows. With a drafted schema the map depends on all the records and
    nothing is proven of it; the public part says so (`bounds` is `data`). The remarks depend on the records and carry no
    guarantee.
    """
    check_rows(frame, name)
    if schema.private:
        raise SettingError(
            f"the bounds or categories of {listed(schema.private)} are still to be bought from the records; `noiseproof data "
            "FILE --schema SCHEMA --buy-bounds NEW --epsilon E` does that once, and NEW is then the schema to use."
        )
    problems = Problems(name)
    check_columns(frame, schema, name, problems)
    order = tuple(column for column in frame.columns if column in schema.names and column != schema.person)
    columns = schema.features(order)
    marks = (*MISSING_VALUES, *schema.missing_values)
    compact = compact and 4 * len(frame) * sum(column.width for column in columns) > SMALL
    features, clipped, unlisted = _code_features(frame, columns, marks, problems, compact=compact)
    groups = None
    with problems.noted():
        if schema.person in frame.columns:
            groups = torch.from_numpy(numbered(hashed_persons(frame, schema)))
    with problems.noted():
        if schema.target.name in frame.columns:
            labels, beyond = _code_labels(frame[schema.target.name], schema, marks)
            clipped += [schema.target.name] * beyond
    problems.check()
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
        person=schema.person,
        missing_values=schema.missing_values,
        bought=schema.bought,
    )
    return Dataset(name, features, torch.from_numpy(labels), public, groups), _remarks(clipped, unlisted)


def code_rows(frame: pd.DataFrame, public: Public, *, name: str = "the table") -> tuple[torch.Tensor, tuple[str, ...]]:
    """Code rows of a table without their target, as the records were that `public` describes; also returns remarks.

    Args:
        frame: A table with every column that was learned from; others are left alone.
        public: What is public about the records that a release was made from.
        name: What to call the table in messages.

    Returns:
        The coded features, and remarks about values beyond what is public.

    Raises:
        SettingError: If `public` describes no table.
        DataError: If columns are missing, or hold what the schema does not allow; all of it is named at once.

    Formal guarantee
    ----------------
    None is needed: rows that are asked about are the asker's own, and what is used besides them is public.
    """
    if public.kind != "table":
        raise SettingError(f"this release was not made from a table, so that it takes coded records, not {name}.")
    problems = Problems(name)
    absent = [column.name for column in public.columns if column.name not in frame.columns]
    if absent:
        others = [str(column) for column in frame.columns if column not in public.order]
        instead = f" (it has {listed(others)} instead)" if others else ""
        problems.append(f"{name} has no column {listed(absent)}, which the release was trained on{instead}.")
    features, *beyond = _code_features(frame, public.columns, (*MISSING_VALUES, *public.missing_values), problems)
    problems.check()
    return features, _remarks(*beyond)


def answers_table(
    public: Public, answers: torch.Tensor, *, labels_only: bool = False, named: torch.Tensor | None = None
) -> pd.DataFrame:
    """A release's answers in the user's own words.

    Args:
        public: What is public about the records that the release was made from.
        answers: Class probabilities, (rows, classes); or coded numbers, one a row, where the target is numeric, perhaps with
            the two ends of an interval behind.
        labels_only: Whether the answers are labels without probabilities.
        named: The class that each answer names, if not the likeliest.

    Returns:
        A column `prediction` (the class as the table has it, or a number in the target's units) and, of classes, a column
        `p(CLASS)` for each; of numbers with intervals, columns `lower` and `upper`.

    Formal guarantee
    ----------------
    Post-processing: reads only its arguments, so it costs nothing beyond what made them.
    """
    import pandas as pd

    if public.target_bounds is not None:
        numbers = public.in_units(answers.detach().cpu().double().view(len(answers), -1)).numpy()
        return pd.DataFrame(dict(zip(("prediction", "lower", "upper"), numbers.T, strict=False)))
    target = Column("prediction", categories=public.classes, integer=public.integer_classes)
    table = {"prediction": _named((answers.argmax(1) if named is None else named).cpu().numpy(), target)}
    shares = {} if labels_only else {f"p({name})": answers[:, k].cpu().numpy() for k, name in enumerate(public.classes)}
    return pd.DataFrame({**table, **shares})


class Problems(list[str]):
    """What is wrong with a table, so that all of it can be said at once."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note an error about the data rather than raise it."""
        try:
            yield
        except DataError as error:
            self.append(str(error))

    def check(self) -> None:
        """Raise one error that names all problems."""
        if len(self) > 1:
            each = " ".join(f"({place}) {problem}" for place, problem in enumerate(self, 1))
            raise DataError(f"{self.name} has {len(self)} problems: {each}")
        if self:
            raise DataError(self[0])


def _code_features(
    frame: pd.DataFrame, columns: Sequence[Column], marks: Sequence[str], problems: Problems, *, compact: bool = False
) -> tuple[torch.Tensor, list[str], list[str]]:
    """The coded features, the columns with values beyond their bounds, and those with categories beyond their list."""
    features = np.zeros((len(frame), 0 if compact else sum(column.width for column in columns)), np.float32)
    clipped, unlisted = [], []
    kept: list[Kept] = []
    for column, place in layout(columns):
        if column.name not in frame.columns:
            continue
        series, out = frame[column.name], features[:, place]
        if compact and not column.categories:
            out = np.zeros((len(frame), column.width), np.float32)
        with problems.noted():
            if column.text:
                _code_texts(series, column, marks, out)
            elif column.numeric:
                clipped += [column.name] * _code_numbers(series, column, marks, out)
            else:
                slots = _slots(series, column, marks)
                _check_missing(int((slots == len(column.categories)).sum()), column)
                rows = np.flatnonzero(slots >= 0)
                unlisted += [column.name] * (len(rows) < len(slots))
                if compact:
                    out = narrow(slots, column)
                else:
                    out[rows, slots[rows]] = 1.0
        kept.append(out)
    whole = torch.from_numpy(features)
    return StoredTensor(CompactTable(columns, kept)) if compact and not problems else whole, clipped, unlisted


def hashed_persons(frame: pd.DataFrame, schema: Schema) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """`person_hashes` of the schema's column of ids."""
    return person_hashes(frame[schema.person].to_numpy(), f"column {schema.person!r}", schema.missing_values)


def decode(public: Public, features: torch.Tensor, labels: torch.Tensor, *, digits: int | None = None) -> pd.DataFrame:
    """The table that coded records stand for: columns in the file's order, whole numbers rounded, categories by name.

    The inverse of `code` for values within their bounds (to float32's precision: whole numbers are exact where their
    range is below 2^23). Generated records may lie between codes: the largest slot names the category, an indicator
    above a half means missing. A record with no slot above zero has no listed category and is decoded as missing.

    Args:
        public: What is public about the table.
        features: Coded records, (records, *shape).
        labels: Their coded target, (records,).
        digits: Significant digits of numbers, counted from their public lower bound; None for all that there are.

    Returns:
        The table.

    Raises:
        SettingError: If `public` describes no table, or a column is hashed text.
        DataError: If features or labels do not fit it.

    Formal guarantee
    ----------------
    Post-processing: reads only its arguments, so it costs nothing beyond what made them.

    Examples:
        >>> import torch
        >>> from noiseproof.data import Column, Public, decode
        >>> columns = (Column("age", 0, 120, integer=True), Column("job", categories=("nurse", "other")))
        >>> public = Public(shape=(3,), classes=("no", "yes"), kind="table", columns=columns, target="ill")
        >>> decode(public, torch.tensor([[0.25, 0.9, 0.1]]), torch.tensor([1]))
           age    job  ill
        0   30  nurse  yes
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
        if column.text:
            raise SettingError(f"column {column.name!r} is hashed text, which cannot be turned back; skip it.")
        part = coded[:, place]
        decoded[column.name] = (
            _decode_numbers(part, column, digits) if column.numeric else _decode_categories(part, column)
        )
    answers = labels.detach().cpu().numpy()
    if public.target_bounds is None:
        target = Column(public.target, categories=public.classes, integer=public.integer_classes)
        decoded[public.target] = _named(answers, target)
    else:
        target = Column(public.target, *public.target_bounds, integer=public.integer_classes)
        decoded[public.target] = _decode_numbers(answers.astype(np.float64)[:, None], target, digits)
    return pd.DataFrame({name: decoded[name] for name in public.order or decoded})


def check_columns(frame: pd.DataFrame, schema: Schema, name: str, problems: Problems) -> None:
    """Note columns that the schema names and the table lacks, and the other way round."""
    absent = [column for column in schema.names if column not in frame.columns]
    if absent:
        problems.append(
            f"{name} has no column {listed(absent)}, which the schema names; correct the schema or the file."
        )
    extra = [str(column) for column in frame.columns if column not in (*schema.names, *schema.skip)]
    if extra and schema.others == "refuse":
        problems.append(
            f"{name} has columns that the schema does not name ({listed(extra)}); add them, skip them, or set its `others` "
            "to `ignore`."
        )


def _code_numbers(series: pd.Series[Any], column: Column, marks: Sequence[str], out: np.ndarray[Any, Any]) -> bool:
    values = dates(series, column, marks) if column.date else numbers(series, column.name, marks)
    missing = np.isnan(values)
    _check_missing(int(missing.sum()), column)
    if not np.isfinite(values[~missing]).all():
        raise DataError(f"column {column.name!r} holds infinite numbers; replace them with finite ones.")
    low, high = _bounds(column)
    with np.errstate(invalid="ignore"):
        outside = bool(((values < low) | (values > high)).any())
    scaled = np.clip((values - low) / (high - low), 0.0, 1.0)
    out[:, 0] = np.where(missing, 0.5, scaled)
    if column.missing:
        out[:, 1] = missing
    return outside


def _code_texts(series: pd.Series[Any], column: Column, marks: Sequence[str], out: np.ndarray[Any, Any]) -> None:
    """Words and pairs of words, counted at places that a public hash tells, and scaled to norm 1."""
    from sklearn.feature_extraction.text import HashingVectorizer

    words, _ = as_words(series, marks)
    hashed = HashingVectorizer(n_features=column.text, ngram_range=(1, 2), alternate_sign=False, dtype=np.float32)
    for start in range(0, len(words), _TEXTS):
        part = slice(start, start + _TEXTS)
        out[part] = hashed.transform(words.iloc[part].fillna("")).toarray()


def _slots(series: pd.Series[Any], column: Column, marks: Sequence[str]) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Each record's place in the list of categories: -1 where it is not in it, the list's length where missing."""
    import pandas as pd

    try:
        codes, distinct = pd.factorize(series)
        if series.dtype == object and pd.api.types.infer_dtype(series) != "string":
            # To pandas 1, 1.0 and True are one value, and whichever comes first has named the others.
            codes, distinct = pd.factorize(pd.Series(texts(series)).where(series.notna().to_numpy()))
    except TypeError:
        raise DataError(f"column {column.name!r} holds lists or objects, not categories; skip it.") from None
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


def _decode_numbers(part: np.ndarray[Any, Any], column: Column, digits: int | None) -> Any:
    import pandas as pd

    low, high = _bounds(column)
    values = low + np.clip(part[:, 0], 0.0, 1.0) * (high - low)
    missing = part[:, 1] > 0.5 if column.missing else np.zeros(len(part), bool)
    if column.date:
        days = pd.Series(pd.to_datetime(np.round(values), unit="D"))
        written = days.dt.strftime("%Y-%m-%d" if column.date == "ISO8601" else column.date).to_numpy(object)
        written[missing] = None
        return written
    if not column.integer:
        return np.where(missing, np.nan, values if digits is None else _rounded(values, low, high, digits))
    whole = np.round(values).astype(np.int64)
    return pd.arrays.IntegerArray(whole, missing) if column.missing else whole


def _rounded(values: np.ndarray[Any, Any], low: float, high: float, digits: int) -> np.ndarray[Any, Any]:
    """Numbers to so many digits of their distance from `low`: small amounts keep theirs, years do not lose their days."""
    # Below a ten-thousandth of the range there is little that float32 knows.
    size = np.floor(np.log10(np.maximum(values - low, 1e-4 * (high - low)))).astype(np.int64)
    places = digits - 1 - size
    # Powers of ten that are whole numbers are exact, and so is what is divided by them, but for the last bit.
    finer, coarser = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
    return np.clip(np.round(values * finer / coarser) * coarser / finer, low, high)


def _decode_categories(part: np.ndarray[Any, Any], column: Column) -> Any:
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


def _remarks(clipped: list[str], unlisted: list[str]) -> tuple[str, ...]:
    found = []
    for columns, what in (
        (clipped, "values outside the public bounds, which were clipped to them"),
        (unlisted, "categories outside the public list, which were coded as none of them"),
    ):
        if columns:
            count = "1 column holds" if len(columns) == 1 else f"{len(columns)} columns hold"
            found.append(f"{count} {what}: {listed(columns)}. (For the owner's eyes: this depends on the records.)")
    return tuple(found)


def listed(names: Sequence[str]) -> str:
    """The first names of a list, for a sentence."""
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
