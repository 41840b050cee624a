"""Arrays and tensors of the user's as data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypedDict, Unpack, get_args

import numpy as np
import torch

from noiseproof.data.dataset import Dataset, Kind, Public, Task
from noiseproof.data.persons import group_array
from noiseproof.errors import DataError, SettingError

Array: TypeAlias = np.ndarray[Any, Any]
ArrayLike: TypeAlias = np.ndarray[Any, Any] | torch.Tensor | Sequence[Any]
Bound: TypeAlias = float | Sequence[float] | np.ndarray[Any, Any]

_MOST_CLASSES = 1 << 20
"""Classes that may be counted: their names are made."""

READ_BOUNDS = (
    "the bounds of the features were read off the records, which no guarantee accounts for; give low and high to make "
    "them public."
)
READ_CLASSES = (
    "the classes were read off the records, which no guarantee accounts for; give the classes to make them public."
)
READ_TARGET = (
    "the bounds of the target were read off the records, which no guarantee accounts for; give target_bounds to make "
    "them public."
)


class Facts(TypedDict, total=False):
    """What is public about arrays; `from_arrays` explains each."""

    classes: int | Sequence[str] | None
    low: Bound | None
    high: Bound | None
    task: Task | None
    target_bounds: tuple[float, float] | None


def from_arrays(
    features: ArrayLike,
    labels: ArrayLike,
    *,
    name: str = "arrays",
    groups: ArrayLike | None = None,
    **facts: Unpack[Facts],
) -> Dataset:
    """A data set from arrays or tensors: records first; images as (records, height, width) with or without channels.

    `classes` (their number or their names) and `low` and `high` (numbers, or one a feature) are public knowledge;
    values outside are clipped. Bounds of images of bytes (0 and 255) and of truth values are known. What is not given
    and not known is read off the records, and the public part says so.

    Args:
        features: The records.
        labels: A class or a number for each.
        name: What the set is called.
        groups: Whose each record is, as any numbers or texts, where a person may have several.
        facts: `classes`, their number or names; `low` and `high`, the least and the largest value of the features; `task`,
            `regression` or `count` where the labels are numbers to predict; `target_bounds`, the public bounds of such
            labels, to which they are clipped.

    Returns:
        The coded records.

    Raises:
        DataError: If the arrays cannot be used.
        SettingError: If the arguments do not go together.

    Formal guarantee
    ----------------
    As for tables: with public bounds and classes every record is coded by itself and neighbours stay neighbours; where
    they are read off the records nothing is proven (`public.bounds` is `data`).

    Examples:
        >>> import numpy as np
        >>> from noiseproof.data import from_arrays
        >>> ages, ill = np.array([[20.0], [35.0], [61.0], [130.0]]), np.array([0, 1, 1, 0])
        >>> data = from_arrays(ages, ill, classes=["no", "yes"], low=0, high=120)
        >>> data.features[-1], data.public.bounds
        (tensor([1.]), 'public')
        >>> from_arrays(ages, ill).public.bounds  # nothing is proven of what is trained on this one
        'data'
    """
    dataset = code_arrays([(features, labels)], name, **facts)[0]
    return dataset if groups is None else replace(dataset, groups=group_array(groups, len(dataset), name))


def code_arrays(parts: Sequence[tuple[ArrayLike, ArrayLike]], name: str, **facts: Unpack[Facts]) -> list[Dataset]:
    """Several parts (a training and a test part) coded alike; what is read off the records is read off all of them."""
    features = [record_array(x, name) for x, _ in parts]
    for x, (_, y) in zip(features, parts, strict=True):
        check_lengths(len(x), len(y), name)
        if x.shape[1:] != features[0].shape[1:]:
            raise DataError(f"{name} has training and test records of different shapes.")
    public, labels, bounds = describe(features, [y for _, y in parts], name, **facts)
    return [Dataset(name, scaled(x, *bounds), y, public) for x, y in zip(features, labels, strict=True)]


def check_lengths(records: int, labels: int, name: str) -> None:
    """Refuse arrays without records, or with another number of labels."""
    if records != labels:
        raise DataError(f"{name} has {records} records but {labels} labels; give as many of both.")
    if not records:
        raise DataError(f"{name} has no records.")


def describe(
    features: list[Array],
    targets: Sequence[ArrayLike],
    name: str,
    *,
    classes: int | Sequence[str] | None = None,
    low: Bound | None = None,
    high: Bound | None = None,
    task: Task | None = None,
    target_bounds: tuple[float, float] | None = None,
) -> tuple[Public, list[torch.Tensor], tuple[Array, Array]]:
    """What is public about arrays, their coded labels, and the bounds of their features."""
    if task not in (None, *get_args(Task)):
        raise SettingError(f"the task is one of {', '.join(get_args(Task))}, not {task!r}.")
    numeric = task in ("regression", "count") or (task is None and target_bounds is not None)
    if numeric and classes is not None:
        raise SettingError(f"{name} has numbers to predict, which have no classes; give one of both.")
    if target_bounds is not None and not numeric:
        raise SettingError(f"the bounds of a target are for numbers, not for the classes of {name}.")
    labels = [label_array(y, name, numeric) for y in targets]
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    if numeric:
        if target_bounds is None:
            least, largest = min(y.min() for y in labels), max(y.max() for y in labels)
            target_bounds, notes = (float(least), float(largest if largest > least else least + 1)), (READ_TARGET,)
        labels = _code_numbers(labels, target_bounds, name)
        target_bounds = (float(target_bounds[0]), float(target_bounds[1]))
    else:
        labels, names = _code_classes(labels, classes, name)
        notes = (READ_CLASSES,) if classes is None else ()
    kind: Kind = "image" if features[0].ndim == 4 else "vector"
    bounds = _public_bounds(features[0], low, high, name)
    if bounds is None:
        bounds, notes = _read_bounds(features, kind), (READ_BOUNDS, *notes)
    public = Public(
        shape=features[0].shape[1:],
        classes=names,
        kind=kind,
        bounds="data" if notes else "public",
        notes=notes,
        task=task or ("regression" if numeric else "classification"),
        target_bounds=target_bounds,
    )
    return public, [torch.from_numpy(y) for y in labels], bounds


def as_array(values: ArrayLike) -> Array:
    """Tensors and sequences as arrays."""
    if isinstance(values, torch.Tensor):
        values = values.detach().cpu()
        return (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    return np.asarray(values)


def record_array(values: ArrayLike, name: str) -> Array:
    """Features as an array of numbers, records first, channels before height and width; anything else is refused."""
    array = as_array(values)
    if array.dtype.kind not in "buif":
        raise DataError(f"the features of {name} are not numbers; give an array of numbers.")
    if array.ndim < 2 or array.ndim > 4 or 0 in array.shape[1:]:
        raise DataError(
            f"the features of {name} must be vectors or images, records first; their shape is {array.shape}."
        )
    if array.dtype.kind == "f":
        wrong = int((~np.isfinite(array)).any(axis=tuple(range(1, array.ndim))).sum())
        if wrong:
            raise DataError(f"the features of {name} are NaN or infinite in {wrong} records; fill them or drop those.")
    if array.ndim == 3:
        return array[:, None]
    if array.ndim == 4 and array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        return np.moveaxis(array, 3, 1)
    return array


def label_array(values: ArrayLike, name: str, numeric: bool = False) -> Array:
    """Labels as one whole number or text a record (any number, for a numeric target); anything else is refused."""
    array = as_array(values)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise DataError(f"the labels of {name} must be one class or number a record; their shape is {array.shape}.")
    if numeric:
        if array.dtype.kind not in "buif" or not np.isfinite(array).all():
            raise DataError(f"the labels of {name} are to be numbers, all of them finite.")
        return array.astype(np.float64)
    if array.dtype.kind in "US":
        return array.astype(str)
    if array.dtype.kind not in "buif":
        raise DataError(f"the labels of {name} are neither numbers nor texts.")
    if array.dtype.kind == "f" and not (np.isfinite(array).all() and (array == np.round(array)).all()):
        raise DataError(f"the labels of {name} hold fractions or NaN, not classes; numbers need the task regression.")
    return array.astype(np.int64)


def _code_numbers(parts: list[Array], bounds: tuple[float, float], name: str) -> list[Array]:
    """Numeric labels in [0, 1] by their bounds, clipped to it."""
    if np.shape(bounds) != (2,) or not (np.isfinite(bounds).all() and bounds[0] < bounds[1]):
        raise SettingError(f"the bounds of the target of {name} must be two finite numbers, the first the lesser.")
    low, high = bounds
    return [np.clip((part - low) / (high - low), 0, 1).astype(np.float32) for part in parts]


def _code_classes(
    parts: list[Array], classes: int | Sequence[str] | None, name: str
) -> tuple[list[Array], tuple[str, ...]]:
    """The labels as places in the list of classes, and that list; read off the labels where it is not given."""
    if len({part.dtype.kind for part in parts}) > 1:
        raise DataError(f"the labels of {name} are numbers in one part and texts in the other.")
    present = np.unique(np.concatenate([np.unique(part) for part in parts]))
    if len(present) < 2:
        raise DataError(f"the labels of {name} are one class only; there is nothing to learn.")
    text = present.dtype.kind == "U"
    if classes is None:
        known, names = present, tuple(str(label) for label in present)
    else:
        if isinstance(classes, int) and classes > _MOST_CLASSES:
            raise SettingError(f"{name} has more classes than the {_MOST_CLASSES:,} that may be.")
        names = tuple(str(label) for label in (range(classes) if isinstance(classes, int) else classes))
        if len(names) < 2 or len(set(names)) < len(names):
            raise SettingError(f"{name} needs at least two different classes.")
        known = np.array(names) if text else np.arange(len(names))
    if not np.isin(present, known).all():
        wrong = sum(int((~np.isin(part, known)).sum()) for part in parts)
        raise DataError(f"{wrong} labels of {name} are outside its {len(names)} classes.")
    order = np.argsort(known)
    return [order[np.searchsorted(known, part, sorter=order)].astype(np.int64) for part in parts], names


def _public_bounds(records: Array, low: Bound | None, high: Bound | None, name: str) -> tuple[Array, Array] | None:
    """The bounds that are public: the user's, or those of the type."""
    if (low is None) != (high is None):
        raise SettingError(f"give both low and high for {name}, or neither.")
    kind, shape = records.dtype, records.shape[1:]
    if low is not None and high is not None:
        try:
            least, largest = np.asarray(low, np.float64), np.asarray(high, np.float64)
        except (TypeError, ValueError, OverflowError):
            raise SettingError(f"low and high of {name} must be numbers.") from None
        if any(bound.ndim and bound.shape != shape for bound in (least, largest)):
            raise SettingError(f"low and high of {name} must be single numbers or of the records' shape {shape}.")
        if not (np.isfinite(least).all() and np.isfinite(largest).all() and (least < largest).all()):
            raise SettingError(f"low must be less than high, and both finite, for {name}.")
        return least, largest
    if kind == np.bool_:
        return np.zeros(()), np.ones(())
    if kind == np.uint8 and len(shape) == 3:
        return np.zeros(()), np.full((), 255.0)
    return None


def _read_bounds(features: list[Array], kind: Kind) -> tuple[Array, Array]:
    axis = None if kind == "image" else 0
    low = np.asarray(np.min([x.min(axis=axis) for x in features], axis=0), np.float64)
    high = np.asarray(np.max([x.max(axis=axis) for x in features], axis=0), np.float64)
    if low.min() >= 0 and high.max() <= 1:
        # Coded already: scaling again would only make bits of a rare feature look different.
        return np.zeros(()), np.ones(())
    return low, np.where(high > low, high, low + 1)


def scaled(features: Array, low: Array, high: Array) -> torch.Tensor:
    """The features scaled to [0, 1] by their bounds, and clipped to it."""
    # Bytes and floats of 32 bits or fewer lose nothing in float32; wider numbers with a large offset would.
    exact = features.dtype.itemsize == 1 or features.dtype in (np.float16, np.float32)
    work = torch.float32 if exact else torch.float64
    coded = torch.from_numpy(np.require(features, requirements=["C", "W"])).to(work, copy=True)
    coded.sub_(torch.as_tensor(low, dtype=work)).div_(torch.as_tensor(high - low, dtype=work)).clamp_(0, 1)
    return coded.float()
