"""Records are followed wherever they lie, and parameters wherever they are used; what mixes records is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from noiseproof.engine import PerRecordGradients, PrivateGradients
from noiseproof.errors import UnsupportedError


def of(function, **parts):
    """A network of `parts` that computes `function(network, *inputs)`."""

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            for name, part in parts.items():
                setattr(self, name, part)

        def forward(self, *inputs):
            return function(self, *inputs)

    return Network()


def weight(*shape):
    return nn.Parameter(torch.randn(shape))


class Doubled(torch.autograd.Function):
    """An operation that torch knows nothing of."""

    @staticmethod
    def forward(ctx, values, scale):
        ctx.save_for_backward(values, scale)
        return values * scale

    @staticmethod
    def backward(ctx, errors):
        values, scale = ctx.saved_tensors
        return errors * scale, (errors * values).sum(tuple(range(errors.dim() - 1)))


def windows(values):
    """(B, 4, 4, D) in windows of 2 x 2, records and windows in one dimension."""
    return values.view(len(values), 2, 2, 2, 2, -1).permute(0, 1, 3, 2, 4, 5).reshape(len(values) * 4, 4, -1)


def written(values, scale):
    """Written piece by piece into a tensor of zeros."""
    total = torch.zeros_like(values)
    for place in range(values.shape[1]):
        total[:, place] = values[:, place] * scale
    return total


def tokens(*shape):
    return torch.randn(*shape)


NETWORKS = {
    "a position embedding without a record dimension": lambda: (
        of(lambda m, x: m.read(x + m.table(torch.arange(5))), read=nn.Linear(4, 3), table=nn.Embedding(9, 4)),
        tokens(4, 5, 4),
    ),
    "a position embedding as long as the batch": lambda: (
        of(lambda m, x: m.read(x + m.table(torch.arange(5))), read=nn.Linear(4, 3), table=nn.Embedding(9, 4)),
        tokens(5, 5, 4),
    ),
    "a class token": lambda: (
        of(
            lambda m, x: m.read(torch.cat([m.token.expand(len(x), -1, -1), x], 1) + m.places),
            read=nn.Linear(4, 3),
            token=weight(1, 1, 4),
            places=weight(1, 6, 4),
        ),
        tokens(3, 5, 4),
    ),
    "scales and shifts that are raw parameters": lambda: (
        of(lambda m, x: (x * m.scale + m.shift) * m.number, scale=weight(4), shift=weight(5, 1), number=weight()),
        tokens(3, 5, 4),
    ),
    "a list of parameters": lambda: (
        of(lambda m, x: (x @ m.own[0]).tanh() @ m.own[1], own=nn.ParameterList([weight(4, 3), weight(3, 2)])),
        tokens(3, 5, 4),
    ),
    "records folded into positions": lambda: (
        of(lambda m, x: m.layer(x.reshape(-1, 4)).tanh().view(len(x), -1), layer=nn.Linear(4, 3)),
        tokens(3, 5, 4),
    ),
    "positions folded into records": lambda: (
        of(lambda m, x: m.layer(x.transpose(0, 1).reshape(-1, 4)).tanh().view(5, -1, 3).sum(0), layer=nn.Linear(4, 3)),
        tokens(3, 5, 4),
    ),
    "pictures of one record in a row": lambda: (
        of(lambda m, x: m.layer(x.flatten(0, 1)).tanh().unflatten(0, (len(x), 5)), layer=nn.Conv2d(2, 3, 2, stride=2)),
        tokens(3, 5, 2, 4, 4),
    ),
    "pictures of one time in a row": lambda: (
        of(
            lambda m, x: m.layer(x.transpose(0, 1).flatten(0, 1)).tanh().unflatten(0, (5, len(x))).sum(0),
            layer=nn.Conv1d(2, 3, 2, bias=False),
        ),
        tokens(3, 5, 2, 4),
    ),
    "windows with biases of relative places": lambda: (
        of(
            lambda m, x: (
                (m.layer(windows(x)) + m.table[torch.tensor([2, 0, 1, 2])].unsqueeze(0)).tanh().view(len(x), -1)
            ),
            layer=nn.Linear(3, 3),
            table=weight(3, 3),
        ),
        tokens(3, 4, 4, 3),
    ),
    "a raw table that words are looked up in by index": lambda: (
        of(lambda m, x: m.read(m.table[x] + m.table[x - 7]), table=weight(7, 4), read=nn.Linear(4, 3)),
        torch.randint(7, (4, 5)),
    ),
    "a raw table that folded words are selected from": lambda: (
        of(lambda m, x: m.table.index_select(0, x.reshape(-1)).view(len(x), -1).tanh(), table=weight(7, 4)),
        torch.randint(7, (4, 5)),
    ),
    "positions that every record brings along, of a part of a table": lambda: (
        of(
            lambda m, x: m.read(x + m.table[2:][torch.arange(5).repeat(len(x), 1)]),
            table=weight(9, 4),
            read=nn.Linear(4, 3),
        ),
        tokens(3, 5, 4),
    ),
    "a raw table looked up by two indices": lambda: (
        of(lambda m, x: m.read(m.table[x, x.flip(1)]), table=weight(7, 7, 4), read=nn.Linear(4, 3)),
        torch.randint(7, (4, 5)),
    ),
    "an expert that nobody chose": lambda: (
        of(
            lambda m, x: m.layer(x).index_add(
                0,
                (none := (x[:, 0, 0] > 99).nonzero().squeeze(1)),
                m.expert(m.layer(x)[none].reshape(-1, 3)).view(-1, 5, 3),
            ),
            layer=nn.Linear(4, 3),
            expert=nn.Linear(3, 3),
        ),
        tokens(3, 5, 4),
    ),
    "a table whose rows are also the head": lambda: (
        of(
            lambda m, x: F.linear(m.body(m.table(x)).tanh(), m.table.weight),
            table=nn.Embedding(7, 4),
            body=nn.Linear(4, 4),
        ),
        torch.randint(7, (4, 5)),
    ),
    "an adapter of low rank beside an embedding": lambda: (
        of(
            lambda m, x: m.read(F.embedding(x, m.table.weight) + F.embedding(x, m.down.T) @ m.up.T),
            table=nn.Embedding(7, 4),
            read=nn.Linear(4, 2),
            down=weight(2, 7),
            up=weight(4, 2),
        ),
        torch.randint(7, (4, 5)),
    ),
    "a weight that is made of others": lambda: (
        of(
            lambda m, x: F.linear(x, m.base + m.up @ m.down) * (m.size / (m.base + m.up @ m.down).norm(dim=1)),
            base=weight(3, 4),
            up=weight(3, 2),
            down=weight(2, 4),
            size=weight(3),
        ),
        tokens(4, 5, 4),
    ),
    "spectral norm": lambda: (
        nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 3)).eval(), nn.Tanh(), nn.Linear(3, 2)),
        tokens(4, 4),
    ),
    "weight norm": lambda: (parametrizations.weight_norm(nn.Conv1d(2, 3, 2)), tokens(4, 2, 5)),
    "an orthogonal weight": lambda: (parametrizations.orthogonal(nn.Linear(3, 3)), tokens(4, 3)),
    "frozen batch norm": lambda: (
        nn.Sequential(nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(27, 2), nn.BatchNorm1d(2)).eval(),
        tokens(4, 2, 4, 4),
    ),
    "three dimensions": lambda: (nn.Conv3d(2, 4, 2, groups=2), tokens(4, 2, 3, 3, 3)),
    "three dimensions, transposed": lambda: (nn.ConvTranspose3d(2, 3, 2, stride=2), tokens(4, 2, 2, 2, 2)),
    "slopes of its own": lambda: (nn.Sequential(nn.Linear(4, 3), nn.PReLU(3)), tokens(4, 4)),
    "two inputs": lambda: (nn.Bilinear(3, 2, 4), tokens(4, 3), tokens(4, 2)),
    "matrices side by side": lambda: (
        of(lambda m, x: torch.einsum("bhd,hde->bhe", x, m.each), each=weight(3, 4, 2)),
        tokens(5, 3, 4),
    ),
    "heads by einsum": lambda: (
        of(lambda m, x: torch.einsum("btd,dhe->bhte", x, m.each), each=weight(4, 2, 3)),
        tokens(3, 5, 4),
    ),
    "rows that each record picks": lambda: (
        of(
            lambda m, x: m.layer(x.flatten(0, 1)[x.flatten(0, 1)[:, 0] > -9][::2]).view(len(x), -1),
            layer=nn.Linear(4, 3),
        ),
        tokens(3, 4, 4),
    ),
    "experts": lambda: (
        of(
            lambda m, x: _experts(m, x),
            gate=nn.Linear(4, 3),
            experts=nn.ModuleList([nn.Linear(4, 4) for _ in range(3)]),
        ),
        tokens(4, 5, 4),
    ),
    "an operation of the user's own": lambda: (
        of(
            lambda m, x: m.above(Doubled.apply(m.below(x).tanh(), m.scale)),
            below=nn.Linear(4, 3),
            above=nn.Linear(3, 2),
            scale=weight(3),
        ),
        tokens(4, 5, 4),
    ),
    "writing piece by piece": lambda: (
        of(
            lambda m, x: m.above(written(m.below(x), m.scale)),
            below=nn.Linear(4, 3),
            above=nn.Linear(3, 2),
            scale=weight(3),
        ),
        tokens(4, 5, 4),
    ),
    "losses stacked one by one": lambda: (
        of(lambda m, x: torch.stack([m.layer(row).tanh() for row in x]), layer=nn.Linear(4, 3)),
        tokens(4, 4),
    ),
    "a state that is learned": lambda: (
        of(
            lambda m, x: m.layer(
                x, (m.start.expand(-1, len(x), -1).contiguous(), m.start.expand(-1, len(x), -1).cos())
            )[0],
            layer=nn.LSTM(3, 4, batch_first=True),
            start=weight(1, 1, 4),
        ),
        tokens(3, 5, 3),
    ),
    "instance norm": lambda: (nn.Sequential(nn.Conv1d(2, 3, 2), nn.InstanceNorm1d(3, affine=True)), tokens(4, 2, 6)),
    "rolled, flipped and repeated": lambda: (
        of(
            lambda m, x: m.layer(x.roll(1, 1).flip(2)) * m.scale.repeat(5, 1), layer=nn.Linear(4, 3), scale=weight(1, 3)
        ),
        tokens(3, 5, 4),
    ),
}


def _experts(module, values):
    """A mixture: every token goes to the two experts that its gate prefers."""
    flat = values.reshape(-1, values.shape[-1])
    shares, chosen = module.gate(flat).softmax(-1).topk(2, dim=-1)
    total = torch.zeros_like(flat)
    for number, expert in enumerate(module.experts):
        rows, which = torch.where(chosen == number)
        total = total.index_add(0, rows, expert(flat[rows]).tanh() * shares[rows, which].unsqueeze(1))
    return total.view_as(values)


@pytest.mark.parametrize("kind", NETWORKS)
def test_gradients_are_those_of_single_records(agree, kind):
    torch.manual_seed(0)
    agree(*NETWORKS[kind]())


@pytest.mark.parametrize("records", [5, 4, 6, 1])
def test_a_shared_table_is_shared_even_if_it_has_as_many_rows_as_there_are_records(agree, records):
    torch.manual_seed(0)
    module = of(lambda m, x: m.below(x) * m.scale * m.table, below=nn.Linear(3, 3), scale=weight(3), table=weight(5, 3))
    agree(module, torch.randn(records, 5, 3))


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("with_last", [False, True])
@pytest.mark.parametrize("kind", [torch.int32, torch.int64])
def test_bags_with_offsets(mode, padding, dtype, with_last, kind):
    torch.manual_seed(0)
    table = nn.EmbeddingBag(9, 3, mode=mode, padding_idx=padding, include_last_offset=with_last, dtype=dtype)
    words, starts = torch.randint(9, (11,)).to(kind), [0, 4, 5, 9]
    offsets = torch.tensor([*starts, 11] if with_last else starts).to(kind)
    with PerRecordGradients(table) as engine:
        gradients = engine.backward(table(words, offsets).sin().sum(1), check=True)
        found, norms = gradients.materialise()[0], gradients.squared_norms()
        assert engine._routes._known, "the same way next time"
    for record, (start, stop) in enumerate([(0, 4), (4, 5), (5, 9), (9, 11)]):
        expected = torch.autograd.grad(table(words[start:stop].unsqueeze(0)).sin().sum(), table.weight)[0]
        torch.testing.assert_close(found[record], expected)
        torch.testing.assert_close(norms[record], expected.square().sum())


def test_bags_with_weights_of_their_own(agree):
    torch.manual_seed(0)
    bags = of(
        lambda m, x, w: m.table(x, per_sample_weights=m.share * w),
        table=nn.EmbeddingBag(9, 3, mode="sum"),
        share=weight(4),
    )
    agree(bags, torch.randint(9, (5, 4)), torch.rand(5, 4))


def test_an_adaptive_softmax():
    torch.manual_seed(0)
    head = nn.AdaptiveLogSoftmaxWithLoss(6, 20, [4, 9], div_value=2.0).double()
    body = nn.Linear(5, 6).double()
    network = nn.ModuleList([body, head])
    given, labels = torch.randn(8, 5, dtype=torch.float64), torch.tensor([0, 3, 4, 8, 9, 15, 19, 5])
    with PerRecordGradients(network) as engine:
        found = engine.backward(-head(body(given), labels).output, check=True).materialise()
    for record in range(8):
        own = slice(record, record + 1)
        expected = torch.autograd.grad(
            -head(body(given[own]), labels[own]).output.sum(), engine.parameters, allow_unused=True
        )
        for rows, gradient in zip(found, expected, strict=True):
            torch.testing.assert_close(rows[record], torch.zeros_like(rows[record]) if gradient is None else gradient)


def test_dropout_differs_by_record_and_is_drawn_once():
    module = of(lambda m, x: F.dropout(x * m.scale, 0.5), scale=nn.Parameter(torch.ones(50)))
    with PerRecordGradients(module) as engine:
        output = module(torch.ones(3, 50))
        gradients = engine.backward(output.sum(1)).materialise()[0]
    torch.testing.assert_close(gradients, output.detach())
    assert not torch.equal(output[0], output[1])


MIXING = {
    "the mean of the batch": lambda m, x: m.layer(x) - m.layer(x).mean(0),
    "the mean of the batch alone": lambda m, x: x + m.layer(x).mean(0),
    "a softmax over records": lambda m, x: m.layer(x).softmax(0),
    "a cumulated sum over records": lambda m, x: m.layer(x).cumsum(0),
    "batch norm": lambda m, x: F.batch_norm(m.layer(x), None, None, training=True),
    "attention among records": lambda m, x: (m.layer(x) @ m.layer(x).T) @ x,
    "sorted records": lambda m, x: m.layer(x).sort(0).values,
    "turned records": lambda m, x: m.layer(x) + m.layer(x).flip(0),
}


@pytest.mark.parametrize("kind", MIXING)
def test_operations_that_mix_records_are_refused(kind):
    torch.manual_seed(0)
    module = of(MIXING[kind], layer=nn.Linear(4, 4))
    engine = PrivateGradients(module, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=1.0)
    batches = engine.batches(torch.randn(6, 4), steps=1)
    (given,) = next(batches)
    with pytest.raises(UnsupportedError, match=r"mixes records|other records"):
        engine.backward(module(given).sin().sum(1))


@pytest.mark.parametrize("kind", MIXING)
def test_so_they_are_by_gradients_that_know_no_batches(kind):
    torch.manual_seed(0)
    module = of(MIXING[kind], layer=nn.Linear(4, 4))
    with PerRecordGradients(module) as engine:
        for _ in range(2):  # a refusal is no permission for the next batch
            with pytest.raises(UnsupportedError, match=r"mixes records|other records"):
                engine.backward(module(torch.randn(6, 4)).sin().sum(1))


def test_an_operation_of_the_users_own_that_mixes_records_is_refused():
    class Centred(torch.autograd.Function):
        @staticmethod
        def forward(ctx, values):
            return values - values.mean(0)

        @staticmethod
        def backward(ctx, errors):
            return errors - errors.mean(0)

    module = of(lambda m, x: Centred.apply(m.layer(x)).sin(), layer=nn.Linear(4, 4))
    engine = PrivateGradients(module, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=1.0)
    batches = engine.batches(torch.randn(6, 4), steps=1)
    (given,) = next(batches)
    with pytest.raises(UnsupportedError, match=r"mixes records|other records"):
        engine.backward(module(given).sum(1))


def test_batch_norm_that_is_trained_after_all_is_refused():
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).eval()
    with PerRecordGradients(module) as engine:
        engine.backward(module(torch.randn(5, 4)).sum(1))
        module.train()
        with pytest.raises(UnsupportedError, match="BatchNorm1d"):
            engine.backward(module(torch.randn(5, 4)).sum(1))


@pytest.mark.parametrize("engines", [0, 1])
@pytest.mark.parametrize("layer", [nn.Linear(4, 3), nn.LSTM(4, 3, batch_first=True)], ids=["linear", "recurrent"])
def test_two_engines_on_one_network_are_each_right(layer, engines):
    torch.manual_seed(0)
    given = torch.randn(6, 2, 4)

    def losses():
        output = layer(given)
        return (output[0] if isinstance(output, tuple) else output).sin().sum((1, 2))

    with PerRecordGradients(layer) as alone:
        expected = alone.backward(losses()).materialise()
    with PerRecordGradients(layer) as first, PerRecordGradients(layer) as second:
        found = (first, second)[engines].backward(losses()).materialise()
    for left, right in zip(found, expected, strict=True):
        torch.testing.assert_close(left, right)
