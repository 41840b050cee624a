"""Two ranks that share a user's loop, by DistributedDataParallel or FSDP2, take the steps that one process would."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.integrations import rank
from tests.run.launch import finish, launch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    for code, _, errors in finish(launch(["-m", "tests.integrations.rank", str(folder), "ddp", "fsdp"], 2)):
        assert code == 0, errors
    return [torch.load(folder / f"{place}.pt", weights_only=False) for place in range(2)]


def clipped_sum(before, numbers):
    model, data = rank.Transformer(), rank.records()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), before, strict=True):
            parameter.copy_(value)
    total = [torch.zeros_like(parameter) for parameter in model.parameters()]
    for number in numbers:
        _, ids, label = data[number]
        loss = nn.functional.cross_entropy(model(ids[None]), torch.tensor([label]))
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        for place, gradient in zip(total, gradients, strict=True):
            place += gradient * min(1.0, rank.CLIP * rank.HAIR / float(norm))
    return total


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_every_step_is_one_process_step_over_both_ranks_records(found, kind):
    one, two = (ranks[kind]["steps"] for ranks in found)
    assert len(one) == len(two) == 2
    for (before, mine, gradient), (_, others, same) in zip(one, two, strict=True):
        assert not set(mine) & set(others)
        assert len(mine) + len(others) > 5
        expected = clipped_sum(before, [*mine, *others])
        for left, right, total in zip(gradient, same, expected, strict=True):
            assert torch.equal(left, right)
            torch.testing.assert_close(left, total / 20, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_every_step_on_persons_is_one_process_step_with_all_of_a_persons_records_on_one_rank(found, kind):
    one, two = (ranks[f"{kind} persons"]["steps"] for ranks in found)
    assert len(one) == len(two) == 2
    for (before, mine, gradient), (_, others, same) in zip(one, two, strict=True):
        people = [{rank.PATIENTS[number] for number in numbers} for numbers in (mine, others)]
        assert not people[0] & people[1]
        model, data = rank.Transformer(), rank.records()
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), before, strict=True):
                parameter.copy_(value)
        total = [torch.zeros_like(parameter) for parameter in model.parameters()]
        for person in people[0] | people[1]:
            theirs = [data[number] for number in (*mine, *others) if rank.PATIENTS[number] == person]
            assert 1 <= len(theirs) <= rank.MOST
            outputs = model(torch.stack([ids for _, ids, _ in theirs]))
            loss = nn.functional.cross_entropy(outputs, torch.tensor([label for _, _, label in theirs]))
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            norm = float(torch.cat([each.flatten() for each in gradients]).norm())
            for place, each in zip(total, gradients, strict=True):
                place += each * min(1.0, rank.CLIP * rank.HAIR / norm)
        for left, right, expected in zip(gradient, same, total, strict=True):
            assert torch.equal(left, right)
            torch.testing.assert_close(left, expected / 8, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_noise_is_added_once_and_all_ranks_have_the_same_weights_and_events(found, kind):
    one, two = (ranks[f"{kind} noised"] for ranks in found)
    assert all(map(torch.equal, one["after"], two["after"]))
    assert one["events"] == two["events"]
    for (before, mine, gradient), (_, others, _) in zip(one["steps"], two["steps"], strict=True):
        expected = clipped_sum(before, [*mine, *others])
        noise = torch.cat([(a - b / 20).flatten() for a, b in zip(gradient, expected, strict=True)])
        # Standard deviation clip / 20 over 2,791 coordinates: its estimate is off by 8% with probability 2e-9.
        assert float(noise.std()) == pytest.approx(rank.CLIP / 20, rel=0.08)


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_what_is_spent_is_what_one_process_with_the_same_batch_spends(found, kind):
    assert found[0][f"{kind} noised"]["events"] == rank.trained("alone", batch_size=20, noise_multiplier=1.0)["events"]
