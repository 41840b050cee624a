"""What is served: its price, its promise, and what is refused before anything is served."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from noiseproof.data.dataset import Dataset, Public
from noiseproof.errors import LedgerError, SettingError, UnsupportedError
from noiseproof.methods import registry
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Reproducible
from noiseproof.privacy.events import GaussianDpEvent, LaplaceDpEvent, PureDpEvent
from noiseproof.releases.release import DataRelease
from noiseproof.serve import Settings, create_app
from noiseproof.serve.ledger import Amount
from noiseproof.serve.models import LedgerConnection, ServedModel
from noiseproof.serve.service import name_bundles


@pytest.fixture
def release(start):
    return type(start().noisy)


def test_a_price_is_what_an_answer_does_in_the_measure_that_suits_all_of_them(release):
    assert ServedModel("m", release()).price == Amount.cost("gdp", 0.01)


@pytest.mark.parametrize("method", [name for name, one in registry().items() if one.place == "predictions"])
def test_every_method_that_answers_queries_can_be_served_and_all_its_answers_are_within_its_promise(method):
    generator = torch.Generator().manual_seed(0)
    features, labels = torch.rand(60, 4, generator=generator), torch.arange(60) % 3
    dataset = Dataset("d", features, labels, Public(shape=(4,), classes=("no", "yes", "perhaps")))
    quick = {"epochs": 1} if "epochs" in registry()[method].__dataclass_fields__ else {}
    made = registry()[method](**quick).fit(
        Network("lu-mlp", (4,), 3), dataset, Budget(3.0, 1e-5, queries=50), rng=Reproducible(0)
    )
    model = ServedModel("m", made)
    assert model.price.times_within(model.capacity) == 50
    answers = model.answer(features[:7], Reproducible(1))
    assert answers.shape == (7, 3)
    assert torch.allclose(answers.sum(1), torch.ones(7))


def test_of_several_descriptions_of_an_answer_the_cheapest_is_charged(release, monkeypatch):
    monkeypatch.setattr(release, "events", (PureDpEvent(1.0), PureDpEvent(0.4)))
    assert ServedModel("m", release(queries=1)).price == Amount.cost("pure", 0.4)


def test_all_answers_together_cost_no_more_than_the_accountant_says(release, monkeypatch):
    monkeypatch.setattr(release, "events", (LaplaceDpEvent(20.0),))
    model = ServedModel("m", release(queries=2000))
    assert model.price.measure == "rdp"
    assert model.capacity.epsilon(1e-5) < 12.2 < 2000 / 20


def test_queries_that_were_asked_before_are_gone(release):
    model = ServedModel("m", release(queries=20, asked=5))
    assert model.price.times_within(model.capacity) == 15


def test_a_promise_beyond_counting_is_cut_off(release, monkeypatch):
    monkeypatch.setattr(release, "events", (GaussianDpEvent(0.02),))
    model = ServedModel("m", release(queries=10**6))
    assert 0 < model.price.times_within(model.capacity) < 10**6


def test_what_answers_no_queries_or_names_no_price_is_refused(release, monkeypatch):
    dataset = Dataset("d", torch.zeros(1, 4), torch.zeros(1, dtype=torch.long), release().public)
    with pytest.raises(UnsupportedError, match="answers no queries"):
        ServedModel("m", DataRelease(dataset, release().card, {}))
    monkeypatch.setattr(release, "events", ())
    with pytest.raises(SettingError, match="no event"):
        ServedModel("m", release())


def test_seeded_releases_are_for_research_and_served_only_when_that_is_said(release, tmp_path):
    seeded = release()
    seeded.card = seeded.card.model_copy(update={"randomness": "reproducible"})
    settings = Settings(ledger=str(tmp_path / "seeded.db"))
    with pytest.raises(SettingError, match="allow-seeded"):
        create_app(settings, {"m": seeded})
    create_app(replace(settings, allow_seeded=True), {"m": seeded}).state.service.close()


def test_another_release_under_the_same_name_is_refused(release, tmp_path):
    one, other = release(), release()
    with torch.no_grad():
        next(other.module.parameters()).add_(1)
    url = str(tmp_path / "names.db")
    connection = LedgerConnection(url, [ServedModel("m", one)])
    assert connection.ledger.models() == ["m"]
    connection.close()
    with pytest.raises(LedgerError, match="another release"):
        _ = LedgerConnection(url, [ServedModel("m", other)]).database


def test_a_connection_opens_when_the_database_is_there_at_last(release, tmp_path):
    folder = tmp_path / "later"
    connection = LedgerConnection(str(folder / "ledger.db"), [ServedModel("m", release())])
    with pytest.raises(SettingError):
        _ = connection.database
    folder.mkdir()
    assert connection.ledger.models() == ["m"]
    connection.close()


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate": 0},
        {"rows": 0},
        {"body": -1},
        {"body_seconds": float("nan")},
        {"client_answers": -1},
        {"bundles": {"a/b": "x"}},
        {"bundles": {"": "x"}},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong):
    with pytest.raises(SettingError):
        Settings(ledger="ledger.db", **wrong)


def test_settings_survive_the_way_to_a_worker():
    settings = Settings(ledger="ledger.db", bundles={"m": "folder"}, client_answers=3, memoise=True)
    assert Settings.from_json(settings.to_json()) == settings


def test_bundles_are_named_after_their_folders_or_as_one_says(tmp_path):
    assert name_bundles([str(tmp_path / "digits"), f"other={tmp_path / 'digits'}"]) == {
        "digits": str(tmp_path / "digits"),
        "other": str(tmp_path / "digits"),
    }
    with pytest.raises(SettingError, match="two bundles"):
        name_bundles(["a/digits", "b/digits"])
