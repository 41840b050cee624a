"""Two files that differ in one record leave nothing behind that differs, except what is noised."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient
from safetensors.torch import save_file

from noiseproof import methods
from noiseproof.data import Split, formats, load
from noiseproof.engine import PrivateGradients
from noiseproof.networks import Network
from noiseproof.privacy import Gaussian
from noiseproof.privacy.mechanisms import Exponential
from noiseproof.releases import bundles
from noiseproof.serve import Settings, create_app
from noiseproof.serve.ledger import Database, History, Keys
from tests.twin import worlds

QUICK = {
    **{"epochs": 1, "steps": 2, "iterations": 3, "relevance_epochs": 1},
    **{"models": 5, "generator_steps": 5, "generated": 30, "width": 30},
}
"""Settings that make trainings short, for the methods that have them."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return worlds.twins(tmp_path_factory.mktemp("twins"))


def command(method: str) -> tuple[str, ...]:
    kind = methods.get(method)
    fields = {field.name for field in dataclasses.fields(kind)}
    quick = [word for name, value in QUICK.items() if name in fields for word in ("--set", f"{name}={value}")]
    if kind.place == "losses":
        return ("synth", method, "--out", "release.csv", "--json", *quick)
    return ("train", method, "--out", "release", "--queries", "5", "--json", *quick)


def leaks(arguments, pair, folder, restart, extension=".csv", *, numeric=False, **options):
    left = []
    for name, one in zip(("one", "other"), pair, strict=True):
        given = worlds.write_world(folder / name, one, extension, numeric=numeric)
        restart()
        left.append(worlds.run(folder / name, arguments, given))
    return worlds.leaks(*left, folder / "one", **options)


@pytest.mark.parametrize("method", list(methods.registry()))
def test_nothing_of_a_release_tells_two_neighbouring_files_apart(method, pair, tmp_path, fixed_randomness):
    assert leaks(command(method), pair, tmp_path, fixed_randomness) == []


@pytest.mark.parametrize("method", list(methods.registry()))
def test_with_the_same_draws_nothing_differs_and_what_was_noised_costs_no_more_than_is_proven(
    method, tmp_path, fixed_randomness
):
    proven, tape, found = replayed(method, tmp_path, fixed_randomness)
    if proven is not None:
        assert (tape.differing, found) == ([], [])
        assert tape.epsilon(proven["delta"]) <= proven["epsilon"] * (1 + 1e-6)
        assert tape.events or method == "teachers"  # whose votes one record seldom changes


@pytest.mark.parametrize("method", [name for name, each in methods.registry().items() if "regression" in each.tasks])
def test_so_it_is_of_a_number_to_predict(method, tmp_path, fixed_randomness):
    proven, tape, found = replayed(method, tmp_path, fixed_randomness, numeric=True)
    if proven is not None:
        assert (tape.differing, found) == ([], [])
        assert tape.epsilon(proven["delta"]) <= proven["epsilon"] * (1 + 1e-6)
        assert tape.events or method == "teachers"  # whose one step by Adam has the same signs with either record


def replayed(method, folder, restart, ask=None, *, numeric=False):
    """What the card of the first of two files proves, what the second drew in the place of its draws, and what differs.

    The files differ in one record, under replace-one, where all others keep their places; every record is in every batch,
    so that a card's epsilon owes nothing to sampling. The release is asked, too.
    """
    tape, left, proven = worlds.Tape(), [], None
    measured = "--no-quality" if methods.get(method).place == "losses" else "--no-baseline"
    for name, one in zip(("one", "other"), worlds.extremes(numeric=numeric), strict=True):
        world = worlds.write_world(folder / name, one, numeric=numeric)
        given = (*world, "--neighbours", "replace-one", measured)
        restart()
        with tape.running():
            left.append(worlds.run(folder / name, command(method), given))
            proven = json.loads(left[-1]["stdout"])["card"]["proven"]
            if proven is None:
                break
            if (folder / name / "release").is_dir():
                left[-1] |= (ask or asked_in_python)(folder / name)
    return proven, tape, [] if proven is None else worlds.leaks(*left, folder / "one", noised=False)


QUESTIONS = torch.linspace(0, 1, 25).view(5, 5)


def asked_in_python(folder):
    return {"answers": bundles.load(folder / "release").predict(QUESTIONS).numpy().tobytes()}


@pytest.mark.parametrize("method", ["votes", "logits"])
def test_what_a_service_says_logs_and_exports(method, tmp_path, fixed_randomness, caplog):
    """Answers, cards, budgets and metrics over HTTP, the ledger's export and the service's log."""

    def ask(folder):
        return asked_over_http(folder, caplog)

    proven, tape, found = replayed(method, tmp_path, fixed_randomness, ask)
    assert (tape.differing, found) == ([], [])
    assert 0 < tape.epsilon(proven["delta"]) <= proven["epsilon"] * (1 + 1e-6)


def asked_over_http(folder, caplog):
    caplog.clear()
    url = f"sqlite:///{folder / 'ledger.db'}"
    app = create_app(Settings(ledger=url), {"model": bundles.load(folder / "release")})
    found = {}
    with caplog.at_level("INFO", "noiseproof.serve"), TestClient(app) as http:
        database = Database(url)
        keys = {"Authorization": f"Bearer {Keys(database).create('ops', operator=True)}"}
        said = [http.post("/v1/models/model/predictions", json={"inputs": QUESTIONS.tolist()}, headers=keys)]
        said += [
            http.get(f"/v1/models{path}", headers=keys) for path in ("", "/model", "/model/budget", "/model/clients")
        ]
        said += [http.get("/metrics", headers=keys)]
        assert [response.status_code for response in said] == [200] * 6
        entries = list(History(database).export())
        database.close()
    for number, response in enumerate(said):
        found[f"response {number}"] = worlds.without_times(response.text)
    said_of_ledger = '"event":"ledger '  # whether a probe came at a busy moment is a matter of time alone
    lines = [record.getMessage() for record in caplog.records]
    found["log"] = worlds.without_times("\n".join(line for line in lines if said_of_ledger not in line))
    found["export"] = worlds.without_times(json.dumps(entries))
    return found


@pytest.fixture(scope="module")
def numeric_pair(tmp_path_factory):
    return worlds.twins(tmp_path_factory.mktemp("twins"), numeric=True)


@pytest.mark.parametrize("method", [name for name, each in methods.registry().items() if "regression" in each.tasks])
def test_nothing_of_a_regression_tells_two_neighbouring_files_apart(method, numeric_pair, tmp_path, fixed_randomness):
    assert leaks(command(method), numeric_pair, tmp_path, fixed_randomness, numeric=True) == []


@pytest.mark.parametrize("extension", list(formats._formats()))
def test_whatever_the_files_format(extension, tmp_path, fixed_randomness):
    assert extension in worlds.WRITERS, "say in tests/twin/worlds.py how a test writes this format"
    pair = worlds.twins(tmp_path / "search", extension)
    assert leaks(command("dp-sgd"), pair, tmp_path, fixed_randomness, extension) == []
    assert one_record_apart(tmp_path / "parts", pair[0], extension)


def one_record_apart(folder: Path, one, extension: str) -> bool:
    """Whether one record more in a file's middle leaves everybody else on their side of the split."""
    found = []
    for name, record in (("without", None), ("with", one)):
        given = worlds.write_world(folder / name, record, extension)
        path = folder / name / given[1]
        loaded = load(path, schema=folder / name / given[3] if len(given) > 2 else None)
        found.append(
            [
                Counter((*row.tolist(), label) for row, label in zip(part.features, part.labels.tolist(), strict=True))
                for part in (loaded.train, loaded.test)
            ]
        )
    without, with_it = found
    more = sum(sum((after - before).values()) for before, after in zip(without, with_it, strict=True))
    fewer = sum(sum((before - after).values()) for before, after in zip(without, with_it, strict=True))
    return (more, fewer) == (1, 0)


def test_a_record_more_changes_the_number_of_records_and_no_name_or_key(pair, tmp_path, fixed_randomness):
    left = []
    for name, one in (("without", None), ("with", pair[0])):
        given = worlds.write_world(tmp_path / name, one)
        fixed_randomness()
        left.append(worlds.run(tmp_path / name, command("dp-sgd"), given))
    assert left[0].keys() == left[1].keys()
    cards = [json.loads(each["release/card.json"]) for each in left]
    assert cards[1]["ran"].pop("records") == cards[0]["ran"].pop("records") + 1
    for name in ("card.json", "settings.json"):
        keys = [set(_keys(json.loads(each[f"release/{name}"]))) for each in left]
        assert keys[0] == keys[1]


def _keys(document, at=""):
    if isinstance(document, dict):
        for key, value in document.items():
            yield from _keys(value, f"{at}.{key}")
    else:
        yield at


def test_publishing_from_collections_that_differ_in_one_network(tmp_path, fixed_randomness):
    left = []
    for world, last in (("one", 2), ("other", 3)):
        (tmp_path / world).mkdir()
        start = Network("mlp", (6,), 2, {"hidden": 5}).build(0).state_dict()
        for number, seed in enumerate((0, 1, last)):
            random = torch.Generator().manual_seed(seed)
            moved = {name: value + 0.1 * torch.randn(value.shape, generator=random) for name, value in start.items()}
            save_file(moved, tmp_path / world / f"{number}.safetensors")
        fixed_randomness()
        models = tuple(f"{number}.safetensors" for number in range(3))
        left.append(worlds.run(tmp_path / world, ("publish", *models, "--out", "release", "--json")))
    assert worlds.leaks(*left, tmp_path / "one") == []


@pytest.mark.slow
def test_cards_and_bundles_of_a_comparison(pair, tmp_path, fixed_randomness):
    """The rest of its folder is its owner's: exact accuracies and attacks."""
    arguments = ("compare", "--methods", "functional,dp-sgd,votes", "--trials", "5", "--out", "runs", "--jobs", "1")
    left = []
    for name, one in zip(("one", "other"), pair, strict=True):
        given = worlds.write_world(tmp_path / name, one)
        fixed_randomness()
        found = worlds.run(tmp_path / name, arguments, given)
        left.append({path: content for path, content in found.items() if path.startswith(("runs/bundles", "home"))})
        assert len(left[-1]) == 4 * 3
    assert worlds.leaks(*left, tmp_path / "one", asked="runs") == []


def test_a_value_outside_the_bounds_is_told_to_the_owner_and_nowhere_else(tmp_path, fixed_randomness):
    """Clipped to the bound it is the same record, so that not even the values that are noised differ."""
    pair = ({**worlds.EXTREMES[1], "age": 100.0}, {**worlds.EXTREMES[1], "age": 250.0})
    tape, left = worlds.Tape(), []
    for name, one in zip(("one", "other"), pair, strict=True):
        given = worlds.write_world(tmp_path / name, one)
        fixed_randomness()
        with tape.running():
            left.append(worlds.run(tmp_path / name, (*command("dp-sgd"), "--no-baseline"), given))
    assert (tape.differing, tape.events) == ([], [])
    assert worlds.leaks(*left, tmp_path / "one", noised=False) == ["stderr:all differs"]
    assert b"outside the public bounds" in left[1]["stderr"]
    assert b"For the owner's eyes" in left[1]["stderr"].replace(b"\n", b" ")


# Leaks that are planted, each of a kind that was there once, must be caught.


@pytest.fixture
def leaky_fit(monkeypatch):
    """Let dp-sgd's fit do something more with the private records."""

    def plant(leak):
        kind = methods.get("dp-sgd")
        fit = kind.fit

        def planted(self, network, dataset, *arguments, **named):
            release = fit(self, network, dataset, *arguments, **named)
            leak(release, dataset)
            return release

        monkeypatch.setattr(kind, "fit", planted)

    return plant


def _number_on_the_card(release, dataset):
    exact = {**release.card.ran, "mean": float(dataset.features.mean())}
    release.card = release.card.model_copy(update={"ran": exact})


def _number_in_the_settings(release, dataset):
    release.settings["largest"] = float(dataset.features.sum())


def _buffer(release, dataset):
    release.module.register_buffer("seen", dataset.features.mean(dim=0))
    release.network = Network.of(release.module, dataset.public.shape, dataset.classes)


def _cache(release, dataset):
    folder = Path.home() / "cache"
    folder.mkdir(exist_ok=True)
    (folder / "features.bin").write_bytes(b"the same in both worlds")


def _file_name(release, dataset):
    Path(f"release-{dataset.fingerprint()[:8]}").write_text("")


def _print(release, dataset):
    sys.stderr.write(f"{float(dataset.features.sum())}\n")


@pytest.mark.parametrize(
    ("leak", "named"),
    [
        (_number_on_the_card, "release/card.json:ran.mean differs"),
        (_number_in_the_settings, "release/settings.json:settings.largest differs"),
        (_cache, "home/cache/features.bin was written unasked"),
        (_file_name, "is there in one world only"),
        (_print, "stderr:all differs"),
    ],
)
def test_a_planted_leak_is_caught(leak, named, leaky_fit, pair, tmp_path, fixed_randomness):
    leaky_fit(leak)
    found = leaks((*command("dp-sgd"), "--no-baseline"), pair, tmp_path, fixed_randomness)
    assert any(named in each for each in found), found


def _after_the_noise(release, dataset):
    with torch.no_grad():
        next(release.module.parameters()).view(-1)[0] += 1e-3 * float(dataset.features.mean())


def test_what_is_added_after_the_noise_is_caught(leaky_fit, tmp_path, fixed_randomness):
    leaky_fit(_after_the_noise)
    _, tape, found = replayed("dp-sgd", tmp_path, fixed_randomness)
    assert tape.differing == []
    assert any("weights.safetensors" in each for each in found)


@pytest.mark.parametrize(
    ("method", "kind", "name", "times"),
    [
        ("dp-sgd", PrivateGradients, "_take_sum", 2),
        ("functional", Gaussian, "release", 2),
        # The person who is in one file alone is not much like the rows that are asked about, and votes by a fifth.
        ("votes", Exponential, "release", 10),
    ],
)
def test_values_that_differ_by_more_than_their_sensitivity_are_caught(
    method, kind, name, times, tmp_path, fixed_randomness, monkeypatch
):
    """As if each record counted several times in what is noised: a norm that was too small, a record in two batches."""
    real = getattr(kind, name)

    def more(self, *value):
        return times * real(self) if not value else real(self, times * value[0], *value[1:])

    monkeypatch.setattr(kind, name, more)
    proven, tape, _ = replayed(method, tmp_path, fixed_randomness)
    assert tape.epsilon(proven["delta"]) > 1.2 * proven["epsilon"]


def test_noise_whose_scale_depends_on_the_records_is_caught(tmp_path, fixed_randomness, monkeypatch):
    real = Gaussian.release

    def scaled(self, value, rng, *, out=None):
        return real(dataclasses.replace(self, sigma=self.sigma * (1 + float(value.abs().mean()))), value, rng, out=out)

    monkeypatch.setattr(Gaussian, "release", scaled)
    _, tape, _ = replayed("functional", tmp_path, fixed_randomness)
    assert "the scale of add_gaussian" in tape.differing


def test_a_buffer_that_holds_a_statistic_is_caught(leaky_fit, pair, tmp_path, fixed_randomness, monkeypatch):
    leaky_fit(_buffer)
    restored = bundles.load
    left = []
    for name, one in zip(("one", "other"), pair, strict=True):
        given = worlds.write_world(tmp_path / name, one)
        fixed_randomness()
        left.append(worlds.run(tmp_path / name, (*command("dp-sgd"), "--no-baseline"), given))

    def load_with_buffer(path, **named):
        module = Network("mlp", (5,), 2).build()
        module.register_buffer("seen", torch.zeros(5))
        return restored(path, module=module, **named)

    monkeypatch.setattr("noiseproof.releases.load_bundle", load_with_buffer)
    assert "release/weights.safetensors:seen differs" in worlds.leaks(*left, tmp_path / "one")


def test_a_split_that_reshuffles_everybody_is_caught(monkeypatch, pair, tmp_path):
    def shuffled(dataset, *, seed=0, test_fraction=0.25, remarks=(), **_):
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed))
        held = round(test_fraction * len(dataset))
        return Split(dataset.take(order[held:]), dataset.take(order[:held]), remarks)

    assert one_record_apart(tmp_path / "now", pair[0], ".csv")
    monkeypatch.setattr(sys.modules["noiseproof.data.load"], "split", shuffled)
    assert not one_record_apart(tmp_path / "shuffled", pair[0], ".csv")
