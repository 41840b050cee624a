"""Networks in which parameters are used in unusual ways: every record's gradient is autograd's, in checked passes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from noiseproof.engine import PerRecordGradients
from noiseproof.errors import UnsupportedError

RECORDS = 6


class TwoPaths(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.linear = nn.Parameter(torch.randn(4, 4)), nn.Linear(4, 4)

    def forward(self, x):
        return (F.linear(x, self.weight).tanh() @ self.weight.T + self.linear(x) * self.weight.sum()).sin()


class TiedAndScaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.scale, self.linear = nn.Embedding(9, 4), nn.Parameter(torch.tensor(0.7)), nn.Linear(4, 4)

    def forward(self, x):
        return F.linear(self.linear(self.embedding(x).mean(1)).tanh(), self.embedding.weight * self.scale)


class NestedCheckpoints(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        def inner(y):
            return checkpoint(lambda z: self.second(z).tanh(), y, use_reentrant=False)

        return self.last(checkpoint(lambda y: inner(self.first(y).sin()), x, use_reentrant=False))


class EinsumAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Parameter(torch.randn(2, 4, 3)) for _ in range(3))
        self.out = nn.Parameter(torch.randn(2, 3, 4))

    def forward(self, x):
        q, k, v = (torch.einsum("btd,hde->bhte", x, weight) for weight in (self.q, self.k, self.v))
        weights = torch.einsum("bhte,bhse->bhts", q, k).softmax(-1)
        return torch.einsum("bhts,bhse,hed->btd", weights, v, self.out)


class Hypernetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.code, self.maker, self.last = nn.Parameter(torch.randn(3)), nn.Linear(3, 16), nn.Linear(4, 2)

    def forward(self, x):
        return self.last((x @ self.maker(self.code).view(4, 4)).tanh())


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.last = nn.Linear(4, 2), nn.Linear(4, 2)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x):
        gates = self.router(x).softmax(1)
        total = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            chosen = (gates.argmax(1) == number).nonzero().squeeze(1)
            total = total.index_add(0, chosen, expert(x[chosen]) * gates[chosen, number : number + 1])
        return self.last(total)


class Repeated(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.last = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x):
        for _ in range(3):
            x = x + self.norm(self.linear(x)).tanh()
        return self.last(x)


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        hidden = self.first(x) * 1
        hidden[:, 0] = hidden[:, 1] * 2
        return self.last(hidden.add_(1).relu_())


class AsComplex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 2))

    def forward(self, x):
        return (x.to(torch.cdouble) @ torch.view_as_complex(self.weight)).abs()


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, dtype=torch.cdouble))

    def forward(self, x):
        return (x.to(torch.cdouble) @ self.weight).abs()


def partly_frozen():
    network = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    network[0].requires_grad_(False)
    network[2].weight.requires_grad_(False)
    return network


VECTORS, SEQUENCES, PICTURES = (4,), (5, 4), (2, 7)
CASES = {
    "two paths": (TwoPaths, VECTORS),
    "tied and scaled": (TiedAndScaled, None),
    "nested checkpoints": (NestedCheckpoints, VECTORS),
    "einsum attention": (EinsumAttention, SEQUENCES),
    "hypernetwork": (Hypernetwork, VECTORS),
    "experts": (Experts, VECTORS),
    "one layer three times": (Repeated, VECTORS),
    "in place": (InPlace, VECTORS),
    "partly frozen": (partly_frozen, VECTORS),
    "weight norm": (
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Conv1d(2, 3, 3)), nn.Flatten(), nn.Linear(15, 2)),
        PICTURES,
    ),
    "orthogonal": (lambda: nn.Sequential(parametrizations.orthogonal(nn.Linear(4, 4)), nn.Linear(4, 2)), VECTORS),
    "sparse embedding": (
        lambda: nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.Linear(12, 2)),
        None,
    ),
    "view as complex": (AsComplex, VECTORS),
}


def losses_of(outputs):
    flat = outputs.flatten(1)
    return (flat.sin() * torch.linspace(0.5, 1.5, flat.shape[1], dtype=flat.dtype)).sum(1)


@pytest.mark.parametrize("name", CASES)
def test_every_records_gradient_is_the_one_that_autograd_gives_for_its_loss_alone(name):
    torch.manual_seed(0)
    make, shape = CASES[name]
    network = make().double()
    x = torch.randint(9, (RECORDS, 3)) if shape is None else torch.randn(RECORDS, *shape, dtype=torch.float64)
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    alone = [
        torch.autograd.grad(losses_of(network(x[i : i + 1])).sum(), parameters, materialize_grads=True)
        for i in range(RECORDS)
    ]
    with PerRecordGradients(network) as engine:
        for _ in range(2):
            found = engine.backward(losses_of(network(x)), check=True).materialise()
            for index, gradients in enumerate(found):
                expected = torch.stack([own[index].to_dense() for own in alone])
                torch.testing.assert_close(gradients, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()))


def test_complex_parameters_are_refused_with_what_to_do():
    with pytest.raises(UnsupportedError, match="view_as_complex"):
        PerRecordGradients(Complex())
