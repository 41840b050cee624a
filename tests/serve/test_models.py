"""What is served: its price, its promise, and what is refused before anything is served."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import torch

from noiseproof.data.dataset import Dataset, Public
from noiseproof.errors import BudgetError, BundleError, LedgerError, SettingError, UnsupportedError
from noiseproof.methods import registry
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Reproducible
from noiseproof.privacy.events import GaussianDpEvent, LaplaceDpEvent, PureDpEvent
from noiseproof.releases import signing, signing_keys
from noiseproof.releases.release import DataRelease
from noiseproof.serve import Settings, create_app
from noiseproof.serve.ledger import Amount, Binding, Database, History, Spend
from noiseproof.serve.models import LedgerConnection, ServedModel
from noiseproof.serve.service import name_bundles, name_data_sets
from tests.serve.conftest import free_release


@pytest.fixture
def release(start):
    return type(start().noisy)


def accounts(ledger):
    return [account.model for account in History(ledger.database).accounts()]


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
    model = ServedModel("m", release(queries=2000, epsilon=12.2))
    assert model.price.measure == "rdp"
    assert model.capacity.epsilon(1e-5) < 12.2 < 2000 / 20


@pytest.mark.parametrize(("queries", "epsilon"), [(200, 3.0), (20, 0.1)])
def test_what_offers_more_answers_than_its_card_proves_is_refused_whoever_wrote_its_settings(release, queries, epsilon):
    ServedModel("m", release(queries=20, epsilon=3.0))
    with pytest.raises(SettingError, match="it is not the release that the card was written for"):
        ServedModel("m", release(queries=queries, epsilon=epsilon))


def test_queries_that_were_asked_before_are_gone(release):
    model = ServedModel("m", release(queries=20, asked=5))
    assert model.price.times_within(model.capacity) == 15


def test_a_promise_beyond_counting_is_cut_off(release, monkeypatch):
    monkeypatch.setattr(release, "events", (GaussianDpEvent(0.02),))
    model = ServedModel("m", release(queries=10**6, epsilon=1e12))
    assert 0 < model.price.times_within(model.capacity) < 10**6


def test_what_answers_no_queries_or_names_no_price_is_refused(release, monkeypatch):
    dataset = Dataset("d", torch.zeros(1, 4), torch.zeros(1, dtype=torch.long), release().public)
    with pytest.raises(UnsupportedError, match="answers no queries"):
        ServedModel("m", DataRelease(dataset, release().card, {}))
    monkeypatch.setattr(release, "events", ())
    with pytest.raises(SettingError, match="no event"):
        ServedModel("m", release())


def test_a_rehearsal_is_not_served(release, tmp_path):
    seeded = release()
    seeded.card = seeded.card.model_copy(update={"randomness": "reproducible"})
    with pytest.raises(SettingError, match="m is a rehearsal"):
        create_app(Settings(ledger=str(tmp_path / "seeded.db")), {"m": seeded})


@pytest.fixture
def connect(tmp_path):
    """`connect(m=release)` is a connection of a service with these models to one ledger."""
    Database(str(tmp_path / "names.db")).close()
    opened = []

    def open_it(**releases):
        models = [ServedModel(name, made, data_set="d") for name, made in releases.items()]
        opened.append(LedgerConnection(str(tmp_path / "names.db"), models))
        return opened[-1]

    yield open_it
    for connection in opened:
        connection.close()


def test_another_release_under_the_same_name_is_refused(release, connect):
    other = release()
    with torch.no_grad():
        next(other.module.parameters()).add_(1)
    assert accounts(connect(m=release()).ledger) == ["m"]
    with pytest.raises(LedgerError, match="another release"):
        _ = connect(m=other).database


def test_two_names_for_one_release_sell_its_answers_once(start, rows):
    service = start()
    service.ask(rows(15))
    app = create_app(service.settings, {"again": type(service.noisy)(), "paid": service.noisy})
    again, paid = app.state.service.models.values()
    ledger = app.state.service.connection.ledger
    assert again.account == paid.account == "paid"
    price = again.price
    assert ledger.spend_together([Spend(again.account, "ann", price * 5, 5)])[0].everyone.left == price * 0
    assert service.ask(rows(1)).status_code == 403
    app.state.service.close()


def test_the_same_weights_have_one_account_whatever_noise_and_number_of_queries_a_bundle_states(
    release, connect, monkeypatch
):
    each = Amount.cost("gdp", 0.01)
    connect(m=release(queries=20)).ledger.spend(Spend("m", "ann", each))
    for name, queries in (("m", 100), ("other", 500)):
        resealed = connect(**{name: release(queries=queries, epsilon=50.0)}).ledger
        assert resealed.balance("m").left == each * 19
        assert accounts(resealed) == ["m"]
    monkeypatch.setattr(release, "events", (GaussianDpEvent(1.0),))
    assert connect(m=release(queries=20, epsilon=50.0)).ledger.balance("m").left == each * 19


def test_a_data_sets_releases_are_refused_when_its_budget_is_spent(release, connect):
    connection = connect(m=release())
    connection.ledger.limit_data_set("d", 5.0, 1e-3)
    with pytest.raises(BudgetError, match="2 releases of the data set d promise epsilon 6"):
        _ = connect(n=release(queries=10)).database
    connect(again=release()).ledger.spend(Spend("m", "ann", Amount.cost("gdp", 0.01)))  # the same release


def test_data_sets_are_told_by_what_neighbouring_files_share(release):
    model = ServedModel("m", release())
    renamed = release()
    renamed.public = replace(renamed.public, classes=("no", "yes"), notes=("bounds were read off the data",))
    assert ServedModel("n", renamed).data_set == model.data_set
    assert ServedModel("n", release(), data_set="hospital").data_set == "hospital"
    assert name_data_sets(["all", "m=mine"]) == {"": "all", "m": "mine"}


def test_a_connection_opens_when_the_database_is_there_at_last(release, tmp_path):
    url = str(tmp_path / "later" / "ledger.db")
    connection = LedgerConnection(url, [ServedModel("m", release())])
    with pytest.raises(SettingError):
        _ = connection.database
    (tmp_path / "later").mkdir()
    with pytest.raises(LedgerError, match="ledger init"):
        _ = connection.database
    Database(url).close()
    assert accounts(connection.ledger) == ["m"]
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
    assert Settings(**json.loads(json.dumps(asdict(settings)))) == settings


def test_bundles_are_named_after_their_folders_or_as_one_says(tmp_path):
    assert name_bundles([str(tmp_path / "digits"), f"other={tmp_path / 'digits'}"]) == {
        "digits": str(tmp_path / "digits"),
        "other": str(tmp_path / "digits"),
    }
    with pytest.raises(SettingError, match="two bundles"):
        name_bundles(["a/digits", "b/digits"])


def test_a_bundle_that_the_keys_holder_did_not_sign_is_not_served(tmp_path):
    folder = free_release().save(tmp_path / "open")
    private, public = signing_keys.make_keys(tmp_path / "vendor.pem")
    settings = Settings(ledger="unused", bundles={"open": str(folder)})
    checked = replace(settings, key=str(public))
    assert settings.signatures()["open"].status == "not signed"
    with pytest.raises(BundleError, match="open is not served: it is not signed"):
        checked.signatures()
    signing.sign_bundle(folder, signing_keys.read_private_key(private))
    assert settings.signatures()["open"].status == "not checked"
    assert checked.signatures()["open"].status == "signed"
    (folder / "more").write_text("x")
    with pytest.raises(BundleError, match="not covered"):
        checked.signatures()


def test_a_note_of_a_ledger_that_no_database_can_look_up_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "ledger.json").write_text('{"ledger": "a", "model": "\\ud800", "sequence": 1, "head": "b"}')
    with pytest.raises(LedgerError, match="cannot be read, so that nobody knows"):
        Binding(tmp_path, "a")
