"""Files: written whole or not at all, and JSON that says one thing to every reader."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from noiseproof.errors import SettingError


@contextmanager
def whole_file(path: str | Path, *, mode: int | None = None) -> Iterator[BinaryIO]:
    """A binary file to write to, which takes the place of `path` once it is complete and on the disk.

    Whoever reads `path` sees what was there before or all of what was written, also after a power cut. If the block
    raises, `path` stays as it was.

    Args:
        path: Where the file is to be; its folder must exist.
        mode: Permission bits; by default those of any new file.

    Yields:
        The open file.
    """
    path = Path(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        descriptor, name = _unnamed(path)
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(file.fileno(), 0o666 & ~umask() if mode is None else mode)
                yield file
                file.flush()
                os.fsync(file.fileno())
                if name is None:
                    name = str(path.parent / f".{path.name}-{secrets.token_hex(4)}")
                    # By way of a folder's descriptor, since only linkat follows /proc's link to the file itself.
                    os.link(f"/proc/self/fd/{file.fileno()}", name, src_dir_fd=folder)
            os.replace(name, path)
            os.fsync(folder)
        except BaseException:
            if name is not None:
                with suppress(FileNotFoundError):
                    os.unlink(name)
            raise
    finally:
        os.close(folder)


def _unnamed(path: Path) -> tuple[int, str | None]:
    """A file to write to that has no name, so that a killed writer leaves nothing; a named one where that cannot be."""
    if hasattr(os, "O_TMPFILE"):
        with suppress(OSError):  # not every file system knows it
            return os.open(path.parent, os.O_TMPFILE | os.O_WRONLY, 0o600), None
    return tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)


def write_whole(path: str | Path, content: bytes | str, *, mode: int | None = None) -> None:
    """Write `content` to `path`, whole or not at all (see `whole_file`).

    >>> from pathlib import Path; import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_whole(folder / "note.txt", "kept")
    >>> (folder / "note.txt").read_text()
    'kept'
    """
    with whole_file(path, mode=mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def check_out(out: str | Path, *, force: bool = False, inputs: Iterable[str | Path | None] = ()) -> None:
    """Refuse, before any work is done, to write over something.

    Args:
        out: Where a file or a folder is to be written.
        force: Whether what is there may be replaced.
        inputs: Files that are read. They are never written over, whatever `force` says and whatever `out` calls them.

    Raises:
        SettingError: If `out` is one of the inputs, or exists and is not to be replaced.
    """
    out = Path(out)
    if any(given is not None and _same(out, Path(given)) for given in inputs):
        raise SettingError(f"{out} is a file that is read here and would be lost; choose another name.")
    if not force and (out.is_symlink() or out.is_file() or (out.is_dir() and any(out.iterdir()))):
        raise SettingError(f"{out} exists; choose another name, or replace it with --force.")


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def strict_json(text: str | bytes) -> Any:
    """A JSON document that all readers take for the same: no name twice, no NaN, no half a character, no endless nesting.

    Args:
        text: The document.

    Returns:
        What it holds.

    Raises:
        ValueError: If it is no such document.

    >>> strict_json('{"epsilon": 0.1}')
    {'epsilon': 0.1}
    """
    try:
        found = json.loads(text, object_pairs_hook=_once, parse_constant=_no_number)
        raw = text.encode() if isinstance(text, str) else text
        if b"\\ud" in raw.lower():  # perhaps half of a pair, which is no text
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _no_number(constant: str) -> float:
    raise ValueError(f"{constant} is no number")


def lock_file(descriptor: int) -> None:
    """Hold an open file or folder against other processes until it is closed; only where the system is POSIX.

    Raises:
        BlockingIOError: If another process holds it.
    """
    with suppress(ImportError):
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sync_folder(path: str | Path) -> None:
    """Bring a folder's list of names to the disk, so that a new name survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def umask() -> int:
    """The permissions that this process denies to the files it makes."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
