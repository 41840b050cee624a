"""Conditions on synthetic rows: `age >= 60 and discharge >= admission`. They are public, and meeting them costs nothing."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from noiseproof.data import Column, Public, decode, layout
from noiseproof.data.cells import dates
from noiseproof.errors import DataError, SettingError
from noiseproof.methods.losses.coding import DIGITS
from noiseproof.methods.losses.differences import bounds, number_of

if TYPE_CHECKING:
    import pandas as pd

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_PART = re.compile(r"^\s*(.+?)\s*(>=|<=|!=|==|=|>|<)\s*(.+?)\s*$")


@dataclass(frozen=True)
class Conditions:
    """Comparisons of a column with a value, another column or a sum of others, all of which a row must meet.

    >>> Conditions.read("age >= 60 and sex = Female").parts
    (('age', '>=', '60'), ('sex', '=', 'Female'))
    """

    parts: tuple[tuple[str, str, str], ...] = ()

    @classmethod
    def read(cls, text: str) -> Conditions:
        """The conditions that a text states.

        Args:
            text: `COLUMN OP VALUE`, `COLUMN OP COLUMN` or, for a total of whole numbers, `COLUMN = COLUMN + COLUMN`, joined
                by `and`; OP is one of >= <= != = > <. Empty for none.

        Returns:
            The conditions.

        Raises:
            SettingError: If a part is no comparison.
        """
        found = []
        for part in re.split(r"\s+and\s+", text.strip()) if text.strip() else ():
            match = _PART.match(part)
            if match is None:
                raise SettingError(f"where is made of comparisons such as age >= 60, joined by and; {part!r} is none.")
            column, sign, value = match.groups()
            found.append((column, "=" if sign == "==" else sign, value.strip("'\"")))
        return cls(tuple(found))

    @property
    def any(self) -> bool:
        """Whether there is any condition."""
        return bool(self.parts)

    def of(self, public: Public) -> Conditions:
        """The conditions themselves, if they fit a table's columns; else a `SettingError`."""
        names = {column.name: column for column in public.columns}
        for total, summands in self._totals(public):
            _check_total(total, summands, names)
        for column, sign, value in self.parts:
            if column not in names and column != public.target:
                raise SettingError(f"where names the column {column!r}, which the table does not have.")
            if _summands(value, names):
                if sign != "=":
                    raise SettingError(f"where: a sum such as {value!r} is compared with = alone.")
                continue
            if column in names and names[column].numeric and value not in names:
                _number(names[column], value)
            if column in names and names[column].categories and sign in (">=", "<=", ">", "<"):
                raise SettingError(f"where: {column!r} holds categories, which are = or !=, not {sign}.")
            later, earlier = (value, column) if sign in ("<", "<=") else (column, value)
            high, low = names.get(later), names.get(earlier)
            if sign in (">=", "<=", ">", "<") and high and low and high.numeric and low.numeric:
                assert high.high is not None
                assert low.low is not None
                if bool(high.date) == bool(low.date) and high.high < low.low:
                    raise SettingError(f"where: by their public bounds {later!r} is always below {earlier!r}.")
        return self

    def fill(self, public: Public, features: torch.Tensor) -> torch.Tensor:
        """Coded records with every total made of its summands, where a record has all of them; they are changed in place.

        One that its public bounds do not allow stays as it was, and `met` refuses the record.
        """
        places = {column.name: (column, place.start) for column, place in layout(public.columns)}
        for total, summands in self._totals(public):
            kept, sum_ = torch.ones(len(features), dtype=torch.bool), torch.zeros(len(features), dtype=torch.float64)
            for name in (total, *summands):
                column, place = places[name]
                if column.missing:
                    kept &= features[:, place + 1] <= 0.5
            for name in summands:
                column, place = places[name]
                sum_ += number_of(column, features[:, place], True)
            column, place = places[total]
            low, high = bounds(column)
            kept &= (sum_ >= low) & (sum_ <= high)
            features[kept, place] = ((sum_[kept] - low) / (high - low)).float()
        return features

    def _totals(self, public: Public) -> list[tuple[str, list[str]]]:
        names = {column.name: column for column in public.columns}
        return [(column, found) for column, _, value in self.parts if (found := _summands(value, names))]

    def orders(self, public: Public) -> list[tuple[str, str]]:
        """Columns of numbers, or of dates, that come after another which no record lacks: (later, earlier), each once."""
        names = {column.name: column for column in public.columns if column.numeric}
        found: dict[str, str] = {}
        for left, sign, right in self.parts:
            later, earlier = (right, left) if sign in ("<", "<=") else (left, right)
            if sign in ("=", "!=") or later not in names or earlier not in names or names[earlier].missing:
                continue
            alike = bool(names[later].date) == bool(names[earlier].date)
            wide = (names[later].high or 0.0) > (names[earlier].low or 0.0)
            if alike and wide and not {later, earlier} & {*found} and later not in found.values():
                found[later] = earlier
        return [*found.items()]

    def met(self, public: Public, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Which coded records meet all of them as they will be written, (records,).

        A missing value meets no comparison with a value, as in SQL's `where`. A comparison of two columns is a rule for
        records that have both, as in SQL's `check`: who is still there has no discharge.
        """
        if not self.parts:
            return torch.ones(len(labels), dtype=torch.bool)
        names = {column.name: column for column in public.columns}
        frame = decode(public, features, labels, digits=DIGITS)
        keep = torch.ones(len(labels), dtype=torch.bool)
        for column, sign, value in self.parts:
            left = _compared(frame[column], names.get(column))
            others = _summands(value, names) or ([value] if value in frame else [])
            other: Any = (
                sum(_compared(frame[name], names.get(name)) for name in others)
                if others
                else _like(left, column, value, names)
            )
            found = _OPERATORS[sign](left, other) & left.notna()
            if others:
                found |= left.isna() | other.isna()
            keep &= torch.from_numpy(found.fillna(False).to_numpy(dtype=bool, copy=True))
        return keep


def _summands(value: str, names: dict[str, Column]) -> list[str]:
    """The columns that a text adds up, if it does."""
    found = [name.strip() for name in value.split(" + ")]
    return found if value not in names and len(found) > 1 else []


def _check_total(total: str, summands: Sequence[str], names: dict[str, Column]) -> None:
    for name in (total, *summands):
        if name not in names:
            raise SettingError(f"where names the column {name!r}, which the table does not have.")
        column = names[name]
        if not column.integer or not column.numeric or column.date:
            raise SettingError(
                f"where: totals are of whole numbers, which {name!r} is not by the schema; give amounts in cents, say."
            )
    if total in summands or len({*summands}) < len(summands):
        raise SettingError(f"where: {total!r} is to be a sum of other columns, each once.")
    least, most = (sum(bounds(names[name])[side] for name in summands) for side in (0, 1))
    low, high = bounds(names[total])
    if most < low or least > high:
        raise SettingError(f"where: by their public bounds {total!r} is never {' + '.join(summands)}.")


def _compared(values: pd.Series[Any], column: Column | None) -> pd.Series[Any]:
    """A column's values, dates as days: as texts, 2 February would come before 10 January."""
    import pandas as pd

    return values if column is None or column.date is None else pd.Series(dates(values, column, ()))


def _like(left: pd.Series[Any], name: str, value: str, names: dict[str, Column]) -> Any:
    import pandas as pd

    return _number(names.get(name, Column(name)), value) if pd.api.types.is_numeric_dtype(left) else value


def _number(column: Column, value: str) -> float:
    """What a number or a date is compared with."""
    import pandas as pd

    try:
        return float(dates(pd.Series([value]), column, ())[0]) if column.date else float(value)
    except ValueError:
        raise SettingError(f"where compares the number {column.name!r} with {value!r}, which is none.") from None
    except DataError:
        raise SettingError(
            f"where compares the date {column.name!r} with {value!r}, which is none that is written as {column.date}."
        ) from None
