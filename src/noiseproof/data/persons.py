"""Whose each record is: ids of any kind become numbers, and no id is kept or said."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from noiseproof.data.cells import MISSING_VALUES, texts
from noiseproof.errors import DataError

Groups: TypeAlias = npt.NDArray[Any] | torch.Tensor | Sequence[Any]
"""An id a record: numbers or texts."""


def group_array(groups: Groups, records: int, name: str) -> torch.Tensor:
    """Whose each record is, as numbers from 0 on without gaps.

    Args:
        groups: An id a record. Numbers that are as wanted already stay as they are; other ids are numbered in the order in
            which they first come. Texts are compared without outer blanks.
        records: How many records there are.
        name: What has them, for messages.

    Returns:
        int64 of (records,).

    Raises:
        DataError: If there are more or fewer ids than records, or some are missing or of mixed types.
    """
    if isinstance(groups, torch.Tensor) and groups.shape == (records,) and _numbered(groups):
        return groups
    ids = _array(groups)
    if ids.shape != (records,):
        raise DataError(f"{name} has {records} records but groups of shape {ids.shape}; give one id a record.")
    return torch.from_numpy(numbered(ids if ids.dtype.kind in "iu" else _texts(ids, f"the array groups of {name}")))


def person_hashes(groups: Groups, what: str, missing_values: Sequence[str] = ()) -> npt.NDArray[np.uint64]:
    """A number of 64 bits for each record that is the same for all records of a person, also in another part of a file.

    Two ids that meet by chance (3 in a million, with ten million persons) are taken for one person, whom everything that
    is proven then covers as a whole.

    Args:
        groups: An id a record.
        what: What holds them, for messages.
        missing_values: Texts that stand for a missing id.

    Raises:
        DataError: If some are missing or of mixed types.
    """
    import pandas as pd

    return pd.util.hash_array(_texts(_array(groups), what, missing_values))


def numbered(ids: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Ids as numbers from 0 on, in the order in which they first come."""
    import pandas as pd

    return pd.factorize(ids)[0].astype(np.int64)


def folded(groups: Groups) -> npt.NDArray[np.uint64]:
    """`person_hashes` of ids as they would be if leading zeros, case, the coding of accents and `.0` did not matter."""
    import pandas as pd

    places, words = pd.factorize(texts(_array(groups)))
    plain = [re.sub(r"^0+|\.0+$", "", unicodedata.normalize("NFKC", word).casefold()) for word in words]
    return pd.util.hash_array(np.array(plain, object))[places]


def person_remarks(exact: npt.NDArray[np.uint64], alike: npt.NDArray[np.uint64]) -> tuple[str, ...]:
    """What the data's owner should hear of the persons of a table. It depends on the records.

    Args:
        exact: `person_hashes` of all rows.
        alike: `folded` of all rows.
    """
    counts = np.unique(exact, return_counts=True)[1]
    remarks, found, share = [], len(counts) - len(np.unique(alike)), counts.max() / len(exact)
    if found:
        remarks.append(
            f"{found} ids of persons differ from another one only as 007 and 7.0 do from 7, or Ann from ann. They count as "
            "different persons; where they are the same, write the id in one way, or the guarantee does not cover that person."
        )
    if share > 0.5 and len(counts) > 1:
        remarks.append(
            f"one person has {share:.0%} of all rows. They count as one person like any other, so that most of those rows are "
            "hardly learned from; if the id stands for nobody in particular, give those rows ids of their own."
        )
    return tuple(remarks)


def _numbered(groups: torch.Tensor) -> bool:
    if groups.dtype != torch.int64 or not len(groups):
        return groups.dtype == torch.int64
    least, largest = (int(end) for end in groups.aminmax())
    return least == 0 and largest < len(groups) and bool(torch.bincount(groups).all())


def _array(groups: Groups) -> npt.NDArray[Any]:
    import pandas as pd

    if isinstance(groups, torch.Tensor):
        return groups.detach().cpu().numpy()
    # A list of numbers and texts would be all texts to numpy.
    return np.asarray(groups if hasattr(groups, "dtype") else pd.Series(groups))


def _texts(ids: npt.NDArray[Any], what: str, missing_values: Sequence[str] = ()) -> npt.NDArray[np.object_]:
    import pandas as pd

    if ids.dtype == object:
        kinds = {isinstance(one, str) for one in ids[~pd.isna(ids)]}
        if len(kinds) > 1:
            raise DataError(
                f"{what} tells whose a row is partly by texts and partly by numbers; write a person's id in one way, as a text."
            )
        if kinds == {False}:
            ids = np.asarray(pd.Series(ids).infer_objects())
    words = texts(ids)
    missing = int((pd.isna(ids) | np.isin(words.astype(str), (*MISSING_VALUES, *missing_values))).sum())
    if missing:
        raise DataError(
            f"{what}, which tells whose a row is, is empty in {missing} rows; give each row its person, or drop those rows."
        )
    return words
