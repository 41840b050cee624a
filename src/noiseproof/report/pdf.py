"""A page as PDF, printed by a browser that is installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from noiseproof.errors import UnsupportedError
from noiseproof.files import write_whole

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "msedge",
    "microsoft-edge",
)
_SECONDS = 120


def print_pdf(page: str, out: str | Path) -> None:
    """Print an HTML page to a PDF file with a headless Chromium, which fetches nothing for it.

    Args:
        page: The document, whole in itself.
        out: Where the PDF is to be.

    Raises:
        UnsupportedError: If no such browser is installed, or it prints nothing.
    """
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        raise UnsupportedError(
            "a PDF is printed by Chromium, Chrome or Edge, and none is installed; write .html and print it from a browser."
        )
    with tempfile.TemporaryDirectory(prefix="noiseproof-") as folder:
        source, printed = Path(folder) / "page.html", Path(folder) / "page.pdf"
        source.write_text(page, encoding="utf-8")
        options = ["--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
        # Chromium's sandbox does not start for root, as whom containers run; the page holds nothing foreign.
        options += ["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []
        options += [f"--user-data-dir={folder}/profile", "--no-pdf-header-footer", f"--print-to-pdf={printed}"]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run([browser, *options, source.as_uri()], capture_output=True, timeout=_SECONDS, check=False)
        if not printed.is_file():
            raise UnsupportedError(f"{browser} printed nothing; write .html and print it from a browser.")
        write_whole(out, printed.read_bytes())
