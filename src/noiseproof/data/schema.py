"""Schema: what is public about a table's columns, from a file of the user's or built in."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError, model_validator

from noiseproof.data.dataset import Bought, Column, Public, Task
from noiseproof.errors import SettingError

Category = StrictStr | StrictInt

_EPOCH = datetime.date(1970, 1, 1).toordinal()


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ColumnSchema(_Part):
    """One column: public bounds `low` and `high` of its numbers or dates, its public `categories`, or free `text`."""

    low: float | datetime.date | None = None
    high: float | datetime.date | None = None
    categories: tuple[Category, ...] = ()
    integer: bool = False
    missing: bool = False
    """Whether a record may lack it; an empty cell in a column that is not marked so is refused."""
    date: str | None = None
    """How dates are written, as `strptime` has it (`%d.%m.%Y`); where the bounds are dates, ISO 8601 by default."""
    text: int = Field(default=0, ge=0, le=1 << 16)
    """Into how many features free text is hashed: words and pairs of words, by a public hash."""
    private: Literal["bounds", "categories"] | None = None
    """What is not public and is to be bought from the records (`buy_bounds`). `low` and `high`, if given, are then a wide
    public range within which bounds are looked for."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        dates = [isinstance(bound, datetime.date) for bound in (self.low, self.high)]
        if self.text or self.categories:
            if self.low is not None or self.high is not None or self.date or (self.text and self.categories):
                raise ValueError("a column has low and high, or categories, or text, not two of them")
            if self.text and self.missing:
                raise ValueError("a text may always be empty; leave `missing` out")
            _distinct(self.categories, "categories")
            if self.private:
                raise ValueError("what is public already is not bought; leave `private`, or categories and text, out")
        elif self.private and self.low is None and self.high is None:
            if self.date:
                raise ValueError("dates need a wide public range, low and high, to look for their bounds in")
        elif self.private == "categories":
            raise ValueError("a column has low and high, or categories to be bought, not both")
        elif self.low is None or self.high is None:
            raise ValueError("a column needs low and high, or categories, or text")
        elif any(dates) != all(dates) or (self.date and not all(dates)):
            raise ValueError("low and high are both numbers, or both dates such as 2024-12-31")
        elif self.low >= self.high:  # type: ignore[operator]
            raise ValueError("low must be less than high")
        if self.date:
            _check_format(self.date)
        return self

    def column(self, name: str) -> Column:
        """The column as a data set's public part describes it."""
        texts = tuple(_text(category) for category in self.categories)
        integer = is_whole(self.categories) if self.categories else self.integer
        written = (self.date or "ISO8601") if isinstance(self.low, datetime.date) else None
        low, high = (None if bound is None else as_number(bound) for bound in (self.low, self.high))
        return Column(name, low, high, texts, integer, self.missing, written, self.text)

    @classmethod
    def of(cls, column: Column) -> ColumnSchema:
        """What `column` was made from."""
        bounds = [as_day(bound) if column.date and bound is not None else bound for bound in (column.low, column.high)]
        return cls(
            low=bounds[0],
            high=bounds[1],
            categories=as_written(column.categories, column.integer),
            integer=column.integer and column.numeric,
            missing=column.missing,
            date=column.date,
            text=column.text,
        )


class TargetSchema(_Part):
    """The column to predict: the public list of its `classes`, or, of a number, its public bounds `low` and `high`."""

    name: str
    classes: tuple[Category, ...] = ()
    low: float | None = None
    high: float | None = None
    integer: bool = False
    """Whether a numeric target holds whole numbers."""
    task: Task = "classification"
    """`regression` or `count` for a number; what is not said is told by `classes` or the bounds."""
    shares: tuple[float, ...] = ()
    """How common each class is, where that is public knowledge: never read off the records."""
    private: Literal["bounds"] | None = None
    """As for a column: the bounds of a numeric target are to be bought from the records."""

    @model_validator(mode="before")
    @classmethod
    def _told_by_bounds(cls, given: Any) -> Any:
        if isinstance(given, dict) and ("low" in given or "private" in given) and "task" not in given:
            return {**given, "task": "regression"}
        return given

    @model_validator(mode="after")
    def _classes_or_bounds(self) -> Self:
        if self.task == "classification":
            if self.low is not None or self.high is not None or len(self.classes) < 2:
                raise ValueError("a target has at least two classes, or low and high")
            _distinct(self.classes, "classes")
            if self.shares and (len(self.shares) != len(self.classes) or min(self.shares) <= 0):
                raise ValueError("shares are one number above 0 for each class")
            if self.shares and abs(sum(self.shares) - 1) > 1e-3:
                raise ValueError("the shares of the classes add up to 1")
        elif self.shares:
            raise ValueError("only classes have shares")
        elif self.private and not self.classes and self.low is None and self.high is None:
            pass
        elif self.classes or self.low is None or self.high is None or not self.low < self.high:
            raise ValueError(f"the target of a {self.task} has low and high, the first the lesser, and no classes")
        elif self.task == "count" and self.low < 0:
            raise ValueError("a count is at least 0")
        return self

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The bounds of a numeric target."""
        return None if self.low is None or self.high is None else (self.low, self.high)


class Schema(_Part):
    """What is public about a table: its columns, its target, and what to do with columns that it does not name.

    `read_schema` reads one from a file. Nothing in it may depend on the private records, unless it was bought from them
    (`buy_bounds`) or is marked as `drafted`.

    Examples:
        >>> from noiseproof.data import Schema
        >>> schema = Schema.model_validate(
        ...     {
        ...         "columns": {
        ...             "age": {"low": 0, "high": 120, "integer": True},
        ...             "job": {"categories": ["nurse", "teacher", "other"], "missing": True},
        ...             "admitted": {"low": "2015-01-01", "high": "2024-12-31"},
        ...         },
        ...         "target": {"name": "ill", "classes": ["no", "yes"]},
        ...     }
        ... )
        >>> schema.names
        ('age', 'job', 'admitted', 'ill')
    """

    columns: dict[str, ColumnSchema] = Field(min_length=1)
    """The columns to learn from, by name: the bounds (`low`, `high`), `categories` or `text` of each."""
    target: TargetSchema
    """The column to predict: its `name`, and its `classes` or, of a number, its bounds `low` and `high`."""
    others: Literal["refuse", "ignore"] = "refuse"
    """Whether a file may have columns that are not named here."""
    drafted: bool = False
    """Whether bounds, categories and classes were read off the records (`noiseproof data --draft-schema` marks it so).
    Nothing is proven with a drafted schema: whoever knows what is public corrects it and then removes the mark."""
    missing_values: tuple[str, ...] = ()
    """Texts that stand for a missing value, besides the empty cell and the usual NA, NaN and null."""
    person: str | None = None
    """The column that tells whose a row is, where a person may have several. It is never a feature."""
    skip: tuple[str, ...] = ()
    """Columns of the file that are left alone: ids, names, free text."""
    encoding: str = "utf-8"
    """How a text file is encoded, such as `latin-1`."""
    bought: Bought | None = None
    """What was paid for bounds and categories, where `buy_bounds` found them."""

    @classmethod
    def of(cls, public: Public) -> Schema:
        """What a table's public part was made from, but for what it does not say (columns to skip, the encoding)."""
        low, high = public.target_bounds or (None, None)
        target = TargetSchema(
            name=str(public.target),
            classes=as_written(public.classes, public.integer_classes),
            low=low,
            high=high,
            integer=public.integer_classes and not public.classes,
            task=public.task,
        )
        return cls(
            columns={column.name: ColumnSchema.of(column) for column in public.columns},
            target=target,
            drafted=public.bounds == "data",
            missing_values=public.missing_values,
            person=public.person,
            bought=public.bought,
        )

    @model_validator(mode="after")
    def _roles_apart(self) -> Self:
        if self.target.name in self.columns:
            raise ValueError("the target is not to be among the columns as well")
        if self.person is not None and self.person in (*self.columns, self.target.name):
            raise ValueError("the person is not to be among the columns, or the target, as well")
        twice = set(self.skip) & set(self.names)
        if twice:
            raise ValueError(f"{sorted(twice)[0]!r} is to be skipped and used")
        return self

    @property
    def private(self) -> tuple[str, ...]:
        """The columns, the target among them, whose bounds or categories are still to be bought."""
        found: dict[str, ColumnSchema | TargetSchema] = {**self.columns, self.target.name: self.target}
        return tuple(name for name, part in found.items() if part.private)

    @property
    def classes(self) -> tuple[str, ...]:
        """The target's classes as texts."""
        return tuple(_text(name) for name in self.target.classes)

    @property
    def integer_classes(self) -> bool:
        """Whether the target is whole numbers, as classes or as a number."""
        return self.target.integer or (bool(self.target.classes) and is_whole(self.target.classes))

    def features(self, order: tuple[str, ...] = ()) -> tuple[Column, ...]:
        """The columns to learn from, in the order of the file's columns where given, else of the schema."""
        return tuple(self.columns[name].column(name) for name in order or tuple(self.columns) if name in self.columns)

    def with_target(self, name: str) -> Schema:
        """The same table with another of its columns to predict; the old target becomes a feature."""
        if name == self.target.name:
            return self
        column = self.columns.get(name)
        if column is None:
            raise SettingError(f"there is no column {name!r} to predict; there are {', '.join(self.names)}.")
        if column.missing or len(column.categories) == 1:
            raise SettingError(
                f"column {name!r} cannot be the target: it needs bounds or at least two categories, and no missing values."
            )
        columns = {key: value for key, value in self.columns.items() if key != name}
        old = self.target
        columns[old.name] = ColumnSchema(categories=old.classes, low=old.low, high=old.high, integer=old.integer)
        target = (
            TargetSchema(name=name, classes=column.categories)
            if column.categories
            else make_target(name=name, low=column.low, high=column.high, integer=column.integer)
        )
        return self.model_copy(update={"columns": columns, "target": target})

    def with_task(self, task: Task | None, bounds: tuple[float, float] | None) -> Schema:
        """The same table with its target taken as the task says, within these bounds if it is a number."""
        target = self.target
        task = task or (target.task if bounds is None or target.bounds else "regression")
        if task == target.task and bounds in (None, target.bounds):
            return self
        if task == "classification":
            raise SettingError(f"the schema's target {target.name!r} is a number, not classes; give it classes.")
        bounds = bounds or target.bounds
        if bounds is None:
            raise SettingError(f"the target {target.name!r} has classes; give its bounds to take it for a number.")
        whole = target.integer or task == "count"
        made = make_target(name=target.name, low=bounds[0], high=bounds[1], integer=whole, task=task)
        return self.model_copy(update={"target": made})

    def with_person(self, name: str | None) -> Schema:
        """The same table with `name` as the column that tells whose a row is; it is then no feature."""
        if name is None or name == self.person:
            return self
        if self.person is not None:
            raise SettingError(f"the schema's person is {self.person!r}, not {name!r}; give one of them.")
        if name == self.target.name:
            raise SettingError(f"column {name!r} is the target and cannot also tell whose a row is.")
        columns = {key: value for key, value in self.columns.items() if key != name}
        if not columns:
            raise SettingError(f"without {name!r} there is no column to learn from.")
        return self.model_copy(update={"columns": columns, "person": name})

    def without(self, skip: Sequence[str]) -> Schema:
        """The same table with these columns left alone, too."""
        if wrong := [name for name in skip if name in (self.target.name, self.person)]:
            raise SettingError(f"column {wrong[0]!r} is the target or the person and cannot be skipped.")
        columns = {key: value for key, value in self.columns.items() if key not in skip}
        if not columns:
            raise SettingError("every column is to be skipped; there is nothing to learn from.")
        return self.model_copy(update={"columns": columns, "skip": tuple(dict.fromkeys((*self.skip, *skip)))})

    @property
    def names(self) -> tuple[str, ...]:
        """Every column that is named: the features, the target and the person."""
        return (*self.columns, self.target.name, *(() if self.person is None else (self.person,)))

    def to_json(self) -> str:
        """The schema as the file that `read_schema` reads."""
        return self.model_dump_json(indent=2, exclude_defaults=True)


def read_schema(path: str | Path) -> Schema:
    """Read a schema file (JSON). Its contents are public, so errors may quote them.

    Args:
        path: The file.

    Returns:
        The schema.

    Raises:
        SettingError: If there is no such file, or it holds no schema; the message says where it does not fit.

    Examples:
        >>> from pathlib import Path
        >>> from noiseproof.data import read_schema
        >>> written = Path("schema.json").write_text(
        ...     '{"columns": {"age": {"low": 0, "high": 120}}, "target": {"name": "ill", "classes": ["no", "yes"]}}'
        ... )
        >>> read_schema("schema.json").target.name
        'ill'
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SettingError(f"there is no schema file {path}.") from None
    except (OSError, UnicodeDecodeError):
        raise SettingError(f"the schema {path} cannot be read; it must be a text file of JSON.") from None
    try:
        return Schema.model_validate(json.loads(text, object_pairs_hook=_no_duplicates))
    except json.JSONDecodeError as error:
        raise SettingError(f"the schema {path} is not valid JSON (line {error.lineno}).") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole"
        reason = first["msg"].removeprefix("Value error, ")
        raise SettingError(f"the schema {path} does not fit at {where}: {reason}.") from None
    except _DuplicateError as error:
        raise SettingError(f"the schema {path} names {str(error)!r} twice.") from None
    except (RecursionError, ValueError):
        raise SettingError(f"the schema {path} is nested too deeply, or holds a number that is too long.") from None


def make_target(**given: Any) -> TargetSchema:
    """A target of the user's own words; refused in words where they do not go together."""
    try:
        return TargetSchema(**given)
    except ValidationError as error:
        raise SettingError(f"{error.errors()[0]['msg'].removeprefix('Value error, ')}.") from None


def built_in(name: str) -> Schema:
    """The schema that comes with a named set, from the set's public documentation."""
    text = resources.files("noiseproof.data").joinpath("schemas", f"{name}.json").read_text(encoding="utf-8")
    return Schema.model_validate_json(text)


class _DuplicateError(Exception):
    """A JSON object names a key twice; the later would silently win."""


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _DuplicateError(key)
        found[key] = value
    return found


def as_written(texts: Sequence[str], integer: bool) -> tuple[str | int, ...]:
    """Categories or classes as a schema has them: whole numbers where they are."""
    return tuple(int(text) for text in texts) if integer else tuple(texts)


def _check_format(written: str) -> None:
    day = datetime.datetime(2024, 12, 31, 23, 59, 59)
    try:
        same = datetime.datetime.strptime(day.strftime(written), written).date() == day.date()
    except ValueError:
        same = False
    if not same and written != "ISO8601":
        raise ValueError("a date is written as strptime has it, with day, month and year, such as %d.%m.%Y")


def as_number(bound: float | datetime.date) -> float:
    """A bound as a number; a date as days since 1970."""
    return float(bound.toordinal() - _EPOCH) if isinstance(bound, datetime.date) else bound


def as_day(days: float) -> datetime.date:
    """The date so many days after 1970-01-01."""
    return datetime.date.fromordinal(_EPOCH + round(days))


def _text(category: str | int) -> str:
    return str(category).strip()


def is_whole(categories: tuple[str | int, ...]) -> bool:
    """Whether all of them are whole numbers."""
    return all(isinstance(category, int) for category in categories)


def _distinct(categories: tuple[str | int, ...], what: str) -> None:
    texts = [_text(category) for category in categories]
    if len(set(texts)) < len(texts):
        raise ValueError(f"{what} must differ from each other")
