"""What no operation of torch shows: numpy, threads, the batch's size, places in it, own backward passes, memories."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from noiseproof.engine import PrivateGradients
from noiseproof.engine.company import folded
from noiseproof.errors import UnsupportedError
from noiseproof.privacy import Reproducible


class Network(nn.Module):
    """Two layers, with something done to the inputs or between them."""

    def __init__(self, before=None, between=None, drop=0.0):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 8), nn.Dropout(drop), nn.Linear(8, 3)
        self.before, self.between = before, between
        self.register_buffer("kept", torch.zeros(1))

    def forward(self, x):
        hidden = self.drop(self.first(x if self.before is None else self.before(self, x)).tanh())
        return self.last(hidden if self.between is None else self.between(hidden))


def scores(network, x, y):
    return F.cross_entropy(network(x), y, reduction="none")


def train(network, loop=scores, steps=8):
    torch.manual_seed(0)
    x, y = torch.randn(400, 6), torch.randint(3, (400,))
    engine = PrivateGradients(network, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=0.05, rng=Reproducible(0))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for some, labels in engine.batches(x, y, steps=steps):
        engine.backward(loop(network, some, labels))
        optimizer.step()
    engine.close()
    return engine


def own_backward(backward):
    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, hidden):
            ctx.save_for_backward(hidden)
            return hidden * 1

        @staticmethod
        def backward(ctx, errors):
            return backward(errors, *ctx.saved_tensors)

    return Own.apply


def hooked(hidden):
    hidden = hidden * 1
    if hidden.requires_grad:
        mean = hidden.detach().mean()
        hidden.register_hook(lambda errors: errors * (1 + 20 * mean))
    return hidden


def on_a_thread(network, x):
    found = []
    thread = threading.Thread(target=lambda: found.append(x.detach().mean(0)))
    thread.start()
    thread.join()
    return x - found[0]


def remembering(take):
    memory = []

    def before(network, x):
        memory.append(take(x.detach()))
        return x + 5 * torch.as_tensor(memory[-2]) if len(memory) > 1 else x

    return before


def written(network, x):
    network.first.weight.data.mul_(1 + 0.01 * x.detach().mean())
    return x


def written_in_numpy(network, x):
    network.kept.numpy()[:] = x.detach().numpy().mean()
    return x


NETWORKS = {
    "a mean in numpy": {"before": lambda _, x: x - torch.from_numpy(x.detach().numpy().mean(0))},
    "a mean in numpy and dropout": {
        "before": lambda _, x: x - torch.from_numpy(x.detach().numpy().mean(0)),
        "drop": 0.2,
    },
    "a mean in numpy and noise": {
        "before": lambda _, x: x + 0.1 * torch.randn_like(x) - torch.from_numpy(x.detach().numpy().mean(0))
    },
    "the largest of a list": {"before": lambda _, x: x / max(map(abs, x.detach()[:, 0].tolist()))},
    "shared memory": {"before": lambda _, x: x - torch.from_dlpack(x.detach()).mean(0)},
    "another thread": {"before": on_a_thread},
    "the batch's size": {"before": lambda _, x: x * 20 / len(x)},
    "places in the batch": {"before": lambda _, x: x + torch.arange(len(x)).unsqueeze(1)},
    "a backward pass with a mean": {"between": own_backward(lambda errors, h: errors * (1 + 20 * h.mean()))},
    "a hook with a mean": {"between": hooked},
    "memory in numpy": {"before": remembering(lambda x: x.mean(0).numpy().copy())},
    "memory in lists": {"before": remembering(lambda x: x.mean(0).tolist())},
}


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_network_whose_records_depend_on_their_company_is_refused(kind):
    with pytest.raises(UnsupportedError, match="other records"):
        train(Network(**NETWORKS[kind]))


class Mixed(torch.autograd.Function):
    """A linear layer that gives its weight, and nothing else, something of all records."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.T

    @staticmethod
    def backward(ctx, errors):
        x, weight = ctx.saved_tensors
        return errors @ weight, errors.T @ (x + x.mean(0))


def test_of_many_parameters_none_may_depend_on_others():
    """All are compared at every check: one that is spoiled is found at the first, however many there are beside."""
    torch.manual_seed(0)

    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(6, 300) for _ in range(40))
            self.weight, self.last = nn.Parameter(torch.randn(300, 300) / 20), nn.Linear(300, 3)

        def forward(self, x):
            return self.last(Mixed.apply(sum(part(x) for part in self.parts), self.weight))

    with pytest.raises(UnsupportedError, match="other records"):
        train(Many(), steps=1)


@pytest.mark.parametrize(
    "shape", [(), (5,), (1, 3), (9000,), (70, 200), (3, 40, 50), (1, 1, 5000), (200, 1, 5, 5), (0, 3)]
)
def test_folding_shows_every_number_that_differs(shape):
    torch.manual_seed(0)
    gradient = torch.randn(shape)
    other = gradient.clone()
    before = folded(gradient, 3)
    assert torch.equal(before, folded(gradient, 3))
    assert before.numel() <= max(4096, *shape[-1:], 0) * 2
    for place in torch.randperm(gradient.numel())[:20].tolist():
        other.view(-1)[place] += 1
        off = (folded(other, 3) - before).abs().max()
        assert 0.49 < float(off) < 1.51
        other.view(-1)[place] -= 1


def test_folding_takes_rows_that_are_looked_up_as_it_takes_the_whole_table():
    torch.manual_seed(0)
    table = torch.zeros(300, 40).index_add_(0, torch.randint(300, (50,)), torch.randn(50, 40))
    torch.testing.assert_close(folded(table.to_sparse(1), 5), folded(table, 5))


@pytest.mark.parametrize("write", [written, written_in_numpy], ids=["a parameter", "a buffer"])
def test_a_forward_pass_that_writes_records_past_torch_is_refused(write):
    with pytest.raises(UnsupportedError, match="released without noise"):
        train(Network(before=write))


LOOPS = {
    "their number": lambda network, x, y: scores(network, x, y) / len(x),
    "their number, one over it": lambda network, x, y: scores(network, x, y) * (1 / x.size(0)),
    "their number, in place": lambda network, x, y: scores(network, x, y).div_(len(x)),
    "their number in a tensor": lambda network, x, y: scores(network, x, y) / torch.tensor(float(len(x))),
    "a count": lambda network, x, y: scores(network, x, y) / max(1, (y == 1).sum().item()),
    "a share": lambda network, x, y: scores(network, x, y) * (len(y) / max(1, (y == 1).sum().item())),
    "one over a mean": lambda network, x, y: scores(network, x, y) * (1 / max(0.01, (y == 1).float().mean().item())),
}


@pytest.mark.parametrize("kind", LOOPS)
def test_a_loop_that_scales_losses_by_a_number_of_the_batch_is_refused_at_the_second(kind):
    with pytest.raises(UnsupportedError, match="other records"):
        train(Network(), LOOPS[kind])


class Ordinary(nn.Module):
    """Everything that must not be taken for mixing: dropout of all kinds, noise, memories that nothing comes of, counters."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(6, 8), nn.AlphaDropout(0.2), nn.Linear(8, 3)
        self.lstm = nn.LSTM(4, 4, 2, batch_first=True, dropout=0.3)
        self.attention = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True)
        self.norm = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
        self.seen, self.calls, self.aux = [], 0, None
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.calls += 1
        self.passes += 1
        self.seen.append(x)
        hidden = F.dropout(self.norm(self.drop(self.first(x).tanh())), 0.1, self.training)
        hidden = hidden.view(-1, 2, 4)
        hidden = self.attention(self.lstm(hidden)[0])
        attended = F.scaled_dot_product_attention(hidden, hidden, hidden, dropout_p=0.1 if self.training else 0.0)
        self.aux = attended.square().mean((1, 2))
        return self.last(attended.flatten(1))


def test_an_ordinary_network_is_not_refused_and_keeps_what_its_own_pass_left():
    torch.manual_seed(1)
    network = Ordinary()
    calls = []

    def loop(network, x, y):
        losses = scores(network, x, y)
        calls.append(float(losses.detach().mean()))
        assert network.aux.requires_grad
        assert len(network.aux) == len(x)
        return losses * 0.5 + 0.1 * network.aux / 1.1**network.calls

    assert train(network, loop).steps == network.calls == int(network.passes) == len(calls) == 8


def test_gradients_that_are_nothing_but_rounding_are_not_taken_for_mixing():
    """Softmax does not change with its keys' bias, so that its gradient is whatever rounding leaves."""

    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(3, 3) for _ in range(3))
            self.last = nn.Linear(6, 3)

        def forward(self, x):
            x = x.view(-1, 2, 3)
            weights = (self.query(x) @ self.key(x).transpose(1, 2)).softmax(2)
            return self.last((weights @ self.value(x)).flatten(1))

    torch.manual_seed(2)
    assert train(Attending()).steps == 8


def test_what_a_loop_made_in_numpy_is_followed_from_the_network_on():
    def loop(network, x, y):
        return scores(network, torch.tensor(x.numpy() * 2), y)

    assert train(Network(), loop).steps == 8
    with pytest.raises(UnsupportedError, match="other records"):
        train(Network(before=lambda _, x: x - x.mean(0)), loop)
