"""A loop in which records are mixed is refused before its first steps are over; one in which they are not is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from noiseproof.engine import PoissonSampler, PrivateGradients, checks, twins
from noiseproof.errors import NoiseproofError, UnsupportedError
from noiseproof.privacy import Reproducible


class Network(nn.Module):
    """A network with something done to its inputs, or to what the first layer gives."""

    def __init__(self, before=None, between=None, after=None) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 3)
        self.before, self.between, self.after = before, between, after

    def forward(self, inputs):
        inputs = inputs if self.before is None else self.before(inputs)
        hidden = self.drop(self.first(inputs).relu())
        scores = self.last(hidden if self.between is None else self.between(hidden))
        return scores if self.after is None else self.after(scores)


def standardised(inputs):
    return (inputs - inputs.mean(0)) / inputs.std(0)


def mixed_up(inputs):
    return 0.8 * inputs + 0.2 * inputs[torch.randperm(len(inputs))]


def ranked(inputs):
    return inputs.argsort(0).argsort(0).float() / len(inputs)


def detached(hidden):
    return hidden / (hidden.detach().std(0) + 0.1)


NETWORKS = {
    "standardised inputs": {"before": standardised},
    "functional batch norm": {"between": lambda hidden: F.batch_norm(hidden, None, None, training=True)},
    "detached statistics": {"between": detached},
    "softmax over records": {"after": lambda scores: 5 * scores.softmax(0)},
    "mixup": {"before": mixed_up},
    "ranks": {"before": ranked},
    "the batch's maximum": {"before": lambda inputs: inputs / inputs.abs().max()},
    "the maximum of detached activations": {"between": lambda hidden: hidden / hidden.detach().max()},
    "a mean that moves nothing but the scores": {"after": lambda scores: scores - scores.detach().mean(0)},
    "a number read off the batch": {"before": lambda inputs: inputs / inputs.abs().max().item()},
    "a mean that Python multiplies by": {"between": lambda hidden: hidden * float(hidden.detach().mean())},
    "a cumulative sum": {"before": lambda inputs: inputs.cumsum(0)},
    "a neighbour": {"before": lambda inputs: inputs + inputs.roll(1, 0)},
    "sorted records": {"between": lambda hidden: hidden + 0.01 * hidden.detach().sort(0).values},
}


def over_the_mean(losses):
    return losses / losses.mean()


def over_the_detached_mean(losses):
    return losses / losses.mean().detach()


def hardest_half(losses):
    return losses * (losses >= losses.median())


def by_rank(losses):
    return losses * losses.argsort().argsort() / len(losses)


LOSSES = {function.__name__: function for function in (over_the_mean, over_the_detached_mean, hardest_half, by_rank)}


@pytest.fixture(autouse=True)
def _every_batch_is_checked(monkeypatch):
    """One check misses a dependence on a hidden extreme with probability 1/8 or 1/2, by turns; fourteen miss it with 4e-9."""
    monkeypatch.setattr(checks, "EVERY", 1)


def train(network, *, steps=14, weigh=lambda losses: losses, prepare=lambda inputs: inputs, features=6, **options):
    torch.manual_seed(0)
    inputs, labels = torch.randn(120, features), torch.randint(3, (120,))
    engine = PrivateGradients(
        network, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=0.5, rng=Reproducible(0), **options
    )
    for x, y in engine.batches(inputs, labels, steps=steps):
        engine.backward(weigh(F.cross_entropy(network(prepare(x)), y, reduction="none")))
    engine.close()
    return engine


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_network_that_mixes_records_is_refused(kind):
    with pytest.raises(UnsupportedError):
        train(Network(**NETWORKS[kind]))


READ = {
    "losses over their mean": {"weigh": lambda losses: losses / losses.mean().item()},
    "losses times their largest": {"weigh": lambda losses: losses * losses.max().item()},
    "inputs over their largest": {"prepare": lambda inputs: inputs / inputs.abs().max().item()},
}


@pytest.mark.parametrize("kind", READ)
def test_a_number_that_the_loop_takes_out_of_torch_and_puts_back_is_refused(kind):
    with pytest.raises(UnsupportedError, match="other records"):
        train(Network(), **READ[kind])


def test_a_number_that_the_loop_only_looks_at_is_none_of_the_engines_business():
    seen = []

    def look(losses):
        seen.append(losses.mean().item())
        return losses * 0.5

    assert train(Network(), weigh=look).steps == len(seen) == 14


@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_that_mixes_records_is_refused(kind):
    with pytest.raises(UnsupportedError, match=r"other records|mixes records"):
        train(Network(), weigh=LOSSES[kind])


@pytest.mark.parametrize("prepare", [standardised, mixed_up, ranked], ids=lambda function: function.__name__)
def test_inputs_that_the_loop_mixes_are_refused(prepare):
    with pytest.raises(UnsupportedError, match="other records"):
        train(Network(), prepare=prepare)


class Attending(nn.Module):
    """Attention within each record, and nothing around it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 3)

    def forward(self, inputs):
        query, key, value = inputs.unflatten(1, (4, 3, 8)).unbind(2)
        return self.layer(
            F.scaled_dot_product_attention(*(part.unsqueeze(1) for part in (query, key, value))).flatten(1)
        )


@pytest.mark.parametrize("prepare", [standardised, mixed_up], ids=lambda function: function.__name__)
def test_attention_hides_no_inputs_that_the_loop_mixes(prepare):
    """Attention is said to be random, since it may drop, and what is random is not run on a twin."""
    with pytest.raises(UnsupportedError, match="other records"):
        train(Attending(), prepare=prepare, features=96)


def test_what_is_refused_at_the_first_batch_has_released_nothing():
    network = Network(before=standardised)
    with pytest.raises(UnsupportedError):
        train(network)
    assert all(parameter.grad is None for parameter in network.parameters())


@pytest.mark.parametrize("in_place", [True, False])
def test_a_buffer_that_keeps_the_batchs_maximum_is_refused(in_place):
    class Keeping(Network):
        def __init__(self):
            super().__init__()
            self.register_buffer("largest", torch.zeros(2))

        def forward(self, inputs):
            if in_place:
                self.largest[0] = torch.maximum(self.largest[0], inputs.max())
            else:
                self.largest = torch.maximum(self.largest, inputs.detach().max())
            return super().forward(inputs)

    with pytest.raises(UnsupportedError, match="largest"):
        train(Keeping())


def test_buffers_that_count_passes_or_are_not_released_are_not_refused():
    class Counting(Network):
        def __init__(self):
            super().__init__()
            self.register_buffer("passes", torch.zeros((), dtype=torch.long))
            self.register_buffer("seen", torch.zeros(6), persistent=False)

        def forward(self, inputs):
            self.passes += 1
            self.seen = inputs.detach().mean(0)
            return super().forward(inputs)

    network = Counting()
    assert train(network).steps == 14
    assert int(network.passes) == 14


class Remembering(Network):
    """A network that lets a batch see something of the one before."""

    def __init__(self, way):
        super().__init__()
        self.way, self.memory = way, 0.0
        self.register_buffer("held", torch.zeros(6), persistent=False)

    def forward(self, inputs):
        before, self.memory = self.memory, self.new(inputs.detach())
        return super().forward(inputs * 0.5 + before if self.way != "a changed number" else inputs * (1 + before))

    def new(self, inputs):
        if self.way == "a buffer":
            before, self.held = self.held, inputs.mean(0)
            return before + self.held
        return {
            "a tensor": lambda: inputs.mean(0),
            "a tensor in a list": lambda: [inputs[:1]][0].sum(),
            "a number": lambda: inputs.max().item(),
            "a changed number": lambda: 0.1 * float(inputs.max()),
        }[self.way]()


@pytest.mark.parametrize("way", ["a tensor", "a tensor in a list", "a buffer", "a number", "a changed number"])
def test_a_network_that_remembers_records_of_the_batch_before_is_refused(way):
    with pytest.raises(UnsupportedError, match="other records"):
        train(Remembering(way))


def test_so_is_a_loop_that_does_and_none_that_counts_or_only_keeps():
    means = [torch.zeros(())]

    def weigh(losses):
        before = means[-1]
        means.append(losses.detach().mean())
        return losses / (1 + before)

    with pytest.raises(UnsupportedError, match="other records"):
        train(Network(), weigh=weigh)

    class Counting(Network):
        calls, largest = 0, 0.0

        def forward(self, inputs):
            self.calls += 1
            self.largest, self.kept = max(self.largest, inputs.max().item()), inputs
            return super().forward(inputs / self.calls)

    network = Counting()
    assert train(network, weigh=lambda losses: means.append(losses) or losses).steps == network.calls == 14


def test_what_is_remembered_is_noticed_later_too(monkeypatch):
    """A later check is of two batches, one after the other."""
    monkeypatch.setattr(checks, "EVERY", 8)
    network, calls = Network(), [torch.zeros(6)]

    def later(inputs):
        calls.append(inputs.detach().mean(0))
        return inputs + calls[-2] if len(calls) > 20 else inputs

    network.before = later
    # Of 180 batches one in eight is the first of two that are checked: it is missed with probability 0.875^180 < 1e-10.
    with pytest.raises(UnsupportedError, match="other records"):
        train(network, steps=200)
    assert len(calls) > 20


def test_mixing_that_begins_later_is_noticed_at_a_time_that_nobody_knows(monkeypatch):
    monkeypatch.setattr(checks, "EVERY", 4)
    network = Network()
    calls = []

    def later(inputs):
        calls.append(1)
        return standardised(inputs) if len(calls) > 20 else inputs

    network.before = later
    # Of 200 batches one in four is looked at: it is missed with probability 0.75^180 < 1e-22.
    with pytest.raises(UnsupportedError, match="other records"):
        train(network, steps=200)
    assert len(calls) > 20


def test_a_users_loader_is_followed_too():
    inputs, labels = torch.randn(40, 6), torch.randint(3, (40,))
    network = Network(before=standardised)
    engine = PrivateGradients(network, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=0.5, rng=Reproducible(0))
    loader = DataLoader(TensorDataset(inputs, labels), batch_sampler=PoissonSampler(40, 0.5, 4, Reproducible(2)))
    batches = engine.load(loader)
    x, y = next(batches)
    with pytest.raises(UnsupportedError, match="other records"):
        engine.backward(F.cross_entropy(network(x), y, reduction="none"))


class Everything(nn.Module):
    """Most kinds of layers, dropout, in-place operations, masks and indices."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8, padding_idx=0)
        self.images = nn.Sequential(nn.Conv1d(8, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(inplace=True))
        self.recurrent = nn.LSTM(8, 8, batch_first=True, num_layers=2, dropout=0.2)
        self.attention = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.own = nn.PReLU(8)
        self.scores = nn.Linear(8, 3)

    def forward(self, words):
        hidden = self.images(self.table(words).transpose(1, 2)).transpose(1, 2)
        hidden = self.attention(self.recurrent(hidden)[0], src_key_padding_mask=words == 0)
        hidden[:, 0] *= 0.5
        weights = torch.zeros_like(hidden[..., 0]).masked_fill_(words == 0, -1e4).softmax(1)
        pooled = (hidden * weights.unsqueeze(2)).sum(1)
        return self.scores(self.own(pooled + torch.randn_like(pooled)))


def test_numbers_read_off_the_batch_raise_no_false_alarm_if_nothing_comes_of_them():
    seen = []

    def looking(inputs):
        seen.append(inputs.abs().max().item())
        return inputs

    network = Network(before=looking)
    assert train(network).steps == 14


def packed(hidden):
    """Works on positive entries alone, whose number the batch decides, and puts them back."""
    positive = hidden > 0
    values = hidden[positive]
    return torch.zeros_like(hidden).masked_scatter(positive, values.view(len(values)) * 2)


def packed_and_mixed(hidden):
    return packed(hidden) / hidden[hidden > 0].detach().mean()


def test_shapes_that_follow_from_values_raise_no_false_alarm_and_hide_nothing():
    assert train(Network(between=packed)).steps == 14
    with pytest.raises(UnsupportedError, match="other records"):
        train(Network(between=packed_and_mixed))
    with pytest.raises(UnsupportedError, match=r"other records|mixes records"):
        train(Network(between=packed), weigh=over_the_detached_mean)


def test_a_network_of_many_layers_and_randomness_raises_no_false_alarm():
    torch.manual_seed(0)
    network = Everything()
    words, labels = torch.randint(20, (60, 7)), torch.randint(3, (60,))
    words[:, 0] = 1
    engine = PrivateGradients(network, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=0.4, rng=Reproducible(0))
    for x, y in engine.batches(words, labels, steps=6):
        assert engine._twin is not None
        losses = F.cross_entropy(network(x), y, reduction="none", label_smoothing=0.1)
        assert losses in engine._twin._twins
        assert not engine._twin.failed
        engine.backward(losses)
    assert engine.steps == 6


def test_checking_changes_nothing(monkeypatch):
    gradients = []
    for every in (1, 10**9):
        monkeypatch.setattr(checks, "EVERY", every)
        monkeypatch.setattr(checks, "FIRST", 1 if every == 1 else 0)
        torch.manual_seed(1)
        network = Network()
        train(network)
        gradients.append([parameter.grad for parameter in network.parameters()])
    for left, right in zip(*gradients, strict=True):
        assert torch.equal(left, right)


def test_an_interrupted_loop_leaves_nothing_that_follows_operations():
    network = Network()
    engine = PrivateGradients(network, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=0.5, rng=Reproducible(0))
    batches = engine.batches(torch.randn(40, 6), steps=3)
    next(batches)
    assert isinstance(twins._get_current_dispatch_mode(), twins.TwinBatch)
    batches.close()
    assert twins._get_current_dispatch_mode() is None


def test_losses_of_a_batch_whose_drawing_was_given_up_are_refused():
    network = Network()
    engine = PrivateGradients(network, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=0.5, rng=Reproducible(0))
    (x,) = next(engine.batches(torch.randn(40, 6), steps=3))  # no one holds what draws the batches
    with pytest.raises(NoiseproofError, match="no batch"):
        engine.backward(network(x).sum(1))


def test_a_rule_that_does_not_fit_its_layer_is_noticed():
    class Doubling(nn.Linear):
        def forward(self, inputs):
            return 2 * super().forward(inputs)

    from noiseproof.engine import register_rule
    from noiseproof.engine.rules.rule import _RULES

    register_rule(Doubling)(
        lambda layer, inputs, errors: {"weight": errors.unsqueeze(2) * inputs.unsqueeze(1), "bias": errors}
    )
    try:
        network = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), Doubling(8, 3))
        with pytest.raises(UnsupportedError, match="rule"):
            train(network)
    finally:
        del _RULES[Doubling]


def test_a_checked_step_does_not_hold_all_activations_twice(monkeypatch):
    """Twins of what only the graph holds are dropped at the end of each layer."""
    assert twins._COUNTS_REFERENCES
    most = 0
    original = twins.TwinBatch._let_go

    def counted(self, *given):
        nonlocal most
        original(self, *given)
        most = max(most, len(self._twins))

    monkeypatch.setattr(twins.TwinBatch, "_let_go", counted)
    network = nn.Sequential(*(part for _ in range(12) for part in (nn.Linear(6, 6), nn.Tanh())))
    train(network)
    assert 0 < most <= 8


@pytest.mark.parametrize("way", ["attribute", "list", "closure", "default", "view"])
def test_what_is_kept_anywhere_in_python_is_still_followed(way):
    """The first layer's result is put away, and mixed much later: no twin may be dropped for that."""

    class Late(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(6))

        def forward(self, x):
            first = self.layers[0](x)
            kept = {
                "attribute": lambda: setattr(self, "kept", first) or (lambda: self.kept),
                "list": lambda: [first].pop,
                "closure": lambda: lambda: first,
                "default": lambda: lambda first=first: first,
                "view": lambda: (lambda view: lambda: view)(first[:, :3]),
            }[way]()
            x = first.tanh()
            if way != "closure":
                first = None
            for layer in self.layers[1:]:
                x = layer(x).tanh()
            return x * kept().mean(0).sum().detach()

    with pytest.raises(UnsupportedError, match="depends on which other records"):
        train(Late())


WIDE = 2048
"""Features of records for which an operation's twin is tried in pieces."""
MIXING = {
    "the mean": lambda x: x - x.mean(0, keepdim=True),
    "the largest": lambda x: x / x.abs().amax(0, keepdim=True),
    "a softmax over records": lambda x: x + x.softmax(0),
    "the record before": lambda x: x + x.roll(1, 0),
    "a record far away": lambda x: x + x.roll(33, 0),
    "a sum from the first on": lambda x: x.cumsum(0) / 10,
    "ranks": lambda x: x + x.argsort(0).argsort(0) / 64,
    "the order turned": lambda x: x.flip(0),
    "attention among records": lambda x: (x @ x.T / WIDE).softmax(1) @ x,
    "a convolution along records": lambda x: F.conv1d(x.T.unsqueeze(1), torch.ones(1, 1, 3), padding=1).squeeze(1).T,
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "distances": lambda x: x + torch.cdist(x, x).mean(1, keepdim=True),
    "a record if it is a large one": lambda x: x * (x.norm(dim=1) > x.norm(dim=1).median()).unsqueeze(1),
}


VIEWS = {
    "one behind the other": lambda x: x.flatten(),
    "parts of all": lambda x: x[:, WIDE // 2 :],
    "all turned": lambda x: x.unflatten(1, (WIDE // 8, 8)).transpose(1, 2),
    "what was detached": lambda x: x.detach(),
    "parts of what is folded": lambda x: x.view(-1, 64)[:, :32],
}


@pytest.mark.parametrize("way", VIEWS)
@pytest.mark.parametrize("whole", [True, False])
def test_what_mixes_records_in_place_is_seen_in_every_view(way, whole):
    """The whole is written into and a view is looked at, or the other way round."""

    def mixed(x):
        x = x.clone()
        view = VIEWS[way](x)
        written = x if whole else view
        written.add_(x.mean(0).sum())
        return x if not whole else torch.cat([view.reshape(len(x), -1), x[:, :0]], dim=1).repeat(1, 2)[:, :WIDE]

    with pytest.raises(UnsupportedError, match="other records"):
        train(nn.Linear(WIDE, 3), prepare=mixed, features=WIDE)


@pytest.mark.parametrize("factor", [lambda x: x.mean(0).sum(), lambda x: 2.0], ids=["mixed", "not mixed"])
def test_what_is_written_by_way_of_memory_that_is_shared_is_seen(factor):
    def prepare(x):
        x = x.clone()
        torch.from_numpy(x.numpy()).mul_(factor(x))
        return x

    if isinstance(factor(torch.ones(2, 2)), float):
        train(nn.Linear(WIDE, 3), prepare=prepare, features=WIDE)
    else:
        with pytest.raises(UnsupportedError, match="other records"):
            train(nn.Linear(WIDE, 3), prepare=prepare, features=WIDE)


@pytest.mark.parametrize("way", MIXING)
def test_what_mixes_wide_records_without_a_gradient_is_refused(way):
    with pytest.raises(UnsupportedError, match="other records"):
        train(nn.Linear(WIDE, 3), prepare=lambda inputs: MIXING[way](inputs).detach(), features=WIDE)


def test_the_twin_of_wide_records_is_not_kept_where_records_are_by_themselves():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(WIDE, WIDE), nn.ReLU(), nn.Linear(WIDE, 3))
    x, y = torch.randn(64, WIDE), torch.randint(3, (64,))
    engine = PrivateGradients(network, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=1.0, rng=Reproducible(0))
    for features, labels in engine.batches(x, y, steps=1):
        losses = F.cross_entropy(network(features), labels, reduction="none")
        kept = engine._twin._twins.values()
        assert engine._twin._twins.get(losses) is not None
        assert max(twin.numel() for twin in kept) <= 64 * 3
        engine.backward(losses)
