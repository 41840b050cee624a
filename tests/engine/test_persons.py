"""Persons: samples of them, bounded numbers of their records, and one clipped gradient for each."""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from noiseproof.engine import PerRecordGradients, clip_weights, graph, register_rule
from noiseproof.engine.persons import Owners, PersonSampler
from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.engine.rules import operations, rule
from noiseproof.engine.rules.operations import ready
from noiseproof.errors import SettingError
from noiseproof.privacy import Reproducible
from noiseproof.privacy.events import sampled_gaussian

LAYERS = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)), (6,)),
    "sequence": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Flatten(), nn.Linear(20, 3)), (4, 6)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 3)),
        (2, 8, 8),
    ),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose1d(2, 3, 3), nn.Flatten(), nn.Linear(18, 3)), (2, 4)),
    "norm": (lambda: nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 3)), (6,)),
    "group-norm": (lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(20, 3)), (4, 5)),
    "lstm": (lambda: Last(nn.LSTM(6, 4, batch_first=True)), (5, 6)),
    "gru": (lambda: Last(nn.GRU(6, 4, batch_first=True)), (5, 6)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(7, 4), nn.Flatten(), nn.Linear(20, 3)), None),
    "raw table": (lambda: Picking(), None),
    "attention": (lambda: Attention(), (5, 6)),
    "grouped": (
        lambda: nn.Sequential(nn.Conv1d(4, 6, 3, groups=2, dilation=2), nn.Flatten(), nn.Linear(24, 3)),
        (4, 8),
    ),
    "depthwise": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(36, 3)), (2, 5, 5)),
    "volume": (lambda: nn.Sequential(nn.Conv3d(1, 2, 2), nn.Flatten(), nn.Linear(16, 3)), (1, 3, 3, 3)),
    "instance-norm": (
        lambda: nn.Sequential(nn.InstanceNorm1d(4, affine=True), nn.Flatten(), nn.Linear(20, 3)),
        (4, 5),
    ),
    "slopes": (lambda: nn.Sequential(nn.Linear(6, 5), nn.PReLU(5), nn.Linear(5, 3)), (6,)),
    "rnn": (lambda: Last(nn.RNN(6, 4, batch_first=True)), (5, 6)),
    "lstm-cell": (lambda: Cells(nn.LSTMCell(6, 4)), (3, 6)),
    "gru-cell": (lambda: Cells(nn.GRUCell(6, 4)), (3, 6)),
    "rnn-cell": (lambda: Cells(nn.RNNCell(6, 4)), (3, 6)),
    "bag": (lambda: nn.Sequential(nn.EmbeddingBag(7, 4), nn.Linear(4, 3)), None),
    "operations": (lambda: Operations(), (4, 6)),
    "tied": (lambda: Tied(), (6,)),
    "own rule": (lambda: nn.Sequential(Scale(6), nn.Linear(6, 3)), (6,)),
}
"""A network for every rule: `test_no_rule_is_left_out` says so."""


class Scale(nn.Module):
    """A layer with a rule of the user's own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * x


register_rule(Scale)(lambda layer, inputs, errors: {"factor": inputs * errors})


class Operations(nn.Module):
    """Parameters that meet records in operations, without a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.scale = nn.Parameter(torch.randn(1, 1, 6)), nn.Parameter(torch.randn(6))
        self.heads, self.vector = nn.Parameter(torch.randn(5, 6, 6)), nn.Parameter(torch.randn(6))
        self.bias = nn.Parameter(torch.zeros(1, 5))
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = len(x)
        x = torch.cat([self.token.expand(rows, -1, -1), x], dim=1) * self.scale
        x = torch.bmm(x.transpose(0, 1), self.heads).transpose(0, 1)
        x = (x.reshape(-1, 6) @ self.vector).view(rows, 5)
        return self.head(x + self.bias.repeat(rows, 1))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.square, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(functional.linear(self.square(x).tanh(), self.square.weight.T))


class Cells(nn.Module):
    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell, self.head = cell, nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state[0] if isinstance(state, tuple) else state)


class Last(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(x)[0][:, -1])


class Picking(nn.Module):
    """Rows of a parameter by index."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Parameter(torch.randn(7, 4)), nn.Linear(20, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.table[words].flatten(1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


def test_no_rule_is_left_out(monkeypatch):
    met = set()

    def noted(node, *given):
        met.add(re.sub(r"Backward\d$", "", type(node).__name__))
        return ready(node, *given)

    monkeypatch.setattr(graph, "ready", noted)
    for kind in LAYERS:
        module, inputs, labels = records_for(kind, 3)
        with PerRecordGradients(module) as engine:
            engine.backward(functional.cross_entropy(module(inputs), labels, reduction="none"))
    rules = {re.sub(r"Backward\d$", "", name): rule for name, rule in operations._RULES.items()}
    assert {rules[name] for name in met if name in rules} == set(rules.values())
    layers = {type(layer) for make, _ in LAYERS.values() for layer in make().modules()}
    assert {layer for layer in rule._RULES if layer.__module__.startswith(("torch", __name__))} <= layers


def records_for(kind: str, count: int, scale: float = 1.0) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    make, shape = LAYERS[kind]
    inputs = torch.randint(7, (count, 5)) if shape is None else scale * torch.randn(count, *shape)
    return make(), inputs, torch.randint(3, (count,))


def grouped(counts: list[int]) -> torch.Tensor:
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))


@pytest.mark.parametrize("kind", LAYERS)
@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    scale=st.sampled_from([1e-4, 1.0, 1e4]),
    clip=st.sampled_from([1e-3, 0.1, 10.0]),
    alike=st.booleans(),
)
@settings(deadline=None, derandomize=True, max_examples=8)
def test_a_person_adds_the_clipping_norm_at_most(kind, counts, scale, clip, alike):
    module, inputs, labels = records_for(kind, sum(counts), scale)
    owners = grouped(counts)
    if alike:  # all of a person's records the same: their gradients add up
        inputs, labels = inputs[owners], labels[owners]
    with PerRecordGradients(module) as engine:
        losses = functional.cross_entropy(module(inputs), labels, reduction="none")
        persons = engine.backward(losses).by_person(Owners(owners, len(counts)))
        weights = clip_weights(persons.squared_norms(), clip)
        for one in torch.eye(len(counts)):
            assert float(persons.weighted_vector(weights * one).double().norm()) <= clip


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_step_is_that_of_a_loop_over_persons(kind, reduction):
    counts = [1, 3, 2, 7, 1, 1, 4]
    module, inputs, labels = records_for(kind, sum(counts))
    order = torch.randperm(sum(counts))
    groups = grouped(counts)[order]
    clip, expected = 0.5, torch.zeros(sum(p.numel() for p in module.parameters()))
    for person in range(len(counts)):
        mine = groups == person
        losses = functional.cross_entropy(module(inputs[mine]), labels[mine], reduction="none")
        loss = losses.mean() if reduction == "mean" else losses.sum()
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(module.parameters()))])
        expected += gradient * min(1.0, clip / float(gradient.norm())) / len(counts)
    for size in (None, 4):
        engine = PrivateGradients(
            module, max_grad_norm=clip, noise_multiplier=1e-9, sample_rate=1.0, rng=Reproducible(0)
        )
        batches = engine.batches(
            inputs, labels, steps=1, micro_batch_size=size, groups=groups, max_records_per_person=7, reduction=reduction
        )
        for x, y in batches:
            done = engine.backward(functional.cross_entropy(module(x), y, reduction="none"))
        assert done
        assert engine.expected_batch == len(counts)
        found = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5 * clip)
        engine.close()


@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=20),
    most=st.integers(1, 12),
    rate=st.sampled_from([0.3, 1.0]),
    shuffled=st.booleans(),
    seed=st.integers(0, 2**20),
)
@settings(deadline=None, derandomize=True, max_examples=60)
def test_a_sample_has_distinct_records_of_whole_persons_and_no_more_than_the_bound(counts, most, rate, shuffled, seed):
    groups = grouped(counts)
    if shuffled:
        groups = groups[torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed))]
    sampler = PersonSampler(groups, most, Reproducible(seed))
    assert sampler.persons == len(counts)
    records, owners = sampler.draw(rate)
    assert len(records.unique()) == len(records) == len(owners.owners)
    persons = groups[records]
    assert len(persons.unique()) == owners.persons
    assert torch.equal(persons.unique_consecutive(return_inverse=True)[1], owners.owners)
    for person, count in zip(persons.unique_consecutive(), owners.counts, strict=True):
        assert int(count) == min(most, counts[int(person)])
    if rate == 1:
        assert owners.persons == len(counts)


def test_records_of_a_person_are_chosen_uniformly_and_afresh():
    """A chi-square over 10 records; it is wrong about a uniform choice once in a million."""
    sampler = PersonSampler(grouped([10, 2]), 3, Reproducible(5))
    seen = torch.zeros(12)
    for _ in range(4000):
        records, _ = sampler.draw(1.0)
        seen[records] += 1
    assert torch.equal(seen[10:], torch.full((2,), 4000.0))
    expected = 4000 * 3 / 10
    # Three draws without replacement have a covariance that shrinks the statistic: 9 / (1 - 0.3) at most.
    assert float(((seen[:10] - expected) ** 2 / expected).sum()) < 46.0


def test_persons_in_pieces_are_never_cut():
    owners = Owners(grouped([3, 9, 1, 1, 4]), 5)
    assert [(p.start, p.stop, r.start, r.stop) for p, r in owners.pieces(5)] == [
        (0, 1, 0, 3),
        (1, 2, 3, 12),
        (2, 4, 12, 14),
        (4, 5, 14, 18),
    ]
    assert [len(part.owners) for part in owners.split(5)] == [3, 9, 2, 4]
    assert owners.split(100) == [owners]


def test_what_a_step_on_persons_costs_is_a_sampled_gaussian():
    module, inputs, labels = records_for("linear", 40)
    engine = PrivateGradients(module, max_grad_norm=1.0, noise_multiplier=2.0, sample_rate=0.5, rng=Reproducible(1))
    groups = torch.arange(40) // 4
    for x, y in engine.batches(inputs, labels, steps=3, groups=groups, max_records_per_person=2):
        losses = functional.cross_entropy(module(x), y, reduction="none") if len(y) else None
        assert engine.backward(losses)
    assert engine.expected_batch == 5
    assert engine.events.runs == ((sampled_gaussian(0.5, 2.0), 3),)
    engine.close()


@pytest.mark.parametrize(
    ("groups", "most"),
    [
        (torch.tensor([0, 2]), 1),
        (torch.tensor([-1, 0]), 1),
        (torch.tensor([0.0, 1.0]), 1),
        (torch.empty(0, dtype=torch.int64), 1),
        (torch.tensor([0, 1]), 0),
    ],
)
def test_numbers_that_are_no_persons_are_refused(groups, most):
    with pytest.raises(SettingError):
        PersonSampler(groups, most, Reproducible(0))
