"""Ranks take the steps that one process would take: the same sums, the same noise in law, the same spend."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats

from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.engine.ranks import ALONE
from noiseproof.errors import SettingError
from noiseproof.privacy import Reproducible, accountants
from noiseproof.privacy.events import sampled_gaussian
from noiseproof.run import distributed
from tests.run import rank
from tests.run.launch import finish, launch

ALARM = 1e-6
"""False-alarm rate of each statistical test."""


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def ranks(request, tmp_path_factory):
    """What each of so many ranks found."""
    folder = tmp_path_factory.mktemp(f"ranks-{request.param}")
    for code, _, said in finish(launch(["-W", "error", "-m", "tests.run.rank", str(folder)], request.param)):
        assert code == 0, said
    return [torch.load(folder / f"{number}.pt", weights_only=True) for number in range(request.param)]


def clipped_sum(which: torch.Tensor) -> torch.Tensor:
    """The sum of these records' clipped gradients, computed in one process, over the expected batch."""
    module = rank.network()
    gradients = PrivateGradients(
        module, max_grad_norm=rank.CLIP, noise_multiplier=rank.SILENT, sample_rate=1.0, rng=Reproducible(0)
    )
    gradients.expected_batch = rank.RATE * rank.RECORDS
    features, labels = (tensor[which] for tensor in rank.records())
    for inputs, targets in gradients.batches(features, labels, steps=1):
        gradients.backward(rank.losses(module, inputs, targets))
    return rank.flat(gradients)


@pytest.mark.parametrize("scenario", ["sums", "wrapped", "shards", "loader"])
def test_ranks_give_the_single_process_sum_of_clipped_gradients(ranks, scenario):
    for step in range(1 if scenario == "loader" else rank.STEPS):
        which = torch.cat([found[scenario][f"records-{step}"] for found in ranks])
        assert len(which) == len(which.unique()), "a record was used twice"
        expected = clipped_sum(which)
        for found in ranks:
            gradient = found[scenario][f"gradient-{step}"]
            torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("scenario", ["sums", "wrapped", "shards", "loader", "adaptive", "correlated"])
def test_every_rank_has_the_same_gradient_bit_for_bit(ranks, scenario):
    for name, value in ranks[0][scenario].items():
        if name.startswith("gradient"):
            assert all(torch.equal(found[scenario][name], value) for found in ranks)


@pytest.mark.parametrize("given", ["whole", "shards"])
def test_ranks_take_the_step_that_one_process_takes_on_the_same_persons(ranks, given):
    module, (features, labels) = rank.network(), rank.records()
    for step in range(rank.STEPS):
        taken = [found["persons"][given][f"records-{step}"] for found in ranks]
        owners = [set(rank.people()[which].tolist()) for which in taken]
        assert sum(map(len, owners)) == len(set().union(*owners)), "a person's records came from two ranks"
        expected = torch.zeros(sum(parameter.numel() for parameter in module.parameters()))
        for person in set().union(*owners):
            mine = torch.cat(taken)[rank.people()[torch.cat(taken)] == person]
            assert len(mine) == len(mine.unique()) <= 3
            loss = rank.losses(module, features[mine], labels[mine]).mean()
            gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(module.parameters()))])
            expected += gradient * min(1.0, rank.CLIP / float(gradient.norm())) / (rank.RATE * rank.PEOPLE)
        for found in ranks:
            gradient = found["persons"][given][f"gradient-{step}"]
            torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=2e-5 * rank.CLIP)
            assert torch.equal(gradient, ranks[0]["persons"][given][f"gradient-{step}"])
    assert all(float(found["persons"][given]["expected"]) == pytest.approx(rank.RATE * rank.PEOPLE) for found in ranks)


def test_a_training_on_persons_is_one_release_whose_card_counts_persons(ranks):
    first = ranks[0]["fitted on persons"]
    for found in ranks:
        assert torch.equal(found["fitted on persons"]["weights"], first["weights"])
    assert (first["unit"], first["ran"]["persons"], first["ran"]["ranks"]) == ("person", rank.PEOPLE, len(ranks))
    assert "records" not in first["ran"]


def test_whole_samples_are_shared_out_evenly(ranks):
    sizes = [len(found["sums"]["records-0"]) for found in ranks]
    assert max(sizes) - min(sizes) <= 1


def test_uneven_shards_divide_by_all_ranks_records_and_take_empty_batches(ranks):
    assert all(float(found["shards"]["expected"]) == pytest.approx(rank.RATE * rank.RECORDS) for found in ranks)
    empty = [len(found["shards"][f"records-{step}"]) == 0 for found in ranks[1:] for step in range(rank.STEPS)]
    assert any(empty), "the seed of this test must make some rank's batch empty"


@pytest.mark.parametrize("kind", ["reproducible", "secure"])
def test_the_noise_on_the_update_is_sigma_c_whatever_the_number_of_ranks(ranks, kind):
    noise = ranks[0][kind]["noise"].double()
    assert all(torch.equal(found[kind]["noise"], ranks[0][kind]["noise"]) for found in ranks)
    scaled = (noise / (1.5 * rank.CLIP)).flatten()
    assert ALARM / 2 < stats.chi2.cdf(float(scaled.square().sum()), len(scaled)) < 1 - ALARM / 2
    assert stats.kstest(scaled.numpy(), "norm").pvalue > ALARM
    # Coordinates are noised by different ranks and at different steps: no two of them together.
    between = noise.flatten(1)
    for one, other in ((between[:, :-1], between[:, 1:]), (between[:-1], between[1:]), (between, between.roll(512, 1))):
        correlation = float((one * other).mean()) / (1.5 * rank.CLIP) ** 2
        assert abs(correlation) * math.sqrt(one.numel()) < stats.norm.isf(ALARM / 2)


def test_every_rank_logs_the_same_events(ranks):
    assert {int(found["reproducible"]["events"]) for found in ranks} == {100}


def test_correlated_noise_goes_on_from_its_state_on_every_rank(ranks):
    for found in ranks:
        assert found["correlated"].keys() == found["correlated resumed"].keys()
        assert all(torch.equal(value, found["correlated resumed"][name]) for name, value in found["correlated"].items())
    seen = [torch.cat([found["correlated"][f"records-{step}"] for found in ranks]).sort().values for step in range(4)]
    assert torch.equal(seen[0], seen[2])
    assert torch.equal(torch.cat(seen[:2]).sort().values, torch.arange(rank.RECORDS))


def test_an_adaptive_clipping_norm_follows_the_count_over_all_ranks(ranks):
    assert len({float(found["adaptive"]["max_grad_norm"]) for found in ranks}) == 1
    module = rank.network()
    norm = rank.CLIP
    features, labels = rank.records()
    for step in range(rank.STEPS):
        which = torch.cat([found["adaptive"][f"records-{step}"] for found in ranks])
        from noiseproof.engine import PerRecordGradients

        engine = PerRecordGradients(module)
        norms = engine.backward(rank.losses(module, features[which], labels[which])).squared_norms().sqrt()
        engine.close()
        share = (float((norms <= norm).sum()) - len(norms) / 2) / (0.5 * rank.RECORDS) + 0.5
        norm *= math.exp(-0.2 * (share - 0.5))
    assert float(ranks[0]["adaptive"]["max_grad_norm"]) == pytest.approx(norm, rel=1e-3)


@pytest.mark.parametrize(("scenario", "records"), [("preconditioned", rank.RECORDS), ("preconditioned shards", None)])
def test_ranks_release_statistics_of_all_their_records_once(ranks, scenario, records):
    alone = rank.preconditioned(ALONE, slice(None, records or 49 + len(ranks)))
    for found in ranks:
        torch.testing.assert_close(found[scenario]["transformed"], alone["transformed"], atol=1e-3, rtol=1e-3)
        assert int(found[scenario]["events"]) == 2
        assert torch.equal(found[scenario]["weights"], ranks[0][scenario]["weights"])
        assert 0.97 * 3 < float(found[scenario]["epsilon"]) == float(alone["epsilon"]) <= 3


def test_what_would_make_ranks_disagree_is_refused_on_every_rank(ranks):
    if len(ranks) != 2:
        pytest.skip("refusals are tried on two ranks")
    for found in ranks:
        said = found["refusals"]
        for what in ("sample_rate", "noise_multiplier", "records"):
            assert said[what].startswith("SettingError"), said
            assert "same on every rank" in said[what]
        assert "cannot be shared among ranks" in said["noisy"]
        assert "join(ranks)" in said["wrapped"]
        assert said["sharded"].startswith("NoiseproofError: the network is shared by ranks")
        for what in ("a person on two ranks", "numbers of its own"):
            assert said[what].startswith("SettingError: a person has records on two ranks"), said
        assert "whose each record is must be the same on every rank" in said["other persons"]
        assert "person_sampling" in said["records of persons"]


def test_a_whole_training_on_uneven_shards_is_one_release(ranks):
    if len(ranks) != 2:
        pytest.skip("tried on two ranks")
    one, other = (found["fitted"] for found in ranks)
    assert torch.equal(one["weights"], other["weights"])
    assert torch.equal(one["weights"], one["resumed"]), "the checkpoint of the end is the end"
    assert torch.equal(other["weights"], other["resumed"]), "a rank without files is told by the first"
    assert one["ran"] == other["ran"] == {"records": 300, "ranks": 2, "steps": 19}
    event = sampled_gaussian(32 / 300, 1.5, 19)
    assert one["epsilon"] == other["epsilon"] == accountants.epsilon(event, 1e-5).epsilon


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_trainings_with_noise_are_as_accurate_and_cost_the_same_on_several_ranks(tmp_path, size):
    for code, _, said in finish(launch(["-m", "tests.run.rank", str(tmp_path), "accuracies"], size)):
        assert code == 0, said
    alone, epsilons = rank.accuracies(ALONE)
    found = [torch.load(tmp_path / f"{number}.pt", weights_only=True) for number in range(size)]
    assert all(each == found[0] for each in found), "every rank has the same model and the same truth"
    assert found[0][1] == epsilons
    assert stats.ttest_ind(found[0][0], alone).pvalue > ALARM
    assert sum(found[0][0]) / len(alone) == pytest.approx(sum(alone) / len(alone), abs=0.03)


def test_a_process_that_torchrun_did_not_start_is_told_so(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert not distributed.launched()
    with pytest.raises(SettingError, match="torchrun"), distributed.start():
        pass
    with pytest.raises(SettingError, match="process group"):
        distributed.Group()
    with pytest.raises(SettingError, match="whole or shards"):
        distributed.Group("halves")
