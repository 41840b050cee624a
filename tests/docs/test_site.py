"""The site builds without a warning, and its pages ask nobody for anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


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
    loading = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)")
    styles = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')\s]+)")
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        found = [url for url in loading.findall(page.read_text(encoding="utf-8")) if "rel=canonical" not in url]
        assert not found, f"{page.relative_to(tmp_path)} loads {found}"
    for sheet in tmp_path.rglob("*.css"):
        assert not styles.findall(sheet.read_text(encoding="utf-8")), f"{sheet.name} loads from elsewhere"
