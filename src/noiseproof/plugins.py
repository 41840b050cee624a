"""Modules of installed packages that bring methods, attacks or data formats of their own; parts that extras bring."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec

from noiseproof.errors import MissingPartError, SettingError


def need(what: str, extra: str, *modules: str) -> None:
    """Say in words what to install if a part that not everybody needs is missing.

    Args:
        what: What needs it, as the start of a sentence.
        extra: The extra of the package that brings it.
        modules: What must be there.

    Raises:
        MissingPartError: If one of them is not.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise MissingPartError(f"{what} {', '.join(missing)}: pip install 'noiseproof[{extra}]'.")


@cache
def load_plugins(group: str) -> None:
    """Import, once, what installed packages name among their entry points of a group; their decorators do the rest.

    Args:
        group: `noiseproof.methods`, `noiseproof.attacks` or `noiseproof.formats`.

    Raises:
        SettingError: If one of them cannot be imported.
    """
    for entry in entry_points(group=group):
        try:
            entry.load()
        except Exception as error:
            raise SettingError(
                f"{entry.value.partition(':')[0]}, which an installed package names for {group}, cannot be imported "
                f"({type(error).__name__}: {error}); repair or uninstall it."
            ) from error
