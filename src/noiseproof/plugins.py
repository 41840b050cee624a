"""Modules of installed packages that bring methods, attacks or data formats of their own."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from noiseproof.errors import SettingError


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
