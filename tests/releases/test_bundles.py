"""A bundle is whole, unchanged and no pickle, or it is refused in a sentence."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
import torch

from noiseproof import methods, releases
from noiseproof.data.dataset import Column, Dataset, Public
from noiseproof.errors import BundleError, SettingError
from noiseproof.networks import Network
from noiseproof.privacy import Audit, Card, Claim, Proof
from noiseproof.privacy.events import GaussianDpEvent, sampled_gaussian
from noiseproof.releases import bundles

PUBLIC = Public(
    shape=(5,), classes=("a", "b", "c"), columns=(Column("age", 0.0, 99.0), Column("sex", categories=("f", "m")))
)


def card(**changes):
    fields = {
        "method": "dp-sgd",
        "place": "gradients",
        "neighbours": "add-or-remove",
        "randomness": "reproducible",
        "claimed": Claim(epsilon=3.0, delta=1e-5, source="test"),
        "proven": Proof(epsilon=2.9, delta=1e-5, accountant="pld"),
        "ran": {"steps": 7},
    }
    return Card(**{**fields, **changes})


@pytest.fixture
def release():
    network = Network("mlp", (5,), 3)
    return releases.ModelRelease(network.build(1), network, card(), PUBLIC, {"epochs": 2.0})


@pytest.fixture
def bundle(release, tmp_path):
    return release.save(tmp_path / "bundle")


def test_a_loaded_bundle_answers_the_same_predictions_and_carries_the_same_card(release, bundle):
    loaded = bundles.load(bundle)
    features = torch.rand(9, 5, generator=torch.Generator().manual_seed(0))
    assert torch.equal(loaded.predict(features), release.predict(features))
    assert loaded.card == release.card
    assert loaded.public == release.public
    assert loaded.settings == release.settings


def test_a_bundle_holds_three_files_and_no_pickle(bundle):
    assert sorted(path.name for path in bundle.iterdir()) == ["card.json", "settings.json", "weights.safetensors"]
    assert not any(path.read_bytes().startswith((b"\x80", b"PK")) for path in bundle.iterdir())


def test_synthetic_records_survive_a_bundle(tmp_path):
    dataset = Dataset("made", torch.rand(4, 5), torch.tensor([0, 1, 2, 0]), PUBLIC)
    path = releases.DataRelease(dataset, card(), {}).save(tmp_path / "data")
    loaded = bundles.load(path)
    assert torch.equal(loaded.dataset.features, dataset.features)
    assert torch.equal(loaded.dataset.labels, dataset.labels)


@pytest.mark.parametrize("name", ["card.json", "settings.json", "weights.safetensors"])
@pytest.mark.parametrize("harm", ["missing", "truncated", "changed", "empty"])
def test_a_damaged_bundle_is_refused_in_words(bundle, name, harm):
    path = bundle / name
    content = path.read_bytes()
    if harm == "missing":
        path.unlink()
    elif harm == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif harm == "empty":
        path.write_bytes(b"")
    else:
        path.write_bytes(content.replace(b"2", b"1") if name.endswith("json") else content[:-1] + b"!")
    with pytest.raises(BundleError, match=name.replace(".", r"\.")):
        bundles.load(bundle)


def test_a_card_with_a_smaller_epsilon_written_into_it_is_noticed(bundle):
    text = json.loads((bundle / "card.json").read_text())
    text["proven"]["epsilon"] = 0.1
    (bundle / "card.json").write_text(json.dumps(text))
    with pytest.raises(BundleError, match="changed"):
        bundles.read_card(bundle)


def test_an_audit_is_written_into_the_card_and_the_bundle_stays_whole(bundle):
    audited = Audit(epsilon=4.0, delta=1e-5, confidence=0.95, trials=100, game="test")
    bundles.write_card(bundle, bundles.read_card(bundle).with_audit(audited))
    assert bundles.load(bundle).card.verdict == "refuted"


def test_a_bundle_cannot_name_code_of_others_to_be_run(bundle):
    settings = json.loads((bundle / "settings.json").read_text())
    settings["class"] = "os.system"
    digests = settings["digests"]
    digests.pop("settings.json")
    digests["settings.json"] = bundles._digest(bundles._canonical(settings))
    (bundle / "settings.json").write_text(json.dumps(settings))
    with pytest.raises(BundleError, match="no release of class"):
        bundles.load(bundle)


def test_a_newer_bundle_replaces_an_older_one_whole(release, bundle):
    release.settings["epochs"] = 3.0
    release.save(bundle)
    assert bundles.load(bundle).settings == {"epochs": 3.0}
    assert [path.name for path in bundle.parent.iterdir()] == ["bundle"]


def test_a_folder_with_other_things_in_it_is_never_overwritten(release, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(BundleError, match="not a bundle"):
        release.save(tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_nothing_half_written_stays_behind_when_the_disk_is_full(release, tmp_path, monkeypatch):
    def full(path, content, mode):
        path.write_bytes(content[:3])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundles, "write_whole", full)
    with pytest.raises(OSError, match="No space"):
        release.save(tmp_path / "bundle")
    assert list(tmp_path.iterdir()) == []


def test_a_network_of_the_users_own_needs_its_module_to_be_loaded(tmp_path):
    module = torch.nn.Linear(5, 3)
    network = Network.of(module, (5,), 3)
    path = releases.ModelRelease(module, network, card(), PUBLIC, {}).save(tmp_path / "own")
    with pytest.raises(SettingError, match="pass the module"):
        bundles.load(path)
    loaded = bundles.load(path, module=torch.nn.Linear(5, 3))
    assert torch.equal(loaded.module.weight, module.weight)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_bundle_that_stays_inside_is_its_owners_alone(release, tmp_path, monkeypatch, mask):
    before = os.umask(mask)
    try:
        release.save(tmp_path / "open")
        monkeypatch.setattr(type(release), "stays_inside", True)
        release.save(tmp_path / "inside")
        bundles.write_card(tmp_path / "inside", release.card)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "inside").iterdir()}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "inside").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "open").stat().st_mode) == 0o777 & ~mask
    assert stat.S_IMODE((tmp_path / "open" / "card.json").stat().st_mode) == 0o666 & ~mask


def test_a_release_keeps_its_event_log(release, tmp_path):
    release.event_log = ((sampled_gaussian(0.1, 1.5), 30), (GaussianDpEvent(2.0), 1))
    release.save(tmp_path / "bundle")
    assert bundles.load(tmp_path / "bundle").event_log == release.event_log


@pytest.mark.parametrize("kind", ["model", "prediction"])
def test_bundles_of_version_0_1_are_read_with_todays_names_of_settings(kind):
    release = bundles.load(Path(__file__).parent / "bundles_0_1" / kind)
    assert release.kind == kind
    assert release.event_log == ()
    built = methods.build(release.method, release.settings).settings()
    assert built == {**built, **release.settings}
    assert release.predict(torch.zeros(2, *release.public.shape)).shape == (2, 2)


@pytest.mark.parametrize(
    ("method", "old", "new"),
    [
        ("dp-sgd", {"clip": 0.5, "sigma": 2.0}, {"max_grad_norm": 0.5, "noise_multiplier": 2.0}),
        ("shard-mean", {"clip": 0.5, "batch": 8}, {"clip": 0.5, "batch_size": 8}),
        ("rdp-gan", {"sigma": 2.0}, {"sigma": 2.0}),
        ("quantile-flat", {"clip": 1.0, "micro_batch": 4, "quantile": 0.5}, {"quantile": 0.5}),
    ],
)
def test_old_settings_get_the_names_that_their_method_has_today(method, old, new):
    assert bundles._with_todays_names(method, old) == new
