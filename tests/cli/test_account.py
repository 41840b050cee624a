"""`account` and `calibrate` say what the accountants say, and refuse what has no meaning."""

from __future__ import annotations

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

ABADI = ("--rate", "0.01", "--sigma", "4", "--steps", "10000", "--delta", "1e-5")
EVENT = dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(4)), 10_000
)


@pytest.mark.parametrize(("name", "oracle"), [("pld", PLDAccountant), ("rdp", RdpAccountant)])
def test_pld_and_rdp_are_dp_accountings_to_three_digits(noiseproof, name, oracle):
    document = noiseproof("account", *ABADI, "--accountant", name, "--json").document
    expected = oracle().compose(EVENT).get_epsilon(1e-5)
    assert document["epsilon"] == pytest.approx(expected, rel=1e-3)
    assert document["accountants"][name] == document["epsilon"]
    assert document["accountant"] == name


def test_naive_and_advanced_are_larger_and_pld_is_the_smallest(noiseproof):
    document = noiseproof("account", *ABADI, "--json").document
    epsilons = document["accountants"]
    assert epsilons["naive"] > epsilons["rdp"]
    assert epsilons["advanced"] > epsilons["rdp"]
    # GDP's central limit is no bound, and the document says so; among those that are, PLD is the smallest.
    assert document["no_bounds"] == ["gdp"]
    assert min((name for name in epsilons if name != "gdp"), key=epsilons.get) == "pld"


def test_people_see_all_accountants_side_by_side(noiseproof):
    outcome = noiseproof("account", *ABADI)
    assert outcome.code == 0
    assert all(name in outcome.out for name in ("pld", "rdp", "zcdp", "gdp", "advanced", "naive"))


def test_calibrate_inverts_account(noiseproof):
    found = noiseproof("calibrate", "--rate", "0.01", "--epsilon", "2", "--steps", "1000", "--json").document
    again = noiseproof("account", "--rate", "0.01", "--sigma", found["sigma"], "--steps", "1000", "--json").document
    assert again["epsilon"] == pytest.approx(2, rel=0.01)
    assert again["epsilon"] <= 2 * (1 + 1e-9)


@pytest.mark.parametrize(
    "change",
    [
        ("--rate", "1.2"),
        ("--rate", "-1"),
        ("--sigma", "0"),
        ("--sigma", "nan"),
        ("--steps", "-3"),
        ("--delta", "1"),
        ("--delta", "-1e-5"),
        ("--accountant", "guess"),
        ("--neighbours", "friends"),
    ],
)
def test_what_has_no_meaning_is_bad_usage_in_one_sentence(noiseproof, change):
    outcome = noiseproof("account", *ABADI, *change, "--json")
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.count("error:") == 1
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("epsilon", ["0", "-1", "nan", "inf"])
def test_an_epsilon_that_is_none_is_bad_usage(noiseproof, epsilon):
    outcome = noiseproof("calibrate", "--rate", "0.01", "--steps", "10", "--epsilon", epsilon)
    assert outcome.code == 2
    assert "epsilon" in outcome.err


def test_records_batch_size_and_epochs_are_another_way_to_say_rate_and_steps(noiseproof):
    epochs = ("--records", "60000", "--batch-size", "600", "--epochs", "100", "--sigma", "4")
    document = noiseproof("account", *epochs, "--json").document
    assert (document["rate"], document["steps"]) == (0.01, 10_000)
    assert document["epsilon"] == noiseproof("account", *ABADI, "--json").document["epsilon"]
    found = noiseproof("calibrate", "--epsilon", "3", *epochs[:-2], "--json").document
    same = noiseproof("calibrate", "--epsilon", "3", "--rate", "0.01", "--steps", "10000", "--json").document
    assert found["sigma"] == same["sigma"]
    assert noiseproof("account", *epochs, "--rate", "0.01").code == 2
    assert noiseproof("account", "--records", "10", "--batch-size", "20", "--epochs", "1", "--sigma", "1").code == 2
