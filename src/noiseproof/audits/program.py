"""A stranger's program: it reads a data file and writes a release, many times on two neighbouring files.

Nothing is known of the program but its releases. Some of the runs learn which of the released numbers, or which
combination of them, tells the two files apart best; on the others errors are counted.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from noiseproof.audits.audit import AuditError, AuditResult, Failure
from noiseproof.audits.neighbouring import check_pair
from noiseproof.audits.observed import Observed, tell_apart
from noiseproof.audits.releases import LARGEST, read_release
from noiseproof.audits.two_worlds import counting_bound
from noiseproof.errors import DataError, SettingError
from noiseproof.files import whole_file, write_whole
from noiseproof.parallel.tasks import cores
from noiseproof.privacy.card import Claim
from noiseproof.progress import SILENT, Progress

_LEARNING = 0.4
"""The share of the trials from which the score and the event are learned; the others are counted."""
_FILES = "without the record", "with the record"


@dataclass(frozen=True)
class Program:
    """How a program is run: its command line with `{data}` for the file it reads and `{release}` for the one it writes.

    Args:
        command: The command line; it is split as a shell does, and run without one. What `{release}` stands for may get an
            ending, as in `{release}.json`.
        score: A command line with `{release}` that prints one number: the larger, the more it looks as if the record was in
            the file. Without it, scores are learned from what can be read in the releases.
        timeout: Seconds that one run, or one score, may take.

    Raises:
        SettingError: If a placeholder is missing, the program cannot be found, or the timeout makes no sense.

    Examples:
        >>> program = Program("python3 release.py --in {data} --out {release}.json", timeout=10)
        >>> Program("python3 release.py")
        Traceback (most recent call last):
        noiseproof.errors.SettingError: the command line 'python3 release.py' lacks {data} and {release}, where ...
    """

    command: str
    score: str | None = None
    timeout: float = 60.0

    def __post_init__(self) -> None:
        for text, names in ((self.command, ("{data}", "{release}")), (self.score, ("{release}",))):
            if text is None:
                continue
            if missing := [name for name in names if name not in text]:
                raise SettingError(
                    f"the command line {text!r} lacks {' and '.join(missing)}, where the name of a file is put in."
                )
            first = _words(text)[0]
            if shutil.which(first) is None:
                raise SettingError(f"there is no program {first!r} that can be run.")
        if not self.timeout > 0:
            raise SettingError(f"the timeout must be more than 0 seconds, not {self.timeout}.")


def audit_program(
    program: Program,
    data: Path,
    neighbour: Path,
    claimed: Claim,
    *,
    trials: int = 500,
    confidence: float = 0.95,
    seed: int = 0,
    jobs: int | None = None,
    folder: Path | None = None,
    progress: Progress = SILENT,
) -> AuditResult:
    """Run a stranger's program on two neighbouring files and give the largest epsilon that its releases refute.

    Runs come in a random order and every one gets a copy of its file under the same name, so that neither clock, counter nor
    name tells the files apart. What a run prints is neither kept nor shown.

    Args:
        program: What is audited.
        data: A file of records.
        neighbour: A file that differs from it as `claimed.neighbours` says.
        claimed: What its vendor states.
        trials: Runs on each file.
        confidence: Of the bound.
        seed: Of the order of runs. The program draws its own randomness.
        jobs: How many run at a time, one for each core if None.
        folder: Keeps what finished runs released, so that an interrupted audit goes on from there. As private as the files.
        progress: Hears of every run.

    Returns:
        The bound beside the claim, with the power that the audit had.

    Raises:
        AuditError: If a run fails, hangs or writes nothing that can be read; no bound is computed from the others.
        SettingError: If there are fewer than 20 trials, the files are not neighbours, or the folder holds another audit.
        DataError: If one of the files cannot be read.

    Examples:
        >>> data, neighbour = Path("people.csv"), Path("people-without-one.csv")
        >>> _ = data.write_text("age,income\\n31,18000\\n45,52000\\n")
        >>> _ = neighbour.write_text("age,income\\n31,18000\\n")
        >>> claim = Claim(epsilon=1.0, delta=1e-5, source="the vendor")
        >>> program = Program("cp {data} {release}.csv")  # releases the records as they are
        >>> result = audit_program(program, data, neighbour, claim, trials=50)
        >>> result.verdict
        'refuted'

    Formal guarantee
    ----------------
    If runs are independent of each other and the program is (epsilon, delta)-DP under the claim's neighbours, the bound
    exceeds epsilon with probability at most 1 - confidence: the counted runs play no part in choosing score and event
    (`counting_bound`). A program that keeps something between its runs is not audited by this. The folder is made of
    private records: it is for the trusted side.
    """
    if trials < 20:
        raise SettingError(f"an audit of a program needs at least 20 trials on each file, not {trials}.")
    if jobs is not None and jobs < 1:
        raise SettingError(f"jobs must be at least 1, not {jobs}.")
    files = check_pair(data, neighbour, claimed.neighbours)
    with _folder(folder) as place:
        _claim(place, program, files.paths, trials, seed)
        runs = _Runs(place, program, files.paths, jobs or cores())
        seen = runs.play(trials, seed, progress)
    if program.score is None:
        learning = round(_LEARNING * trials)
        told = tell_apart((seen[0][:learning], seen[1][:learning]), ())
        scores = [np.array([told.score(run) for run in world[learning:]]) for world in seen]
        bound = counting_bound((scores[0], scores[1]), delta=claimed.delta, confidence=confidence, choosing=told.scores)
    else:
        given = [np.array([float(run["score"][0]) for run in world]) for world in seen]
        bound = counting_bound((given[0], given[1]), delta=claimed.delta, confidence=confidence)
    name = f"{Path(_words(program.command)[0]).name} on {data.name} with and without one record"
    if claimed.neighbours == "replace-one":
        name = f"{Path(_words(program.command)[0]).name} on {data.name} with one record or another"
    notes = (*files.notes, *_constant(seen))
    return AuditResult(name, claimed.neighbours, claimed.unit, trials, seed, bound, claimed, notes=notes).with_power()


def _constant(seen: tuple[list[Observed], list[Observed]]) -> tuple[str, ...]:
    """A note where a program let out the same numbers every time: it has no noise, or a fixed seed."""
    for world in seen:
        first = world[0]
        if any(not _same(first, run) for run in world[1:]):
            return ()
    return ("every run on a file released the same: the program draws no noise, or draws it from a fixed seed.",)


def _same(one: Observed, other: Observed) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name], equal_nan=True) for name in one)


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError:
        words = []
    if not words:
        raise SettingError(f"{command!r} is no command line.")
    return words


# Where runs are kept


@contextlib.contextmanager
def _folder(folder: Path | None) -> Iterator[Path]:
    """The user's folder, held by this audit alone while it lasts, or one that goes away."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="noiseproof-") as temporary:
            yield Path(temporary)
        return
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SettingError(f"another audit is at work in {folder}; wait for it, or take another folder.") from None
        for left in folder.glob("scratch-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield folder


def _claim(place: Path, program: Program, files: Sequence[Path], trials: int, seed: int) -> None:
    """Refuse a folder that holds another audit; also one of another length, since looking and then adding is no audit."""
    digest = hashlib.sha256(repr((program.command, program.score, trials, seed)).encode())
    for path in files:
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    path, document = place / "audit.json", json.dumps({"audit": digest.hexdigest()})
    if path.is_file() and path.read_text() != document:
        raise SettingError(
            f"{place} holds another audit: of another program, other files, or another number of trials; take another folder."
        )
    write_whole(path, document, mode=0o600)


# Runs


@dataclass(frozen=True)
class _Run:
    world: int
    index: int

    @property
    def file(self) -> str:
        return f"run-{self.world}-{self.index}.npz"

    def failed(self, failure: Failure, words: str) -> AuditError:
        return AuditError.of(
            f"the program {words} in run {self.index} on the file {_FILES[self.world]}, so no bound was computed; whether it "
            "fails must not depend on one record either.",
            failure,
            range(self.index, self.index + 1),
            world=self.world,
        )


class _Runs:
    """Runs that are not in the folder yet, several at a time, each in a process group that ends with it.

    Threads wait for them: the work is in the programs, and on an interruption this process still knows all of them.
    """

    def __init__(self, place: Path, program: Program, files: Sequence[Path], jobs: int) -> None:
        self._place, self._program, self._files, self._jobs = place, program, files, jobs
        self._alive: set[subprocess.Popen[bytes]] = set()
        self._guard = threading.Lock()
        self._stopped = False

    def play(self, trials: int, seed: int, progress: Progress) -> tuple[list[Observed], list[Observed]]:
        """What all runs on either file released."""
        every = [_Run(world, index) for index in range(trials) for world in (0, 1)]
        order = np.random.default_rng(seed).permutation(len(every))
        todo = [every[place] for place in order if not (self._place / every[place].file).is_file()]
        pool = ThreadPoolExecutor(self._jobs)
        try:
            with progress.task("runs", len(every)) as task:
                task.advance(len(every) - len(todo))
                waiting = {pool.submit(self._once, run) for run in todo}
                while waiting:
                    done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                    for one in done:
                        # One that was not begun since another failed: that one's error is raised.
                        with contextlib.suppress(CancelledError):
                            one.result()
                    task.advance(len(done))
        finally:
            self._stop()
            pool.shutdown(cancel_futures=True)
        found = [[self._read(_Run(world, index)) for index in range(trials)] for world in (0, 1)]
        return found[0], found[1]

    def _read(self, run: _Run) -> Observed:
        with np.load(self._place / run.file) as held:
            return dict(held)

    def _once(self, run: _Run) -> None:
        try:
            self._release(run)
        except BaseException:
            self._stopped = True  # here, and not where it is heard of: until then further runs would begin
            raise

    def _release(self, run: _Run) -> None:
        with tempfile.TemporaryDirectory(prefix="scratch-", dir=self._place) as scratch:
            source = self._files[run.world]
            copy = Path(scratch) / f"data{source.suffix}"
            shutil.copyfile(source, copy)
            os.utime(copy, (0, 0))
            out = Path(scratch) / "out"
            out.mkdir()
            places = {"{data}": str(copy), "{release}": str(out / "release")}
            self._call(run, self._program.command, places)
            written = sorted(out.iterdir())
            if len(written) != 1 or written[0].is_symlink() or not written[0].is_file():
                raise run.failed("kind", f"wrote {len(written)} files where one release is due")
            if self._program.score is None:
                try:
                    found = read_release(written[0])
                except DataError as error:
                    raise run.failed("kind", str(error).rstrip(".")) from None
            else:
                said = self._call(run, self._program.score, {"{release}": str(written[0])}, listen=True)
                found = {"score": np.array([_number(run, said)])}
        with whole_file(self._place / run.file, mode=0o600) as file:
            np.savez(file, **found)  # type: ignore[arg-type]

    def _call(self, run: _Run, command: str, places: dict[str, str], *, listen: bool = False) -> bytes:
        words = _words(command)
        for name, path in places.items():
            words = [word.replace(name, path) for word in words]
        quiet = subprocess.DEVNULL
        with self._guard:
            if self._stopped:
                raise CancelledError
            try:
                process = subprocess.Popen(
                    words,
                    stdin=quiet,
                    stdout=subprocess.PIPE if listen else quiet,
                    stderr=quiet,
                    start_new_session=True,
                )
            except OSError as error:
                raise SettingError(f"{words[0]} cannot be run ({error.strerror}).") from None
            self._alive.add(process)
        with contextlib.suppress(OSError, AttributeError):  # gone already, or a system without it
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (4 * LARGEST, 4 * LARGEST))
        try:
            said = process.communicate(timeout=self._program.timeout)[0]
        except subprocess.TimeoutExpired:
            raise run.failed("hang", f"gave no answer in {self._program.timeout:g} seconds") from None
        finally:
            _end(process)
            with self._guard:
                self._alive.discard(process)
        if process.returncode != 0:
            how = f"ended with exit code {process.returncode}" if process.returncode > 0 else "was killed"
            raise run.failed("crash", how)
        return said or b""

    def _stop(self) -> None:
        with self._guard:
            self._stopped = True
            for process in self._alive:
                _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _number(run: _Run, said: bytes) -> float:
    try:
        value = float(said.decode().strip())
    except (ValueError, UnicodeDecodeError):
        raise run.failed("kind", "got a score that is no number") from None
    if np.isnan(value):
        raise run.failed("nan", "got a score of NaN")
    return value
