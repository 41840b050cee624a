"""Run the commands and Python of a page as its reader would, in order, in one folder, and compare what they print.

`python docs/tools/snippets.py docs/guide/publish-a-model.md` runs a page by hand; tests/docs runs them all.

A page holds ```console blocks (lines after `$ ` are commands, `> ` continues one, the rest is what it prints) and
```python blocks, which share their names; a ```text block straight after one is what it prints. In what is printed, numbers
may differ, `...` stands for anything, and layout does not count. A comment above a block changes that:

    <!-- test: exact -->             numbers must be the same
    <!-- test: slow -->              takes more than a few seconds: runs with the slow tests only
    <!-- test: skip, because ... --> cannot run in a test

A command that ends in `&` is a service: it is waited for, asked at a free port, and stopped at the page's end.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)```\s*$", re.M | re.S)
_MARK = re.compile(r"<!-- test: (?P<words>(?:(?!-->).)*?) -->\s*\Z", re.S)
_NUMBER = re.compile(r"[-+]?(?<![\w.])\d[\d,]*(\.\d+)?(e[-+]?\d+)?%?")
_PORT = "127.0.0.1:8000"


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: its language, its text, what was said about testing it, and the output shown for it."""

    page: Path
    line: int
    language: str
    text: str
    marks: tuple[str, ...]
    shown: str = ""

    @property
    def slow(self) -> bool:
        """Whether only the slow tests run it."""
        return "slow" in self.marks

    @property
    def skipped(self) -> bool:
        """Whether it cannot be run in a test."""
        return "skip" in self.marks

    @property
    def exact(self) -> bool:
        """Whether numbers in its output must be the same."""
        return "exact" in self.marks


def read(page: Path) -> list[Block]:
    """The blocks of a page that can be run, in order."""
    text = page.read_text(encoding="utf-8")
    found = list(_FENCE.finditer(text))
    blocks = []
    for index, match in enumerate(found):
        if match["language"] not in ("console", "python"):
            continue
        mark = _MARK.search(text, 0, match.start())
        words = mark["words"] if mark else ""
        marks = ("skip",) if words.startswith("skip") else tuple(words.split())
        if words.startswith("skip") and "because" not in words:
            raise ValueError(f"{page}: say why a block is skipped")
        if set(marks) - {"skip", "slow", "exact"}:
            raise ValueError(f"{page}: unknown words about a test: {words}")
        shown = ""
        following = found[index + 1] if index + 1 < len(found) else None
        if (
            match["language"] == "python"
            and following is not None
            and following["language"] == "text"
            and not text[match.end() : following.start()].strip()
        ):
            shown = _body(following)
        line = text.count("\n", 0, match.start()) + 1
        blocks.append(Block(page, line, match["language"], _body(match), marks, shown))
    return blocks


def _body(match: re.Match[str]) -> str:
    indent = len(match["indent"])
    return "".join(line[indent:] if line.strip() else line for line in match["body"].splitlines(keepends=True))


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """Each command of a console block with the output shown for it."""
    command, shown = "", ""
    for line in block.text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, shown
            command, shown = line[2:], ""
        elif line.startswith("> ") and command and not shown:
            command += "\n" + line[2:]
        else:
            shown += line + "\n"
    if command:
        yield command, shown


def agree(shown: str, printed: str, *, exact: bool = False) -> bool:
    """Whether what a page shows is what was printed: words in order, numbers as numbers, `...` as anything."""
    pattern = re.escape(_plain(shown, exact)).replace(re.escape("..."), ".*?").replace("…", ".*?")
    return re.fullmatch(pattern, _plain(printed, exact), re.S) is not None


def _plain(text: str, exact: bool) -> str:
    text = re.sub("[\u2500-\u257f]", " ", "\n".join(_unwrapped(text)))
    if not exact:
        text = _NUMBER.sub("#", text)
    return " ".join(text.split())


def _unwrapped(text: str) -> list[str]:
    """The lines of a text; cells of a table that were too narrow for their words on one line again."""
    lines: list[str] = []
    for line in text.splitlines():
        cells = line.strip().split("│")
        above = lines[-1].strip().split("│") if lines else []
        if len(cells) > 2 and len(cells) == len(above) and not cells[1].strip():
            line = "│".join(f"{first.rstrip()} {second.strip()} " for first, second in zip(above, cells, strict=True))
            lines.pop()
        lines.append(line)
    return lines


class Session:
    """A folder in which the blocks of one page run one after the other, sharing files, variables and names."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names: dict[str, object] = {"__name__": "__main__"}
        self._environment = {
            **os.environ,
            "COLUMNS": "80",
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        }
        self._services: list[subprocess.Popen[bytes]] = []
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._port = server.getsockname()[1]

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        for service in self._services:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(service.pid, signal.SIGTERM)
            try:
                service.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(service.pid, signal.SIGKILL)
                service.wait()

    def run(self, block: Block) -> None:
        """Run a block, or raise an `AssertionError` that says what differed."""
        if block.language == "python":
            printed = self._python(block)
            self._compare(block, "the Python", block.shown, printed, printed)
            return
        for command, shown in commands(block):
            code, both, out = self._command(command)
            failing = shown.lstrip().startswith("error:")
            if failing != (code != 0):
                raise AssertionError(f"{block.page}:{block.line}: `{command}` exited with {code}:\n{both}")
            self._compare(block, f"`{command}`", shown, both, out)

    def _compare(self, block: Block, what: str, shown: str, both: str, out: str) -> None:
        both, out = (text.replace(f"127.0.0.1:{self._port}", _PORT) for text in (both, out))
        if shown.strip() and not any(agree(shown, text, exact=block.exact) for text in (both, out)):
            raise AssertionError(f"{block.page}:{block.line}: {what} printed\n{both}\nand the page shows\n{shown}")

    def _python(self, block: Block) -> str:
        text = "\n" * block.line + block.text.replace(_PORT, f"127.0.0.1:{self._port}")
        code = compile(text, block.page, "exec", dont_inherit=True)
        printed = io.StringIO()
        with self._here(), contextlib.redirect_stdout(printed):
            exec(code, self._names)
        return printed.getvalue()

    def _command(self, command: str) -> tuple[int, str, str]:
        """Exit code, everything that was printed, and what of it went to stdout."""
        command = command.replace(_PORT, f"127.0.0.1:{self._port}")
        if command.startswith("noiseproof serve ") and "--help" not in command:
            command = command.replace("noiseproof serve ", f"noiseproof serve --port {self._port} ", 1)
        if command.rstrip().endswith("&"):
            return self._start(command.rstrip().removesuffix("&"))
        if command.startswith("noiseproof ") and not set("|<>;$`*\n") & set(command):
            return self._here_and_now(shlex.split(command, comments=True)[1:])
        # Another program, or a shell's work: its variables are kept for the next commands.
        kept = self.folder / ".environment"
        ran = subprocess.run(
            ["bash", "-ec", f"{command}\nenv -0 > {shlex.quote(str(kept))}"],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if kept.exists():
            self._environment = dict(line.split("=", 1) for line in kept.read_text().split("\0") if "=" in line)
            kept.unlink()
        return ran.returncode, ran.stdout, ran.stdout

    def _here_and_now(self, arguments: list[str]) -> tuple[int, str, str]:
        """Run noiseproof in this process, which has imported what takes seconds to import."""
        from noiseproof.cli import main

        both, out, code = io.StringIO(), _Tee(), 0
        out.second = both
        with self._here(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(both):
            try:
                main(arguments)
            except SystemExit as stop:
                code = int(stop.code or 0)
        return code, both.getvalue(), out.getvalue()

    def _start(self, command: str) -> tuple[int, str, str]:
        with tempfile.TemporaryFile() as log:
            service = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._services.append(service)
            until = time.monotonic() + 120
            listening = False
            while not listening and service.poll() is None and time.monotonic() < until:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
                    listening = True
                time.sleep(0.2)
            log.seek(0)
            printed = log.read().decode()
        return (0 if listening else 1), printed, printed

    @contextlib.contextmanager
    def _here(self) -> Iterator[None]:
        folder, environment = Path.cwd(), dict(os.environ)
        os.chdir(self.folder)
        os.environ.update(self._environment)
        try:
            yield
        finally:
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)


class _Tee(io.StringIO):
    """Keeps what is written, and passes it on."""

    second: io.StringIO

    def write(self, text: str) -> int:
        self.second.write(text)
        return super().write(text)


def main() -> None:
    """Run the pages that are named on the command line, slow blocks and all."""
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as folder, Session(Path(folder)) as session:
            for block in read(Path(name)):
                if not block.skipped:
                    started = time.perf_counter()
                    session.run(block)
                    sys.stdout.write(f"{name}:{block.line}: {time.perf_counter() - started:.1f} s\n")


if __name__ == "__main__":
    main()
