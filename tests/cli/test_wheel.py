"""The wheel: it is built and works without a compiler, and has neither papers nor benchmarks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_wheel_works_without_a_compiler_and_says_that_studies_run_from_a_checkout(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("papers", "bench"):
        shutil.copytree(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    env = {**os.environ, "CC": "/bin/false"}
    built = [*pip, "wheel", str(source), "--no-deps", "--no-build-isolation", "-q", "-w", str(tmp_path)]
    subprocess.run(built, env=env, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "installed")
    assert {name.split("/")[0].split("-")[0] for name in names} == {"noiseproof"}
    data = [path for path in (ROOT / "src").rglob("*") if path.suffix in (".html", ".css", ".js", ".json", ".typed")]
    assert data
    assert {str(path.relative_to(ROOT / "src")) for path in data} <= set(names)
    assert not any(name.endswith(".so") for name in names)
    installed = {**env, "PYTHONPATH": str(tmp_path / "installed")}
    for command in (["study", "lin"], ["bench"]):
        ran = subprocess.run(
            [sys.executable, "-m", "noiseproof", *command], env=installed, capture_output=True, text=True
        )
        assert ran.returncode == 1
        assert ran.stderr.count("error:") == 1
        assert "is part of the repository, not of the installed package" in ran.stderr

    quick = ["--data", "breast-cancer", "--methods", "functional", "--fits", "1", "--trials", "100"]
    for command in (
        ["compare", *quick, "--out", "compared"],
        ["train", "functional", "--data", "breast-cancer", "--no-baseline", "--out", "model"],
        ["report", "model", "--out", "model.html"],
        ["synth", "--data", "breast-cancer", "--rows", "20", "--out", "synthetic.csv"],
    ):
        subprocess.run(
            [sys.executable, "-m", "noiseproof", *command], env=installed, cwd=tmp_path, check=True, capture_output=True
        )
    assert all((tmp_path / name).is_file() for name in ("compared/report.html", "model.html", "synthetic.csv"))
