"""The verb: a name or a file -> training and test records, coded, with what is public about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from noiseproof.data import lazy
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
    compact: bool = False,
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
        test_fraction: How likely a record is to be held out; 0 to train on all of a set without a test part of its own.
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
        compact: Whether the records of a file with a schema that are more than 256 MB when coded are kept by column, in a
            small part of that, and coded when they are looked at: `features` is then a `StoredTensor`.

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

    Examples:
        >>> import noiseproof as npf
        >>> digits = npf.load("digits")
        >>> digits.train.public.shape, digits.train.classes
        ((1, 8, 8), 10)

        A table, with what is public about it in a schema:

        >>> import pandas as pd
        >>> from noiseproof.data import Schema
        >>> people = pd.DataFrame({"age": range(20, 70), "ill": ["no", "yes"] * 25})
        >>> schema = Schema.model_validate(
        ...     {"columns": {"age": {"low": 0, "high": 120}}, "target": {"name": "ill", "classes": ["no", "yes"]}}
        ... )
        >>> npf.load(people, schema=schema).train.public.bounds
        'public'
        >>> npf.load(people, target="ill").train.public.bounds  # without one, bounds are read off the records
        'data'
    """
    check_fraction(test_fraction)
    said = _Said(target, task, target_bounds, person, tuple(skip))
    if groups is not None and (store is not None or _is_stored(name_or_path)):
        raise SettingError("stored records have their persons stored with them; give person when you store a table.")

    def from_disk(folder: Path, remarks: tuple[str, ...] = ()) -> Split:
        most = lazy.SMALL // 4 if compact else lazy.SMALL
        found = load_stored(folder, seed=seed, test_fraction=test_fraction, relation=neighbours, most=most)
        return replace(found, remarks=remarks)

    if isinstance(name_or_path, str) and name_or_path in named_sets():
        if schema is not None or person is not None:
            raise SettingError(
                f"{name_or_path} has a schema of its own and one record a person; a schema and a person are for a file, so "
                "give the file's path."
            )
        parts, remarks = open_named(name_or_path, target=target, task=task, bounds=target_bounds, progress=progress)
    elif not isinstance(name_or_path, str | Path):
        given = said.about(schema)
        if store is not None and given is not None and hasattr(name_or_path, "iter"):
            stored = store_table(_batches(name_or_path), given, Path(store), name="the table", progress=progress)
            return from_disk(Path(store), stored)
        parts, remarks = _load_object(name_or_path, given, said, store)
    elif (path := _path(name_or_path)).is_dir() and is_image_folder(path):
        if schema is not None or task is not None or said.of_table:
            raise SettingError(
                "a folder of pictures has its classes as folders; leave schema, target and the like out."
            )
        parts, remarks = [open_images(path, size=image_size)], ()
    else:
        on_disk = _is_stored(path)
        if not on_disk:
            check_file(path)
        given = said.about(schema)
        encoding = encoding or ("utf-8" if given is None else given.encoding)
        names = () if on_disk else column_names(path, encoding)
        if not names and (given is not None or said.of_table):
            raise SettingError(
                f"{path} holds arrays; target, schema, person and skip are for tables, so leave them out."
            )
        if store is not None:
            if given is None or not names:
                raise SettingError("only a table with a schema can be stored; give --schema, or leave --store out.")
            stat, rows = path.stat(), read_parts(path, given, encoding)
            source = {"file": path.name, "bytes": stat.st_size, "changed": stat.st_mtime_ns}
            stored = store_table(rows, given, Path(store), name=path.name, source=source, progress=progress)
            return from_disk(Path(store), stored)
        if on_disk:
            return from_disk(path)
        if not names:
            parts, remarks = _load_arrays(path, said), ()
        elif given is None:
            parts, remarks = _code_without_schema(path, names, said, encoding)
        else:
            parts, remarks = _code(read_table(path, given, encoding), given, path.name, compact=compact)
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


@dataclass(frozen=True)
class _Said:
    """What the caller says about a table besides its schema."""

    target: str | None
    task: Task | None
    bounds: tuple[float, float] | None
    person: str | None
    skip: tuple[str, ...]

    @property
    def of_table(self) -> bool:
        """Whether something is said that only a table can have."""
        return self.target is not None or self.person is not None or bool(self.skip)

    def about(self, schema: Schema | str | Path | None) -> Schema | None:
        """The schema with what is said besides."""
        if schema is None:
            return None
        schema = schema if isinstance(schema, Schema) else read_schema(schema)
        if self.target not in (None, schema.target.name):
            raise SettingError(f"the schema's target is {schema.target.name!r}, not {self.target!r}; give one of them.")
        return schema.with_task(self.task, self.bounds).with_person(self.person).without(self.skip)

    def check_target(self, name: str, columns: Iterable[Any]) -> None:
        """Refuse a table without a schema whose target is not named."""
        if self.target is None:
            known = ", ".join(map(str, columns))
            raise SettingError(f"say which column of {name} is the target; its columns are {known}.")

    def drafted(self, frame: pd.DataFrame, name: str) -> Schema:
        """A schema read off the records."""
        about: Any = {"task": self.task, "target_bounds": self.bounds, "person": self.person, "skip": self.skip}
        return draft(frame, str(self.target), name=name, **about, gaps=False)


def _code(
    frame: pd.DataFrame, schema: Schema, name: str, notes: tuple[str, ...] = (), *, compact: bool = False
) -> tuple[list[Dataset], tuple[str, ...]]:
    """A table's records, and remarks for their owner."""
    dataset, remarks = code(frame, schema, name=name, notes=notes, compact=compact)
    check_classes(dataset)
    if schema.skip:
        remarks += (f"skipped columns: {listed(schema.skip)}.",)
    if schema.person is None:
        remarks += suspicions(frame, (schema.target.name,))
    else:
        remarks += person_remarks(hashed_persons(frame, schema), folded(frame[schema.person].to_numpy()))
    return [dataset], remarks


def _load_object(
    source: Any, schema: Schema | None, said: _Said, store: str | Path | None
) -> tuple[list[Dataset], tuple[str, ...]]:
    """Records that are in memory already, or that a library reads."""
    import pandas as pd

    if isinstance(source, torch.utils.data.Dataset) and not hasattr(source, "iter"):
        if schema is not None or said.of_table:
            raise SettingError("a torch dataset gives coded records; schema, target and the like are for tables.")
        return [from_torch(source, store=store, task=said.task, target_bounds=said.bounds)], ()
    if store is not None:
        raise SettingError(
            "what is stored is a table with a schema, or a torch dataset; give a schema, or leave store out."
        )
    streamed = hasattr(source, "iter") and not hasattr(source, "__len__")
    frame = source.to_pandas() if hasattr(source, "to_pandas") and not streamed else source
    if isinstance(frame, pd.DataFrame):
        if schema is None:
            said.check_target("the table", frame.columns)
        return _code(frame, schema or said.drafted(frame, "the table"), "the table")
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


def _load_arrays(path: Path, said: _Said) -> list[Dataset]:
    arrays = read_file(path)
    assert isinstance(arrays, Mapping)
    if {"x_train", "y_train", "x_test", "y_test"} <= arrays.keys():
        parts = [(arrays["x_train"], arrays["y_train"]), (arrays["x_test"], arrays["y_test"])]
    elif {"x", "y"} <= arrays.keys():
        parts = [(arrays["x"], arrays["y"])]
    else:
        raise DataError(f"{path} must hold arrays x and y, or x_train, y_train, x_test and y_test.")
    names = arrays.get("class_names")
    facts: Any = {"task": said.task, "target_bounds": said.bounds, "low": arrays.get("low"), "high": arrays.get("high")}
    classes = None if names is None else [str(name) for name in names.reshape(-1)]
    datasets = code_arrays(parts, path.name, classes=classes, **facts)
    if "groups" in arrays and len(datasets) == 1:
        whole = datasets[0]
        return [replace(whole, groups=group_array(arrays["groups"], len(whole), path.name))]
    return datasets


def _code_without_schema(
    path: Path, names: tuple[str, ...], said: _Said, encoding: str
) -> tuple[list[Dataset], tuple[str, ...]]:
    """The records of a table that came without a schema: by Adult's where the columns are Adult's, else by a draft."""
    if set(names) - {said.person, *said.skip} == set(ADULT_COLUMNS):
        adult = replace(said, target=None).about(built_in("adult").with_target(said.target or "income"))
        assert adult is not None
        notes = ("the columns are Adult's, so its built-in public schema was used.", *named_sets()["adult"].notes)
        return _code(read_table(path, adult, encoding), adult, path.name, notes)
    said.check_target(str(path), names)
    frame = read_table(path, encoding=encoding)
    return _code(frame, said.drafted(frame, path.name), path.name)
