"""`publish` draws a network from files, warns of permuted ones, and refuses what it cannot use in one sentence."""

from __future__ import annotations

import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from noiseproof import load, load_bundle
from noiseproof.methods.parameters import train_collection
from noiseproof.networks import Network, Training

KEYS = {"method", "accuracy", "baseline_accuracy", "card", "seconds", "out"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Six small networks for the digits, trained from one start; half of them as torch's files."""
    folder = tmp_path_factory.mktemp("networks")
    digits = load("digits").train
    network = Network("linear", digits.public.shape, 10)
    training = Training(epochs=12, batch_size=64, lr=0.5, optimizer="sgd")
    found = train_collection(network, digits, 6, training, seed=1)
    paths = []
    for index, row in enumerate(found.rows):
        tensors = found.layout.unflatten(row)
        path = folder / f"{index}{'.pt' if index % 2 else '.safetensors'}"
        torch.save(tensors, path) if index % 2 else save_file(tensors, path)
        paths.append(path)
    return paths


def test_a_network_is_published_and_the_document_has_the_contracts_keys(noiseproof, files, tmp_path):
    out = tmp_path / "bundle"
    outcome = noiseproof("publish", *files, "--epsilon", "2", "--out", out, "--json")
    assert outcome.code == 0
    document = outcome.document
    assert document.keys() >= KEYS
    assert (document["method"], document["models"], document["parameters"]) == ("dp-pg", 6, 650)
    assert (document["accuracy"], document["warnings"], document["out"]) == (None, [], str(out))
    card = document["card"]
    assert (card["claimed"]["epsilon"], card["claimed"]["unit"], card["proven"]) == (2.0, "model", None)
    assert card["ran"]["true epsilon of a model"] > 100
    weights = load_file(out / "weights.safetensors")
    first = load_file(files[0])
    assert {name: value.shape for name, value in weights.items()} == {
        name: value.shape for name, value in first.items()
    }
    assert not torch.equal(weights["1.weight"], first["1.weight"])
    module = Network("linear", (64,), 10).build()
    assert torch.equal(load_bundle(out, module=module).tensors()["1.weight"], weights["1.weight"])
    assert torch.equal(module.state_dict()["1.weight"], weights["1.weight"])


@pytest.mark.parametrize("method", ["dp-pg", "dp-pgp"])
def test_with_records_and_a_network_accuracies_are_measured(noiseproof, files, method, tmp_path):
    outcome = noiseproof(
        "publish", *files, "--method", method, "--epsilon", "5", "--data", "digits", "--network", "linear", "--json",
        "--out", tmp_path / "bundle", "--set", "threshold=0.5",
    )  # fmt: skip
    document = outcome.document
    assert document["baseline_accuracy"] > 0.9
    assert abs(document["accuracy"] - document["baseline_accuracy"]) < 0.05
    release = load_bundle(tmp_path / "bundle")
    test = load("digits").test
    found = float((release.predict(test.features).argmax(1) == test.labels).double().mean())
    assert found == pytest.approx(document["accuracy"])


def test_people_get_a_table_and_the_reason(noiseproof, files):
    outcome = noiseproof("publish", *files)
    assert outcome.code == 0
    assert "claimed" in outcome.out
    assert "Nothing is proven for a record" in outcome.out.replace("\n", " ")


def test_the_same_seed_publishes_the_same_and_none_is_secure(noiseproof, files, tmp_path):
    for name in ("a", "b"):
        noiseproof("publish", *files, "--seed", "4", "--out", tmp_path / name)
    a, b = (load_file(tmp_path / name / "weights.safetensors") for name in ("a", "b"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    card = noiseproof("publish", *files, "--json").document["card"]
    assert card["randomness"] == "secure"


def test_networks_from_different_starts_are_warned_of_with_what_was_measured(noiseproof, tmp_path):
    paths = [tmp_path / f"{seed}.safetensors" for seed in range(3)]
    for seed, path in enumerate(paths):
        save_file(Network("mlp", (12,), 4, {"hidden": 30}).build(seed).state_dict(), path)
    outcome = noiseproof("publish", *paths, "--json")
    assert outcome.code == 0
    assert outcome.document["disagreement"] > 0.5
    (warning,) = outcome.document["warnings"]
    assert f"{100 * outcome.document['disagreement']:.0f}% of the hidden units" in warning
    assert "permuted" in outcome.err


def _broken(folder, kind):
    network = Network("linear", (4,), 3)
    states = [network.build(seed).state_dict() for seed in range(3)]
    if kind == "shapes":
        states[2] = Network("linear", (5,), 3).build(0).state_dict()
    if kind == "equal":
        states = [states[0]] * 3
    if kind == "nan":
        states[1] = {name: value * math.nan for name, value in states[1].items()}
    if kind == "one":
        states = states[:1]
    paths = [folder / f"{index}.safetensors" for index in range(len(states))]
    for path, state in zip(paths, states, strict=True):
        save_file(state, path)
    return paths


@pytest.mark.parametrize(
    ("kind", "words"),
    [("shapes", "one architecture"), ("equal", "all equal"), ("nan", "NaN"), ("one", "at least 2")],
)
def test_networks_that_cannot_be_used_are_one_sentence(noiseproof, tmp_path, kind, words):
    outcome = noiseproof("publish", *_broken(tmp_path, kind), "--out", tmp_path / "bundle", "--json")
    assert (outcome.code, outcome.out) == (1, "")
    assert words in outcome.err
    assert outcome.err.count("error:") == 1
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--method", "shard-mean"), 2, "trained elsewhere"),
        (("--method", "nothing"), 2, "nothing"),
        (("--epsilon", "0"), 2, "epsilon"),
        (("--set", "threshold=0.5"), 2, "needs records"),
        (("--data", "digits"), 2, "go together"),
        (("--data", "digits", "--network", "mlp"), 1, "do not hold the parameters of a mlp"),
        (
            ("--data", "digits", "--network", "linear", "--set", "threshold=1", "--set", "most_draws=2"),
            1,
            "none of 2 draws",
        ),
        (("missing.pt",), 1, "missing.pt"),
    ],
)
def test_bad_usage_is_one_sentence_and_leaves_nothing_behind(noiseproof, files, tmp_path, arguments, code, words):
    outcome = noiseproof("publish", *files, *arguments, "--out", tmp_path / "bundle", "--json")
    assert (outcome.code, outcome.out) == (code, "")
    assert words in outcome.err.replace("\n", " ")
    assert "Traceback" not in outcome.err
    assert list(tmp_path.iterdir()) == []
