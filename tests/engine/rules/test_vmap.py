"""Layers without a rule are run by vmap: the same outputs, and the gradients of single-record autograd."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from noiseproof.engine import PerRecordGradients
from noiseproof.errors import SettingError, UnsupportedError


class Own(nn.Module):
    """A layer with a parameter of its own, a child, two outputs, and an argument that records share."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.randn(3)), nn.Linear(3, 3)

    def forward(self, inputs: torch.Tensor, shared: torch.Tensor, *, sign: float = 1.0) -> dict[str, torch.Tensor]:
        return {"scaled": self.inner(inputs * self.scale) + shared, "inner": sign * self.inner(self.scale) + inputs}


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.own, self.after = nn.Linear(4, 3), Own(), nn.Linear(3, 2)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found = self.own(self.before(inputs).tanh(), torch.arange(3, dtype=inputs.dtype), sign=-1.0)
        return self.after(found["scaled"] * found["inner"])


@pytest.mark.parametrize("vmapped", [(), ("own", "after"), ("",)])
def test_a_layer_with_parameters_of_its_own(agree, vmapped):
    torch.manual_seed(0)
    agree(Around(), torch.randn(5, 4), vmapped=vmapped)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv3d(2, 3, 2), (2, 3, 3, 3)),
        (nn.PReLU(3), (3, 4)),
        (parametrizations.weight_norm(nn.Linear(4, 3)), (4,)),
        (nn.Sequential(nn.Linear(4, 3), parametrizations.orthogonal(nn.Linear(3, 3))), (4,)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_layers_of_torch_without_a_rule(agree, layer, shape):
    torch.manual_seed(0)
    agree(layer, torch.randn(4, *shape))


def test_bilinear_layers_take_two_inputs(agree):
    torch.manual_seed(0)
    agree(nn.Bilinear(3, 2, 4), torch.randn(4, 3), torch.randn(4, 2))


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrences_inside_a_layer_without_a_rule(agree, layer):
    class Started(nn.Module):
        """A recurrent network with a first state that is learned."""

        def __init__(self):
            super().__init__()
            self.start = nn.Parameter(torch.randn(4, 1, 4))
            self.layer = layer(3, 4, num_layers=2, bidirectional=True, batch_first=True)

        def forward(self, inputs):
            start = self.start.expand(-1, len(inputs), -1).contiguous()
            return self.layer(inputs, (start, start.cos()) if layer is nn.LSTM else start)[0]

    torch.manual_seed(0)
    agree(Started(), torch.randn(3, 5, 3))


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells_inside_a_layer_without_a_rule(agree, cell):
    class Steps(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.scale = cell(3, 4), nn.Parameter(torch.ones(3))

        def forward(self, inputs):
            state = None
            for step in inputs.unbind(1):
                state = self.cell(step * self.scale, state)
            return torch.cat(state, dim=1) if isinstance(state, tuple) else state

    torch.manual_seed(0)
    agree(Steps(), torch.randn(3, 4, 3))


def test_dropout_differs_by_record_and_is_drawn_once():
    class Dropping(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(50))

        def forward(self, inputs):
            return nn.functional.dropout(inputs * self.scale, 0.5)

    module = Dropping()
    with PerRecordGradients(module) as engine:
        output = module(torch.ones(3, 50))
        gradients = engine.backward(output.sum(1)).materialise()[0]
    torch.testing.assert_close(gradients, output.detach())
    assert not torch.equal(output[0], output[1])


def test_a_parameter_that_is_one_number(agree):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.layer = nn.Parameter(torch.tensor(2.0)), nn.Linear(4, 3)

        def forward(self, inputs):
            return self.layer(self.scale * inputs)

    torch.manual_seed(0)
    agree(Scaled(), torch.randn(5, 4))


def test_what_vmap_cannot_run_is_refused():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, inputs):
            return inputs * self.scale if inputs.sum() > 0 else inputs

    module = nn.Sequential(nn.Linear(3, 3), Branching())
    with PerRecordGradients(module), pytest.raises(UnsupportedError, match=r"1 \(Branching\).*vmap"):
        module(torch.randn(2, 3))


def test_a_layer_without_any_tensor_of_records_is_refused():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.value = nn.Parameter(torch.ones(3))

        def forward(self):
            return self.value

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.constant = Constant()

        def forward(self, inputs):
            return inputs * self.constant()

    module = Network()
    with PerRecordGradients(module), pytest.raises(UnsupportedError, match=r"constant \(Constant\)"):
        module(torch.randn(2, 3))


def test_outputs_that_pool_records_are_refused():
    class Pooling(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, inputs):
            return (inputs * self.scale).sum(0)

    module = Pooling()
    with PerRecordGradients(module), pytest.raises(UnsupportedError, match="its own place"):
        module(torch.randn(2, 3))


def test_an_unknown_path_is_named():
    with pytest.raises(SettingError, match="'body'"):
        PerRecordGradients(nn.Linear(2, 2), vmapped=("body",))
