"""Layers that mix records are refused by name, with their replacement."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from noiseproof.engine import PerRecordGradients
from noiseproof.errors import UnsupportedError


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.BatchNorm1d(6), r"body\.1 \(BatchNorm1d\) .*GroupNorm\(2, 6\)"),
        (nn.BatchNorm2d(64), r"body\.1 \(BatchNorm2d\) .*GroupNorm\(32, 64\)"),
        (nn.BatchNorm3d(7, affine=False), r"\(BatchNorm3d\) .*GroupNorm\(1, 7\)"),
        (nn.SyncBatchNorm(8), r"\(SyncBatchNorm\) .*GroupNorm\(8, 8\)"),
        (nn.InstanceNorm2d(4, track_running_stats=True), r"\(InstanceNorm2d\) .*GroupNorm\(4, 4\)"),
        (nn.Embedding(4, 2, max_norm=1.0), "max_norm=None"),
        (nn.Embedding(4, 2, scale_grad_by_freq=True), "scale_grad_by_freq=False"),
        (nn.EmbeddingBag(4, 2, max_norm=1.0), "max_norm=None"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else "",
)
def test_layers_that_mix_records_are_refused(layer, message):
    module = nn.ModuleDict({"body": nn.Sequential(nn.Linear(3, 3), layer)})
    with pytest.raises(UnsupportedError, match=message):
        PerRecordGradients(module)


def test_layers_without_parameters_yet_are_refused():
    with pytest.raises(UnsupportedError, match="run one batch"):
        PerRecordGradients(nn.Sequential(nn.LazyLinear(3)))


def test_the_replacement_that_is_named_works(agree):
    torch.manual_seed(0)
    agree(nn.Sequential(nn.Conv1d(1, 6, 2), nn.GroupNorm(2, 6)), torch.randn(3, 1, 5))


def test_instance_norm_without_running_statistics_is_not_refused():
    PerRecordGradients(nn.Sequential(nn.Linear(2, 2), nn.InstanceNorm1d(3))).close()


# Records that are not kept apart are noticed on the first backward pass, and kept-apart ones raise no alarm.


def inputs(records: int = 6, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(records, 4, dtype=dtype, generator=torch.Generator().manual_seed(2))


class Centred(nn.Module):
    """A network that mixes records by subtracting their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        output = self.layer(given)
        return (output - output.mean(0)).sin()


@pytest.mark.parametrize("records", [2, 6, 3000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_code_that_mixes_records_is_noticed(records, dtype):
    module = Centred().to(dtype)
    with (
        PerRecordGradients(module) as engine,
        pytest.raises(UnsupportedError, match="mixes records around the layer layer"),
    ):
        engine.backward(module(inputs(records, dtype)).sum(1))


@pytest.mark.parametrize("length", [5, 4])
def test_records_in_another_dimension_are_followed_even_where_sizes_agree(agree, length):
    class TimeFirst(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent, self.readout = nn.LSTM(4, 4), nn.Linear(4, 2)

        def forward(self, given):
            return self.readout(self.recurrent(given.transpose(0, 1))[0]).sum(0)

    torch.manual_seed(0)
    agree(TimeFirst(), torch.randn(5, length, 4))


class TimeFirst(nn.Module):
    """Records in dimension 1, of sequences of any length."""

    def __init__(self, way=lambda hidden: hidden) -> None:
        super().__init__()
        self.recurrent, self.readout, self.way = nn.LSTM(4, 4, bidirectional=True), nn.Linear(8, 2), way

    def forward(self, given):
        return self.readout(self.way(self.recurrent(given)[0]))


@pytest.mark.parametrize("length", [5, 4, 3])
def test_records_are_followed_in_the_dimension_in_which_they_are_given(agree, length):
    torch.manual_seed(0)
    module, given = TimeFirst().double(), torch.randn(length, 4, 4, dtype=torch.float64)
    with PerRecordGradients(module) as engine:
        found = engine.backward(module(given).sin().sum((0, 2))).materialise()
    for record in range(4):
        loss = module(given[:, record : record + 1]).sin().sum()
        for own, expected in zip(found, torch.autograd.grad(loss, engine.parameters), strict=True):
            torch.testing.assert_close(own[record], expected)


SQUARE = {
    "the mean over records": (lambda hidden: hidden - hidden.detach().mean(1, keepdim=True), (0, 2)),
    "the record before": (lambda hidden: hidden + hidden.detach().roll(1, 1), (0, 2)),
    "the mean over records in front": (lambda hidden: hidden - hidden.detach().mean(0, keepdim=True), (1, 2)),
    "nothing, but losses are of moments": (lambda hidden: hidden, (1, 2)),
    "what has the moments as records": (
        lambda hidden: hidden + hidden.detach().mean(1, keepdim=True).transpose(0, 1),
        (0, 2),
    ),
}


@pytest.mark.parametrize("kind", SQUARE)
def test_what_mixes_them_is_refused_where_sequences_are_as_long_as_there_are_records(kind):
    torch.manual_seed(0)
    way, summed = SQUARE[kind]
    module = TimeFirst(way)
    with PerRecordGradients(module) as engine, pytest.raises(UnsupportedError, match=r"other records|mixes"):
        engine.backward(module(torch.randn(4, 4, 4)).sin().sum(summed))


def test_packed_sequences_of_one_step_each_are_not_taken_for_mixing():
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.recurrent = nn.GRU(3, 2, batch_first=True)

        def forward(self, given):
            return nn.utils.rnn.pad_packed_sequence(self.recurrent(given)[0], batch_first=True)[0]

    torch.manual_seed(0)
    rows = torch.randn(3, 1, 3)
    # An order that is not the one they have, and that is undone in the end.
    order = torch.tensor([2, 0, 1])
    given = nn.utils.rnn.PackedSequence(rows[order, 0], torch.tensor([3]), order, order.argsort())
    module = Packed()
    with PerRecordGradients(module) as engine:
        found = engine.backward(module(given).sin().sum((1, 2))).materialise()
    for record in range(3):
        one = nn.utils.rnn.pack_sequence([rows[record]])
        for own, expected in zip(found, torch.autograd.grad(module(one).sin().sum(), engine.parameters), strict=True):
            torch.testing.assert_close(own[record], expected)


def test_bags_of_one_token_each_are_not_taken_for_mixing():
    module = nn.EmbeddingBag(9, 3).double()
    tokens = torch.tensor([4, 2, 8, 2])
    for _ in range(5):  # which records stay is drawn
        with PerRecordGradients(module) as engine:
            (found,) = engine.backward(module(tokens, torch.arange(4)).sum(1)).materialise()
    assert torch.equal(found.sum(2), 3 * F.one_hot(tokens, 9).double())


def test_a_network_that_has_learned_everything_raises_no_false_alarm():
    module = nn.Linear(4, 3)
    with torch.no_grad():
        module.weight *= 1e3
    given = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    with PerRecordGradients(module) as engine:
        output = module(given)
        batch = engine.backward(F.cross_entropy(output, output.argmax(1), reduction="none"))
    assert batch.squared_norms().isfinite().all()


def test_a_first_batch_of_one_record_leaves_the_test_to_the_next():
    module = Centred().double()
    with PerRecordGradients(module) as engine:
        engine.backward(module(inputs(1)).sum(1))
        with pytest.raises(UnsupportedError, match="mixes records"):
            engine.backward(module(inputs()).sum(1))


def test_networks_of_every_kind_of_layer_raise_no_false_alarm():
    class Everything(nn.Module):
        def __init__(self):
            super().__init__()
            self.images = nn.Sequential(
                nn.Conv2d(1, 8, 5, padding="same"), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.5)
            )
            self.recurrent = nn.LSTM(8 * 14, 16, batch_first=True)
            self.attention = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
            self.scores = nn.Linear(16, 10)

        def forward(self, images):
            rows = self.images(images).transpose(1, 2).flatten(2)
            return self.scores(self.attention(self.recurrent(rows)[0]).mean(1))

    torch.manual_seed(0)
    module = Everything()
    labels = torch.randint(10, (64,))
    with PerRecordGradients(module) as engine:
        batch = engine.backward(F.cross_entropy(module(torch.randn(64, 1, 28, 28)), labels, reduction="none"))
    assert batch.squared_norms("tensor").gt(0).all()
