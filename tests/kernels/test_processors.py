"""Kernels of older processors, and no kernels at all: what is taken elsewhere computes the same as what is taken here."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "src" / "noiseproof" / "kernels"
RUN = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("noiseproof.kernels._compiled", sys.argv[1])
module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from noiseproof import kernels
assert kernels.compiled is module
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""
"""Tests with another library in the place of the one that was installed."""


def _tried(command: list[str], **environment: str) -> None:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert " passed" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("gcc") is None or platform.machine() != "x86_64", reason="needs gcc on a processor of x86's kind"
)
@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64"])
def test_kernels_of_an_older_processor_do_what_torch_does(level, tmp_path):
    library = tmp_path / "_compiled.so"
    # As setup.py has it, for one processor.
    flags = "-O3 -std=c11 -fopenmp -fno-math-errno -fno-trapping-math -ffp-contract=fast -fPIC -shared -Wno-psabi"
    subprocess.run(
        [
            *("gcc", *flags.split(), "-DONE_PROCESSOR", f"-march={level}", f"-I{sysconfig.get_path('include')}"),
            *sorted(map(str, KERNELS.glob("*.c"))),
            *("-o", str(library), "-lm"),
        ],
        check=True,
    )
    _tried(["-c", RUN, str(library), "-q", "-p", "no:cacheprovider", "tests/kernels/test_kernels.py"])


@pytest.mark.slow
def test_the_engine_does_without_kernels():
    files = ["tests/engine/rules", "tests/engine/test_per_record.py", "tests/engine/test_private_gradients.py"]
    _tried(["-m", "pytest", "-q", "-p", "no:cacheprovider", *files], NOISEPROOF_KERNELS="off")
