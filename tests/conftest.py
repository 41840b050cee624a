"""What all tests share: real data where it is there, and one torch thread so that results do not depend on cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def _find(name: str) -> Path | None:
    folders = [Path(folder) for folder in os.environ.get("NOISEPROOF_DATA", "").split(os.pathsep) if folder]
    return next((folder / name for folder in folders if (folder / name).exists()), None)


@pytest.fixture(scope="session")
def real_data():
    """`real_data("mnist.npz")` is the file's path under NOISEPROOF_DATA; the test is skipped where it is absent."""

    def path(name: str) -> Path:
        found = _find(name)
        if found is None:
            pytest.skip(f"{name} is not under NOISEPROOF_DATA")
        return found

    return path
