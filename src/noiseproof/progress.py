"""Progress of long work: methods report to it, the command line shows it, libraries may ignore it."""

from __future__ import annotations

from types import TracebackType


class Task:
    """One piece of work of known length. Use as a context manager; `advance` as it goes."""

    def advance(self, steps: int = 1, **status: float | str) -> None:
        """Note that `steps` more are done; `status` is shown beside the bar (loss=0.3, epsilon=1.2)."""

    def __enter__(self) -> Task:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class Progress:
    """The silent progress: what is used where nobody watches. The command line's is in `cli/output.py`."""

    def task(self, description: str, total: int | None) -> Task:
        """Start a piece of work of `total` steps; None where their number is not known."""
        return Task()


SILENT = Progress()
