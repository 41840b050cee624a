"""The verb: a name or a file -> training and test records, coded, with what is public about them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from noiseproof.data.arrays import code_arrays
from noiseproof.data.dataset import Dataset, Task
from noiseproof.data.draft import draft, suspicions
from noiseproof.data.formats import ROWS, check_file, column_names, read_file, read_parts, read_table
from noiseproof.data.images import is_image_folder, open_images
from noiseproof.data.items import from_torch
from noiseproof.data.library import open_named
from noiseproof.data.named import named_sets
from noiseproof.data.persons import Groups, folded, group_array, person_remarks
from noiseproof.data.raw import ADULT_COLUMNS
from noiseproof.data.schema import Schema, built_in, read_schema
from noiseproof.data.splits import Split, check_classes, check_fraction, split
from noiseproof.data.stored import is_stored, load_stored, store_table
from noiseproof.data.tables import code, hashed_persons, listed
from noiseproof.errors import DataError, SettingError
from noiseproof.progress import SILENT, Progress

if TYPE_CHECKING:
    import pandas as pd

    from noiseproof.privacy.budget import Neighbours


class SupportsPandas(Protocol):
    """A table of another library, such as Hugging Face's `datasets`."""

    def to_pandas(self) -> Any:
        """The table as pandas has it."""


def load(
    name_or_path: str | Path | pd.DataFrame | torch.utils.data.Dataset[Any] | SupportsPandas,
    *,
    target: str | None = None,
    schema: Schema | str | Path | None = None,
    seed: int = 0,
    test_fraction: float = 0.25,
    neighbours: Neighbours = "add-or-remove",
    progress: Progress = SILENT,
    store: str | Path | None = None,
    task: Task | None = None,
    target_bounds: tuple[float, float] | None = None,
    person: str | None = None,
    groups: Groups | None = None,
    skip: Sequence[str] = (),
    encoding: str | None = None,
    image_size: int = 32,
) -> Split:
    """Load a named set, a file, or a folder of stored arrays, as training and test records.

    A set with a test part of its own keeps it; any other is split by a coin for each record (`splits.split`). An npz
    file holds `x` and `y`, or `x_train`, `y_train`, `x_test` and `y_test`; it may also hold the public `class_names`,
    `low` and `high`, and, beside `x`, whose each record is as `groups`. For data larger than memory a folder of stored
    arrays (`data.stored`) is memory-mapped, and a table with a schema (CSV, Parquet, or of Hugging Face's `datasets`,
    streamed or not) is coded into the folder `store`, part by part, and then used from there.

    Args:
        name_or_path: A named set (see `catalogue`), a file (CSV, Excel, Parquet, npz, or of a format that was registered),
            a folder of stored arrays or of pictures (`folder/class/*.jpg`), a pandas table, a table of Hugging Face's
            `datasets`, or a torch dataset (`from_torch` takes more to say about one).
        target: The column to predict.
        schema: What is public about a table, as a `Schema` or a file; without one, or with a drafted one, bounds,
            categories and classes are read off the records and `public.notes` says so.
        seed: The key of the split's coins.
        test_fraction: How likely a record is to be held out.
        neighbours: Which neighbouring files the split keeps neighbours.
        progress: Hears how far it is.
        store: A folder to code a table into, or to write a torch dataset to.
        task: What the target is: `classification`, `regression` or `count`; by default what schema or records say.
        target_bounds: The public bounds of a numeric target, which is clipped to them.
        person: The column that tells whose a row is, where a person may have several. It is never a feature, and the
            split puts all rows of a person on one side.
        groups: Whose each record is, an id a record in their order, where no column tells: for arrays, pictures, torch
            datasets, or tables whose ids are kept apart.
        skip: Columns of a table to leave alone: ids, names, free text.
        encoding: How a text file is encoded; UTF-8 unless this or the schema says otherwise.
        image_size: Height and width that pictures of a folder are scaled to.

    Returns:
        Training and test records with what is public about them.

    Raises:
        DataError: If the data cannot be read, or not as the schema says.
        SettingError: If there is no such set, or the arguments do not go together.

    Formal guarantee
    ----------------
    Nothing here is noisy and the result is private. With public bounds (`public.bounds` is `public`) loading and
    splitting keep neighbouring files neighbours: training parts are equal, or differ in that one record. So a guarantee
    for the training part is one for the file. With bounds read off the data (`data`) nothing is proven of the loading
    itself. `Split.remarks` and the messages of errors are for the data's owner and are covered by no guarantee.
    """
    check_fraction(test_fraction)
    if groups is not None and (store is not None or _is_stored(name_or_path)):
        raise SettingError("stored records have their persons stored with them; give person when you store a table.")
    if isinstance(name_or_path, str) and name_or_path in named_sets():
        if schema is not None or person is not None:
            raise SettingError(
                f"{name_or_path} has a schema of its own and one record a person; a schema and a person are for a file, so "
                "give the file's path."
            )
        parts, remarks = open_named(name_or_path, target=target, task=task, bounds=target_bounds, progress=progress)
    elif not isinstance(name_or_path, str | Path):
        given = _read_schema(schema, target, task, target_bounds, person, skip)
        if store is not None and given is not None and hasattr(name_or_path, "iter"):
            remarks = store_table(_batches(name_or_path), given, Path(store), name="the table", progress=progress)
            found = load_stored(Path(store), seed=seed, test_fraction=test_fraction, relation=neighbours)
            return replace(found, remarks=remarks)
        facts: Any = {"task": task, "target_bounds": target_bounds}
        parts, remarks = _load_object(name_or_path, given, target, facts, person, skip, store)
    elif Path(name_or_path).expanduser().is_dir() and is_image_folder(Path(name_or_path).expanduser()):
        if (schema, target, person, task) != (None, None, None, None) or skip:
            raise SettingError(
                "a folder of pictures has its classes as folders; leave schema, target and the like out."
            )
        parts, remarks = [open_images(Path(name_or_path).expanduser(), size=image_size)], ()
    else:
        path = _path(name_or_path)
        stored, remarks = path if _is_stored(path) else None, ()
        if stored is None:
            check_file(path)
        schema = _read_schema(schema, target, task, target_bounds, person, skip)
        encoding = encoding or ("utf-8" if schema is None else schema.encoding)
        names = () if stored is not None else column_names(path, encoding)
        if not names and ((schema, target, person) != (None, None, None) or skip):
            raise SettingError(
                f"{path} holds arrays; target, schema, person and skip are for tables, so leave them out."
            )
        if store is not None:
            if schema is None or not names:
                raise SettingError("only a table with a schema can be stored; give --schema, or leave --store out.")
            stored, stat = Path(store), path.stat()
            remarks = store_table(
                read_parts(path, schema, encoding),
                schema,
                stored,
                name=path.name,
                source={"file": path.name, "bytes": stat.st_size, "changed": stat.st_mtime_ns},
                progress=progress,
            )
        if stored is not None:
            found = load_stored(stored, seed=seed, test_fraction=test_fraction, relation=neighbours)
            return replace(found, remarks=remarks)
        if not names:
            parts = _load_arrays(path, task, target_bounds)
        else:
            if schema is None:
                schema, notes, frame = _without_schema(path, names, target, task, target_bounds, person, skip, encoding)
            else:
                notes, frame = (), read_table(path, schema, encoding)
            parts, remarks = _code(frame, schema, path.name, notes)
    if groups is not None:
        if len(parts) == 2:
            raise SettingError(
                "data with a test part of their own cannot be split by groups; give all records in one part."
            )
        if parts[0].groups is not None:
            raise SettingError("give either groups or a person's column, not both: each says whose records they are.")
        parts = [replace(parts[0], groups=group_array(groups, len(parts[0]), parts[0].name))]
    if len(parts) == 2:
        return Split(parts[0], parts[1], remarks)
    return split(parts[0], seed=seed, test_fraction=test_fraction, relation=neighbours, remarks=remarks)


def _read_schema(
    schema: Schema | str | Path | None,
    target: str | None,
    task: Task | None,
    target_bounds: tuple[float, float] | None,
    person: str | None,
    skip: Sequence[str],
) -> Schema | None:
    """The user's schema with what else was said about the table."""
    if schema is None:
        return None
    schema = schema if isinstance(schema, Schema) else read_schema(schema)
    if target not in (None, schema.target.name):
        raise SettingError(f"the schema's target is {schema.target.name!r}, not {target!r}; give one of them.")
    return schema.with_task(task, target_bounds).with_person(person).without(skip)


def _code(
    frame: pd.DataFrame, schema: Schema, name: str, notes: tuple[str, ...] = ()
) -> tuple[list[Dataset], tuple[str, ...]]:
    """A table's records, and remarks for their owner."""
    dataset, remarks = code(frame, schema, name=name, notes=notes)
    check_classes(dataset)
    if schema.skip:
        remarks += (f"skipped columns: {listed(schema.skip)}.",)
    if schema.person is None:
        remarks += suspicions(frame, (schema.target.name,))
    else:
        remarks += person_remarks(hashed_persons(frame, schema), folded(frame[schema.person].to_numpy()))
    return [dataset], remarks


def _load_object(
    source: Any,
    schema: Schema | None,
    target: str | None,
    facts: Any,
    person: str | None,
    skip: Sequence[str],
    store: str | Path | None,
) -> tuple[list[Dataset], tuple[str, ...]]:
    """Records that are in memory already, or that a library reads."""
    import pandas as pd

    name = "the table"
    if isinstance(source, torch.utils.data.Dataset) and not hasattr(source, "iter"):
        if (schema, target, person) != (None, None, None) or skip:
            raise SettingError("a torch dataset gives coded records; schema, target and the like are for tables.")
        return [from_torch(source, store=store, **facts)], ()
    if store is not None:
        raise SettingError(
            "what is stored is a table with a schema, or a torch dataset; give a schema, or leave store out."
        )
    streamed = hasattr(source, "iter") and not hasattr(source, "__len__")
    frame = source.to_pandas() if hasattr(source, "to_pandas") and not streamed else source
    if isinstance(frame, pd.DataFrame):
        if schema is None and target is None:
            raise SettingError(f"say which column is the target; there are {', '.join(map(str, frame.columns))}.")
        about: Any = {**facts, "person": person, "skip": skip, "gaps": False}
        return _code(frame, schema or draft(frame, str(target), name=name, **about), name)
    if streamed:
        raise SettingError("a table that is streamed is written to a folder first; give store=FOLDER, and a schema.")
    raise SettingError(f"records cannot be read from a {type(source).__name__}; give a name, a path or a table.")


def _batches(source: Any) -> Iterator[pd.DataFrame]:
    """The rows of a table of Hugging Face's `datasets`, streamed or not, some at a time."""
    import pandas as pd

    for batch in source.iter(batch_size=ROWS):
        yield pd.DataFrame(batch)


def _is_stored(source: object) -> bool:
    return isinstance(source, str | Path) and (path := Path(source).expanduser()).is_dir() and is_stored(path)


def _path(name_or_path: str | Path) -> Path:
    path = Path(name_or_path).expanduser()
    if isinstance(name_or_path, str) and not path.exists() and not path.suffix and len(path.parts) == 1:
        known = [name for name, found in named_sets().items() if found.folder == name]
        raise SettingError(
            f"there is no data set {name_or_path!r}; there are {', '.join(known)}, or give the path of a file."
        )
    return path


def _load_arrays(path: Path, task: Task | None, target_bounds: tuple[float, float] | None) -> list[Dataset]:
    arrays = read_file(path)
    assert isinstance(arrays, Mapping)
    if {"x_train", "y_train", "x_test", "y_test"} <= arrays.keys():
        parts = [(arrays["x_train"], arrays["y_train"]), (arrays["x_test"], arrays["y_test"])]
    elif {"x", "y"} <= arrays.keys():
        parts = [(arrays["x"], arrays["y"])]
    else:
        raise DataError(f"{path} must hold arrays x and y, or x_train, y_train, x_test and y_test.")
    names = arrays.get("class_names")
    datasets = code_arrays(
        parts,
        path.name,
        classes=None if names is None else [str(name) for name in names.reshape(-1)],
        low=arrays.get("low"),
        high=arrays.get("high"),
        task=task,
        target_bounds=target_bounds,
    )
    if "groups" in arrays and len(datasets) == 1:
        whole = datasets[0]
        return [replace(whole, groups=group_array(arrays["groups"], len(whole), path.name))]
    return datasets


def _without_schema(
    path: Path,
    names: tuple[str, ...],
    target: str | None,
    task: Task | None,
    target_bounds: tuple[float, float] | None,
    person: str | None,
    skip: Sequence[str],
    encoding: str,
) -> tuple[Schema, tuple[str, ...], pd.DataFrame]:
    """A schema for a table that came without one, notes on it, and the table."""
    if set(names) - {person, *skip} == set(ADULT_COLUMNS):
        adult = built_in("adult").with_target(target or "income").with_task(task, target_bounds).with_person(person)
        notes = ("the columns are Adult's, so its built-in public schema was used.", *named_sets()["adult"].notes)
        return adult.without(skip), notes, read_table(path, adult, encoding)
    if target is None:
        raise SettingError(f"say which column of {path} is the target; its columns are {', '.join(names)}.")
    frame = read_table(path, encoding=encoding)
    drafted = draft(
        frame,
        target,
        name=path.name,
        task=task,
        target_bounds=target_bounds,
        person=person,
        skip=skip,
        gaps=False,
    )
    return drafted, (), frame
