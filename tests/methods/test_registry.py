"""The registry: settings for a number of records, the network that a method takes, packages of the user's own."""

import sys
from importlib.metadata import EntryPoint

import pytest

from noiseproof import methods, plugins
from noiseproof.data.dataset import Public
from noiseproof.errors import SettingError

VECTORS = Public(shape=(5,), classes=("a", "b"))
PICTURES = Public(shape=(1, 28, 28), classes=("a", "b"), kind="image")
TAKE_NONE = {"functional", "dp-gan", "marginals", "moments", "rdp-gan", "zero-gan", "logits", "votes"}


@pytest.mark.parametrize("records", [50, 30_000, 200_000])
@pytest.mark.parametrize("name", list(methods.registry()))
def test_every_method_can_say_what_suits_so_many_records(name, records):
    usual = methods.build(name)
    suited = usual.for_records(records, VECTORS)
    assert type(suited) is type(usual)
    changed = {key for key, value in suited.settings().items() if value != usual.settings()[key]}
    assert changed <= {"epochs", "batch_size", "length"}
    if "epochs" in changed:
        assert 0 < suited.epochs < usual.epochs


def test_many_records_are_seen_less_often_and_in_larger_batches():
    assert methods.build("none").for_records(1000, VECTORS) == methods.build("none")
    assert methods.build("none").for_records(200_000, VECTORS).epochs == 5_000 * 64 / 200_000
    assert methods.build("neuron-laplace").for_records(200_000, VECTORS).epochs == 3
    assert methods.build("dp-sgd").for_records(48_000, VECTORS).batch_size == 2048
    assert methods.build("quantile-flat").for_records(25_000, VECTORS).epochs == 10
    assert methods.build("shard-mean").for_records(4000, VECTORS) == methods.build("shard-mean")


def test_settings_of_the_users_own_go_before_those_that_suit_the_records():
    method = methods.build("dp-sgd", {"epochs": "30"}, records=200_000, public=VECTORS)
    assert method.epochs == 30
    assert method.batch_size == 4096


def test_methods_name_their_network():
    taken = {name: methods.build(name).network(PICTURES) for name in methods.registry()}
    assert {name for name, network in taken.items() if network is None} == TAKE_NONE
    assert taken["dp-sgd"].name == "small-cnn"
    assert taken["neuron-gaussian"].name == "lu-mlp"


def test_every_reading_makes_the_method_with_settings_that_differ_from_its_own():
    found = {f"{name}:{each}": kind for name, kind in methods.registry().items() for each in kind.readings}
    assert set(found) >= {"adlm:program", "ilm:program"}
    for name, kind in found.items():
        read, settings = methods.reading(name)
        assert read is kind
        assert methods.build(kind.name, settings) != methods.build(kind.name)
    assert methods.reading("dp-sgd") == (methods.get("dp-sgd"), {})
    with pytest.raises(SettingError, match="dp-sgd has no reading 'program'; it has none"):
        methods.reading("dp-sgd:program")
    with pytest.raises(SettingError, match="it has program"):
        methods.reading("ilm:papers")


OWN = """
from dataclasses import dataclass
from typing import ClassVar
from noiseproof.methods import register
from noiseproof.methods.baseline import Baseline

@register
@dataclass(frozen=True)
class Own(Baseline):
    '''A method of the user's own.'''
    name: ClassVar[str] = "installed-own"
"""


@pytest.fixture
def installed(monkeypatch, tmp_path):
    """Pretend that a package with an entry point is installed."""

    def install(module, text):
        (tmp_path / f"{module}.py").write_text(text)
        monkeypatch.syspath_prepend(str(tmp_path))
        entry = EntryPoint("own", module, "noiseproof.methods")
        monkeypatch.setattr(plugins, "entry_points", lambda *, group: [entry] if group == entry.group else [])
        plugins.load_plugins.cache_clear()

    before = dict(methods._REGISTRY)
    yield install
    methods._REGISTRY.clear()
    methods._REGISTRY.update(before)
    plugins.load_plugins.cache_clear()
    for module in ("own_methods", "broken_methods"):
        sys.modules.pop(module, None)


def test_methods_of_an_installed_package_are_found(installed):
    installed("own_methods", OWN)
    assert methods.build("installed-own", {"epochs": 2}).epochs == 2


def test_an_installed_package_that_cannot_be_imported_is_named(installed):
    installed("broken_methods", "import nothing_of_that_name")
    with pytest.raises(SettingError, match=r"broken_methods, .* repair or uninstall"):
        methods.registry()
