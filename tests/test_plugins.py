"""What installed packages bring is imported once, and a broken package is named."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from noiseproof import plugins
from noiseproof.attacks import attack, attack_names
from noiseproof.data import formats
from noiseproof.errors import MissingPartError, SettingError

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


def test_a_missing_part_is_named_with_the_extra_that_brings_it():
    plugins.need("nothing needs", "plots", "json")
    with pytest.raises(MissingPartError, match=r"pictures need no_such_part: pip install 'noiseproof\[plots\]'\."):
        plugins.need("pictures need", "plots", "json", "no_such_part")


@pytest.mark.parametrize("module", ["noiseproof.run", "noiseproof.report", "noiseproof.sklearn"])
def test_nothing_imports_an_extra_unasked(module):
    code = f"import sys, {module}; print(sorted({{'matplotlib', 'fastapi', 'ray', 'mlflow'}} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
