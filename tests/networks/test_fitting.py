"""Networks that are trained together end as if each had been trained alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from noiseproof.errors import SettingError
from noiseproof.networks import Network, StackedNetwork, Training, fit_stack
from noiseproof.networks.fitting import _Schedule, cross_entropy

GENERATOR = torch.Generator().manual_seed(0)
FEATURES = torch.rand(60, 5, generator=GENERATOR)
LABELS = FEATURES[:, :3].argmax(1)
RECIPE = Network("mlp", (5,), 3, {"hidden": 8})
SHORT = Training(epochs=3, batch_size=8, lr=0.01)


def close(a: StackedNetwork, i: int, b: StackedNetwork, j: int) -> bool:
    return all(torch.allclose(a.parameters[key][i], b.parameters[key][j], atol=1e-5) for key in a.parameters)


@pytest.mark.parametrize("training", [SHORT, Training(epochs=3, batch_size=8, lr=0.1, optimizer="sgd", momentum=0.9)])
def test_a_networks_result_depends_on_its_seed_and_members_only(training):
    members = [torch.arange(20), torch.arange(10, 43), torch.arange(5), torch.arange(20)]
    together = fit_stack(RECIPE, FEATURES, LABELS, members, training, seeds=[7, 8, 9, 10])
    for j, seed in enumerate([7, 8, 9, 10]):
        alone = fit_stack(RECIPE, FEATURES, LABELS, [members[j]], training, seeds=[seed])
        assert close(together, j, alone, 0)
    turned = fit_stack(RECIPE, FEATURES, LABELS, members[::-1], training, seeds=[10, 9, 8, 7])
    assert all(close(together, j, turned, 3 - j) for j in range(4))
    assert not close(together, 0, together, 3)


@pytest.mark.parametrize(
    ("training", "optimizer"),
    [
        (
            Training(epochs=4, batch_size=8, lr=0.01, l2=0.05),
            lambda groups: torch.optim.Adam(groups, lr=0.01),
        ),
        (
            Training(epochs=4, batch_size=8, lr=0.1, optimizer="sgd", momentum=0.5, l2=0.05),
            lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.5),
        ),
    ],
)
def test_it_is_ordinary_training_with_l2_on_the_kernels_only(training, optimizer):
    members = torch.arange(3, 29)
    ours = fit_stack(RECIPE, FEATURES, LABELS, [members, torch.arange(50)], training, seeds=[1, 2])
    module = RECIPE.build(1)
    plain = optimizer(module.parameters())
    schedule = _Schedule([members], training, [1])
    for step in range(schedule.steps):
        indices, _ = schedule.batch(step, 1, torch.device("cpu"))
        loss = nn.functional.cross_entropy(module(FEATURES[indices[0]]), LABELS[indices[0]])
        penalty = sum(value.square().sum() for value in module.parameters() if value.ndim > 1)
        plain.zero_grad()
        (loss + 0.05 * penalty).backward()
        plain.step()
    for key, value in module.named_parameters():
        assert torch.allclose(ours.parameters[key][0], value, atol=1e-5)


def test_an_epoch_shows_every_member_once_in_an_order_of_the_networks_own():
    members = [torch.arange(0, 60, 2), torch.arange(7)]
    schedule = _Schedule(members, Training(epochs=2, batch_size=8), [3, 4])
    assert schedule.order == [0, 1]
    assert schedule.steps == 8
    assert [schedule.active(step) for step in range(8)] == [2, 2, 1, 1, 1, 1, 1, 1]
    epochs = [[], []]
    for step in range(8):
        indices, shares = schedule.batch(step, schedule.active(step), torch.device("cpu"))
        assert torch.allclose(shares.sum(1), torch.ones(len(shares)))
        epochs[step // 4].append(indices[0][shares[0] > 0])
        if step < 2:
            assert sorted(indices[1][shares[1] > 0].tolist()) == list(range(7))
    first, second = (torch.cat(epoch) for epoch in epochs)
    assert first.sort().values.equal(members[0])
    assert second.sort().values.equal(members[0])
    assert not first.equal(second)


def test_dropout_networks_train_and_do_not_depend_on_the_stack():
    recipe = Network("mnist-net", (1, 8, 8), 2)
    images, labels = torch.rand(20, 1, 8, 8, generator=GENERATOR), torch.arange(20) % 2
    members = [torch.arange(12), torch.arange(20)]
    training = Training(epochs=2, batch_size=5)
    together = fit_stack(recipe, images, labels, members, training, seeds=[1, 2])
    for j, seed in enumerate([1, 2]):
        alone = fit_stack(recipe, images, labels, [members[j]], training, seeds=[seed])
        for key in alone.parameters:
            assert torch.allclose(together.parameters[key][j], alone.parameters[key][0], atol=1e-4)


def test_another_loss_can_be_plugged_in():
    def log_mean_exp(logits, labels, shares):
        losses = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
        return (losses.view_as(shares) + shares.log()).logsumexp(1)

    members = [torch.arange(20), torch.arange(13)]
    plain = fit_stack(RECIPE, FEATURES, LABELS, members, SHORT)
    other = fit_stack(RECIPE, FEATURES, LABELS, members, Training(epochs=3, batch_size=8, lr=0.01, loss=log_mean_exp))
    assert not close(plain, 0, other, 0)
    alone = fit_stack(
        RECIPE, FEATURES, LABELS, members[1:], Training(epochs=3, batch_size=8, lr=0.01, loss=log_mean_exp), seeds=[1]
    )
    assert close(other, 1, alone, 0)


def test_the_loss_is_each_networks_mean():
    logits, labels = torch.randn(2, 4, 3), torch.randint(3, (2, 4))
    shares = torch.tensor([[0.25] * 4, [0.5, 0.5, 0, 0]])
    losses = cross_entropy(logits, labels, shares)
    assert torch.allclose(losses[0], nn.functional.cross_entropy(logits[0], labels[0]))
    assert torch.allclose(losses[1], nn.functional.cross_entropy(logits[1, :2], labels[1, :2]))


def test_networks_may_start_from_one_shared_initialisation():
    start = StackedNetwork.of(RECIPE, [5, 5])
    members = [torch.arange(20)] * 2
    untrained = fit_stack(RECIPE, FEATURES, LABELS, members, Training(epochs=0), start=start)
    assert close(untrained, 0, start, 0)
    trained = fit_stack(RECIPE, FEATURES, LABELS, members, SHORT, seeds=[1, 2], start=start)
    assert not close(trained, 0, trained, 1)
    assert close(start, 0, StackedNetwork.of(RECIPE, [5]), 0)


def test_training_learns():
    stack = fit_stack(RECIPE, FEATURES, LABELS, [torch.arange(60)] * 2, Training(epochs=150, batch_size=20, lr=0.02))
    assert (stack.logits(FEATURES).argmax(2) == LABELS).float().mean() > 0.9


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": -1},
        {"batch_size": 0},
        {"lr": 0.0},
        {"lr": float("nan")},
        {"l2": -1.0},
        {"momentum": 0.9},
        {"optimizer": "lion"},
        {"momentum": 1.0, "optimizer": "sgd"},
    ],
)
def test_bad_settings_are_refused(settings):
    with pytest.raises(SettingError):
        Training(**settings)


def test_members_that_cannot_be_trained_on_are_refused():
    for members, says in [
        ([], "no network"),
        ([torch.arange(0)], "at least one index"),
        ([torch.tensor([60])], "not all among"),
        ([torch.tensor([0.5])], "at least one index"),
    ]:
        with pytest.raises(SettingError, match=says):
            fit_stack(RECIPE, FEATURES, LABELS, members, SHORT)
    with pytest.raises(SettingError, match="as many seeds"):
        fit_stack(RECIPE, FEATURES, LABELS, [torch.arange(3)], SHORT, seeds=[1, 2])


class Mixing(nn.Module):
    """A layer that does to its batch what no layer may do: without weights, with a memory, with a buffer."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.last = how, 0.0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, values):
        if self.how == "standardised":
            return (values - values.mean(0)) / (values.std(0, correction=0) + 1)
        if self.how == "by a value":
            return values / float(values.detach().abs().max() + 1)
        if self.how == "remembered":
            values, self.last = values + self.last, values.mean().detach()
            return values
        if self.how == "in a buffer":
            self.seen += values.detach().abs().amax()
            return values / (1 + self.seen)
        return values * torch.softmax(values, 0)


HOSTILE = {"nan": float("nan"), "huge": 1e38, "infinite": float("inf"), "ordinary": 3.0}
MIXING = [None, "standardised", "by a value", "remembered", "in a buffer", "softmax over records"]


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("how", MIXING)
def test_a_record_influences_its_own_network_alone_whatever_it_holds(how, value):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 3), nn.Tanh(), *([] if how is None else [Mixing(how)]), nn.Linear(3, 2)]
    network = Network.of(nn.Sequential(*layers), (4,), 2)
    features = torch.rand(40, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(40) % 2
    # Record 0 is the first network's; batches of 6 leave all of them short ones, and one network is done early.
    members = [torch.arange(0, 15), torch.arange(15, 32), torch.arange(32, 35), torch.arange(35, 40)]
    training = Training(epochs=4, batch_size=6, lr=0.05)

    def fitted(first):
        changed = features.clone()
        changed[0] = first
        return fit_stack(network, changed, labels, members, training).parameters

    before, after = fitted(0.5), fitted(value)
    for name in before:
        assert torch.equal(before[name][1:], after[name][1:]), name
        assert torch.isfinite(after[name][1:]).all()
    assert any(not torch.equal(before[name][0], after[name][0]) for name in before)


@pytest.mark.parametrize("how", MIXING[1:])
def test_a_record_more_changes_no_other_network_even_where_layers_mix(how):
    torch.manual_seed(0)
    training = Training(epochs=3, batch_size=8, lr=0.1, optimizer="sgd")
    network = Network.of(nn.Sequential(nn.Linear(4, 3), Mixing(how), nn.Linear(3, 2)), (4,), 2)
    features = torch.rand(40, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(40) % 2
    fitted = [
        fit_stack(network, features, labels, [torch.arange(count), torch.arange(30, 34)], training) for count in (4, 5)
    ]
    for name, value in fitted[0].parameters.items():
        torch.testing.assert_close(value[1], fitted[1].parameters[name][1], rtol=1e-5, atol=1e-6)


def test_a_network_that_mixes_records_is_trained_as_if_alone():
    torch.manual_seed(0)
    network = Network.of(nn.Sequential(nn.Linear(4, 3), Mixing("standardised"), nn.Linear(3, 2)), (4,), 2)
    features, labels = torch.rand(24, 4, generator=torch.Generator().manual_seed(1)), torch.arange(24) % 2
    members = [torch.arange(0, 12), torch.arange(12, 24)]
    together = fit_stack(
        network, features, labels, members, Training(epochs=3, batch_size=6, lr=0.1, optimizer="sgd"), seeds=[0, 1]
    )
    alone = fit_stack(
        network, features, labels, members[1:], Training(epochs=3, batch_size=6, lr=0.1, optimizer="sgd"), seeds=[1]
    )
    for name, value in together.parameters.items():
        torch.testing.assert_close(value[1], alone.parameters[name][0], rtol=1e-5, atol=1e-6)
