"""What installed packages bring is imported once, and a broken package is named."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import pytest

from noiseproof import plugins
from noiseproof.attacks import attack, attack_names
from noiseproof.data import formats
from noiseproof.errors import SettingError

MODULE = """
from noiseproof.attacks import Attack, register_attack
from noiseproof.data import register_format

@register_format(".tab")
def read_tab(path, schema):
    raise NotImplementedError

@register_attack
class Guess(Attack):
    name = "guess"

    def scores(self, target, records):
        raise NotImplementedError
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Let a package be installed whose entry points are of the given value."""

    def install(value: str) -> None:
        entry = EntryPoint("theirs", value, "")
        monkeypatch.setattr(plugins, "entry_points", lambda group: [entry])

    monkeypatch.setattr(formats, "_FORMATS", dict(formats._FORMATS))
    monkeypatch.setattr(attack, "_REGISTRY", dict(attack.attacks()))
    (tmp_path / "theirs_for_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    plugins.load_plugins.cache_clear()
    yield install
    plugins.load_plugins.cache_clear()
    sys.modules.pop("theirs_for_test", None)


def test_an_installed_package_brings_formats_and_attacks(installed, tmp_path):
    installed("theirs_for_test")
    assert formats.extension(tmp_path / "people.tab") == ".tab"
    assert "guess" in attack_names("answers")


def test_a_package_that_cannot_be_imported_is_named(installed):
    installed("not_there_at_all:thing")
    with pytest.raises(SettingError, match=r"not_there_at_all.*cannot be imported"):
        attack_names()
