"""LSTM, GRU and RNN have full per-record gradients through time, whatever their layers, directions and layout."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from noiseproof.engine import PerRecordGradients


class Everything(nn.Module):
    """All that a recurrent layer returns, one row a record, from records-first inputs and optional first states."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, inputs: torch.Tensor, *states: torch.Tensor) -> torch.Tensor:
        if not self.layer.batch_first:
            inputs = inputs.transpose(0, 1)
        first = [state.transpose(0, 1).contiguous() for state in states]
        outputs, last = self.layer(inputs, *([tuple(first)] if len(first) == 2 else first))
        outputs = outputs if self.layer.batch_first else outputs.transpose(0, 1)
        last = last if isinstance(last, tuple) else (last,)
        return torch.cat([outputs.flatten(1), *(state.transpose(0, 1).flatten(1) for state in last)], dim=1)


LAYERS = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "tanh": nn.RNN,
    "relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}


@given(
    kind=st.sampled_from(sorted(LAYERS)),
    records=st.integers(1, 4),
    steps=st.integers(1, 5),
    features=st.integers(1, 3),
    width=st.integers(1, 4),
    layers=st.integers(1, 2),
    bias=st.booleans(),
    bidirectional=st.booleans(),
    batch_first=st.booleans(),
    given_states=st.booleans(),
    double=st.booleans(),
)
@settings(deadline=None, derandomize=True, max_examples=80)
def test_gradients_are_those_of_single_records(
    agree, kind, records, steps, features, width, layers, bias, bidirectional, batch_first, given_states, double
):
    torch.manual_seed(steps)
    layer = LAYERS[kind](
        features, width, num_layers=layers, bias=bias, bidirectional=bidirectional, batch_first=batch_first
    )
    shape = (records, layers * (2 if bidirectional else 1), width)
    states = [torch.randn(shape) for _ in range(2 if kind == "lstm" else 1)] if given_states else []
    dtype = torch.float64 if double else torch.float32
    agree(Everything(layer), torch.randn(records, steps, features), *states, dtype=dtype)


def test_errors_that_come_through_the_last_states_alone(agree):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.below, self.layer = nn.Linear(3, 3), nn.LSTM(3, 4, batch_first=True)

        def forward(self, inputs):
            return self.layer(self.below(inputs))[1][1][0]

    torch.manual_seed(0)
    agree(Last(), torch.randn(4, 5, 3))


def test_first_states_that_are_computed_get_gradients(agree):
    class Started(nn.Module):
        def __init__(self):
            super().__init__()
            self.start, self.layer = nn.Linear(3, 4), nn.GRU(3, 4, batch_first=True)

        def forward(self, inputs):
            return self.layer(inputs, self.start(inputs[:, 0]).unsqueeze(0))[0]

    torch.manual_seed(0)
    agree(Started(), torch.randn(4, 5, 3))


@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh"])
def test_cells_used_at_every_step_add_up(agree, kind):
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "tanh": nn.RNNCell}[kind](3, 4)

        def forward(self, inputs):
            state = None
            for step in inputs.unbind(1):
                state = self.cell(step, state)
            return torch.cat(state, dim=1) if isinstance(state, tuple) else state

    torch.manual_seed(0)
    agree(Steps(), torch.randn(4, 3, 3))


def test_dropout_between_layers_is_drawn_once():
    torch.manual_seed(0)
    module = Everything(nn.LSTM(3, 4, num_layers=2, dropout=0.5, batch_first=True)).double()
    inputs = torch.randn(3, 5, 3, dtype=torch.float64)
    with PerRecordGradients(module) as engine:
        torch.manual_seed(1)
        found = engine.backward(module(inputs).sum(1)).weighted_sum(torch.ones(3, dtype=torch.float64))
        # An ordinary backward pass through the watched network, with the same mask.
        torch.manual_seed(1)
        module(inputs).sum().backward()
    for gradient, parameter in zip(found, module.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


@pytest.mark.parametrize("kind", sorted(LAYERS))
def test_an_ordinary_backward_pass_through_a_watched_layer_is_torchs(kind):
    torch.manual_seed(0)
    module = Everything(LAYERS[kind](3, 4, num_layers=2, bidirectional=True)).double()
    inputs = torch.randn(3, 5, 3, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad(module(inputs).sin().sum(), [inputs, *module.parameters()])
    with PerRecordGradients(module):
        found = torch.autograd.grad(module(inputs).sin().sum(), [inputs, *module.parameters()])
    for ours, torchs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, torchs)


def test_a_layer_with_a_projection_is_followed_through_torchs_own_steps(agree):
    torch.manual_seed(0)
    for batch_first in (True, False):
        agree(Everything(nn.LSTM(3, 4, proj_size=2, batch_first=batch_first)), torch.randn(4, 5, 3))


@pytest.mark.parametrize("sorted_already", [True, False])
@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequences(agree, layer, sorted_already):
    class Packed(nn.Module):
        def __init__(self):
            super().__init__()
            self.below, self.layer = nn.Linear(3, 3), layer(3, 4, num_layers=2, bidirectional=True, batch_first=True)

        def forward(self, given, lengths):
            packed = pack_padded_sequence(self.below(given), lengths, batch_first=True, enforce_sorted=False)
            output, states = self.layer(packed)
            output, _ = pad_packed_sequence(output, batch_first=True, total_length=given.shape[1])
            last = states[0] if isinstance(states, tuple) else states
            return torch.cat([output.flatten(1), last.transpose(0, 1).flatten(1)], dim=1)

    torch.manual_seed(0)
    lengths = torch.tensor([5, 4, 4, 1] if sorted_already else [4, 1, 5, 4])
    agree(Packed(), torch.randn(4, 5, 3), lengths)


def test_a_failing_forward_pass_leaves_torch_as_it_was():
    module = nn.LSTM(3, 4)
    with PerRecordGradients(module) as engine:
        with pytest.raises(RuntimeError):
            module(torch.randn(5, 2, 7))
        with engine.paused():
            output = module(torch.randn(5, 2, 3))[0]
    assert "Recurrence" not in type(output.grad_fn).__name__
