"""The site builds without a warning, and its pages ask nobody for anything."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import noiseproof
from noiseproof import methods

ROOT = Path(__file__).parents[2]


PACKAGES = (
    "attacks",
    "audits",
    "data",
    "engine",
    "methods",
    "methods.gradients",
    "methods.inputs",
    "methods.losses",
    "methods.parameters",
    "methods.predictions",
    "networks",
    "privacy",
    "releases",
    "run",
)


def undocumented(site):
    """Public names and methods that the API reference does not have."""
    inventory = zlib.decompress((site / "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    known = {line.partition(" ")[0] for line in inventory.splitlines()}
    packages = [noiseproof, *(importlib.import_module(f"noiseproof.{name}") for name in PACKAGES)]
    named = [(name, getattr(package, name)) for package in packages for name in package.__all__]
    named += methods.registry().items()
    # Constants, and names of types, have no module of their own to be looked up by.
    paths = {
        f"{found.__module__}.{found.__qualname__}" for _, found in named if inspect.isclass(found) or callable(found)
    }
    return sorted(path for path in paths - known if path.startswith("noiseproof."))


@pytest.mark.slow
def test_the_site_builds_strictly_and_makes_no_request_to_others(tmp_path):
    ran = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout + ran.stderr) == (0, "")
    assert undocumented(tmp_path) == []
    loading = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)")
    styles = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')\s]+)")
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        found = [url for url in loading.findall(page.read_text(encoding="utf-8")) if "rel=canonical" not in url]
        assert not found, f"{page.relative_to(tmp_path)} loads {found}"
    for sheet in tmp_path.rglob("*.css"):
        assert not styles.findall(sheet.read_text(encoding="utf-8")), f"{sheet.name} loads from elsewhere"
