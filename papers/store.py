"""The folder that keeps a study's finished cells, so that it can be taken up again."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from pydantic import TypeAdapter

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.files import write_whole

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class Keyed(Protocol):
    """A cell of a study: one piece of its work."""

    @property
    def key(self) -> str:
        """Its name in file names, which no other cell of the study has."""


C = TypeVar("C", bound=Keyed)
R = TypeVar("R", bound="DataclassInstance")


class Store(Generic[C, R]):
    """A folder of finished cells, one JSON document each, whole or not at all.

    Each says which plan and seed it belongs to: cells of another one are refused rather than mixed in.
    """

    def __init__(self, folder: Path, belongs: Mapping[str, Any], kind: Any, *beside: Path) -> None:
        """`kind` is the dataclass of results; folders `beside` hold what else the cells leave, and are cleared, too."""
        self._belongs, self._kind, self._folders = belongs, TypeAdapter(kind), (folder, *beside)
        for path in self._folders:
            path.mkdir(parents=True, exist_ok=True)

    def belongs(self, cell: C) -> Mapping[str, Any]:
        """What decides a cell's result: its document is of use only where this is the same."""
        return self._belongs

    def save(self, cell: C, result: R) -> None:
        """Keep a finished cell."""
        document = {"belongs": self.belongs(cell), "result": dataclasses.asdict(result)}
        write_whole(self._file(cell), json.dumps(document))

    def load(self, cell: C) -> R | None:
        """The cell's result, if it is finished."""
        path = self._file(cell)
        if not path.exists():
            return None
        kind = path.parent.name
        try:
            document = json.loads(path.read_bytes())
            belongs, result = document["belongs"], self._kind.validate_python(document["result"])
        except (ValueError, KeyError, TypeError, IndexError):
            raise NoiseproofError(f"{path} is not a finished {kind.removesuffix('s')}; delete it and resume.") from None
        # As JSON has it, which knows no tuples.
        if belongs != json.loads(json.dumps(self.belongs(cell))):
            raise SettingError(
                f"{path.parent.parent} holds {kind} of another scale or seed; choose another folder, or do not resume."
            )
        return result

    def clear(self) -> None:
        """Forget every finished cell."""
        for folder in self._folders:
            for path in folder.iterdir():
                path.unlink()

    def _file(self, cell: C) -> Path:
        return self._folders[0] / f"{cell.key}.json"


def settings(plan: Any, seed: int, *, but: Collection[str] = ("notes",)) -> dict[str, Any]:
    """What results of a plan and a seed belong to; its notes are words, and changing them changes no result."""
    return {"seed": seed, **{key: value for key, value in dataclasses.asdict(plan).items() if key not in but}}
