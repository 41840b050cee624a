"""Parts that are in the repository but not in the wheel: `papers` and `bench`."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType


def load_part(name: str) -> ModuleType:
    """The package `name` of the checkout that noiseproof runs from.

    Raises:
        UnsupportedError: If noiseproof was installed from a wheel.
    """
    import noiseproof
    from noiseproof.errors import UnsupportedError

    root = Path(noiseproof.__file__).parents[2]
    if not (root / name / "__init__.py").is_file():
        raise UnsupportedError(
            f"`{name}` is part of the repository, not of the installed package; clone the repository, run `make install`"
            " there and use its .venv/bin/noiseproof."
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
        # Worker processes and Ray tasks find it the same way.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    return importlib.import_module(name)
