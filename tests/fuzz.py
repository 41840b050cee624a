"""Fuzz the parsers of bytes that strangers may have made: `python -m tests.fuzz SECONDS [NAME...]`, each for so many seconds.

Inputs are made by atheris, which looks at what the package's code does with them, and by changes of right documents in
turns; atheris (`pip install atheris`) is no part of the package's environment. What a parser raises that is none of the
package's own sentences is told, with the input, and the next input tried.
"""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

HTTP = "HTTP"
"""What is sent to a service over its connections, beside the parsers of `tests/untrusted.py`."""
_SLOW_SECONDS, _MEGABYTES = 300, 4096
"""What one input may take before it counts as an attack that worked; a process that is stopped for a while takes its time."""


def fuzz(name: str, seconds: float) -> None:
    """Fuzz one parser in this process, which ends with it; what was found is printed as a line of JSON."""
    import atheris

    with atheris.instrument_imports(include=["noiseproof"]):
        from noiseproof.errors import NoiseproofError
        from tests import untrusted
    warnings.simplefilter("ignore")
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    if name == HTTP:
        from tests.serve.conftest import Running

        right, parse = untrusted.of_connections(Running(f"sqlite:///{folder / 'ledger.db'}", **untrusted.HASTE))
    else:
        right, parse = untrusted.parsers(folder)[name]
    found: dict[str, str] = {}
    counts: Counter[str] = Counter()
    slowest, until = 0.0, time.monotonic() + seconds

    def report() -> None:
        print(json.dumps({"parser": name, **counts, "slowest": round(slowest, 3), "found": found}), flush=True)

    def one(content: bytes) -> None:
        nonlocal slowest
        began = time.monotonic()
        counts["inputs"] += 1
        try:
            parse(content)
        except NoiseproofError as error:
            counts["refused"] += 1
            if "\n" in str(error):
                found.setdefault(f"more than a line: {str(error)[:80]}", base64.b64encode(content).decode())
        except Exception as error:
            frames = [f for f in traceback.extract_tb(error.__traceback__) if "noiseproof" in f.filename]
            where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "the harness"
            found.setdefault(
                f"{type(error).__name__} at {where}: {str(error)[:80]}", base64.b64encode(content).decode()
            )
        now = time.monotonic()
        slowest = max(slowest, now - began)
        if now > until:
            report()
            os._exit(0)  # atheris ends no other way

    def change(content: bytes, most: int, seed: int) -> bytes:
        chance = random.Random(seed)
        if chance.random() < 0.5:
            return bytes(atheris.Mutate(content, most))
        return untrusted.mutated(chance, content if chance.random() < 0.5 else right)[:most]

    parse(right)
    corpus = folder / "corpus"
    corpus.mkdir()
    (corpus / "right").write_bytes(right)
    limits = [f"-timeout={_SLOW_SECONDS}", f"-rss_limit_mb={_MEGABYTES}", f"-max_len={max(4096, 4 * len(right))}"]
    arguments = [
        sys.argv[0],
        str(corpus),
        *limits,
        f"-artifact_prefix={folder}/",
        "-verbosity=0",
        "-print_final_stats=0",
    ]
    atheris.Setup(arguments, one, custom_mutator=change, enable_python_coverage=True)
    atheris.Fuzz()


def main() -> None:
    """Fuzz every parser that was named, or all, each in a process of its own."""
    seconds, *names = sys.argv[1:]
    if len(names) == 1:
        fuzz(names[0], float(seconds))
    if not names:
        from tests import untrusted

        names = [*untrusted.parsers(Path(tempfile.mkdtemp(prefix="fuzz-"))), HTTP]
    for name in names:
        ended = subprocess.run(
            [sys.executable, "-m", "tests.fuzz", seconds, name], check=False, stderr=subprocess.PIPE, text=True
        )
        if ended.returncode:
            print(json.dumps({"parser": name, "ended": ended.returncode, "said": ended.stderr[-2000:]}), flush=True)


if __name__ == "__main__":
    main()
