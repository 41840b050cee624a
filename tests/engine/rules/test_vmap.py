"""Layers without a rule are run by vmap: the same outputs, and the gradients of single-record autograd."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from noiseproof.engine import PerRecordGradients, PrivateGradients
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


class Turned(nn.Module):
    """Multiplies tokens by a table that records share, as rotary embeddings do."""

    def __init__(self, *, dropping: bool = False) -> None:
        super().__init__()
        self.scale, self.dropping = nn.Parameter(torch.randn(3)), dropping

    def forward(self, tokens: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        turned = tokens * self.scale * table
        return nn.functional.dropout(turned, 0.5, self.training) if self.dropping else turned


class Sequences(nn.Module):
    def __init__(self, *, dropping: bool = False) -> None:
        super().__init__()
        self.turned = Turned(dropping=dropping)
        self.register_buffer("table", torch.randn(5, 3))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.turned(tokens, self.table)


@pytest.mark.parametrize("records", [5, 4, 6, 1])
def test_a_shared_table_is_shared_even_if_it_has_as_many_rows_as_there_are_records(agree, records):
    torch.manual_seed(0)
    agree(Sequences(), torch.randn(records, 5, 3))


@pytest.mark.parametrize("order", [(5, 4), (4, 5), (1, 5)])
def test_dropout_does_not_hide_what_is_shared(order):
    torch.manual_seed(0)
    module = Sequences(dropping=True)
    with PerRecordGradients(module) as engine:
        for records in order:
            tokens = torch.randn(records, 5, 3)
            output = module(tokens)
            whole = tokens * module.turned.scale * module.table * 2
            assert bool(((output == 0) | ((output - whole).abs() < 1e-5)).all())
            engine.backward(output.sum((1, 2)))


def test_a_layer_that_mixes_records_in_a_second_argument_is_refused():
    class Leaning(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

        def forward(self, inputs, others):
            return inputs * self.scale + others.mean(0)

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.leaning = Leaning()

        def forward(self, inputs):
            return self.leaning(inputs, inputs * 2)

    module = Network()
    private = PrivateGradients(module, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=1.0)
    batches = private.batches(torch.randn(4, 3), steps=1)
    (inputs,) = next(batches)
    with pytest.raises(UnsupportedError, match="other records"):
        private.backward(module(inputs).sum(1))


class Borrowing(nn.Module):
    """A layer that uses the parameters of modules it is given, as peft's DoRA does."""

    def __init__(self) -> None:
        super().__init__()
        self.magnitude = nn.Parameter(torch.ones(3))

    def forward(self, inputs: torch.Tensor, *, lender: nn.Module) -> torch.Tensor:
        return self.magnitude * nn.functional.linear(inputs, lender.weight)


class Lending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lender, self.borrowing = nn.Linear(4, 3, bias=False), Borrowing()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.lender(inputs) + self.borrowing(inputs, lender=self.lender)


def test_a_parameter_used_inside_a_layer_that_does_not_own_it_is_refused():
    module = Lending()
    with PerRecordGradients(module) as engine, pytest.raises(UnsupportedError, match=r"lender\.weight .*vmapped"):
        engine.backward(module(torch.randn(5, 4)).sum(1))


def test_the_advice_to_run_the_user_of_a_parameter_by_vmap_can_be_followed(agree):
    torch.manual_seed(0)
    agree(Lending(), torch.randn(5, 4), vmapped=("",))
    module = Lending()
    private = PrivateGradients(module, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=1.0, vmapped=("",))
    for (inputs,) in private.batches(torch.randn(5, 4), steps=1):
        assert private.backward(module(inputs).sum(1))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))

    def forward(self, inputs):
        return self.layer(inputs)


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(4, 3, batch_first=True)

    def forward(self, inputs):
        return self.layer(inputs.unsqueeze(1))[0][:, 0]


class Slopes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(4, 3), nn.PReLU(3))

    def forward(self, inputs):
        return self.layer(inputs)


@pytest.mark.parametrize("build", [Plain, Reads, Slopes])
@pytest.mark.parametrize("which", [0, 1])
def test_two_engines_on_one_network_are_each_right_or_refused(build, which):
    torch.manual_seed(0)
    module, inputs = build(), torch.randn(6, 4)
    with PerRecordGradients(module) as alone:
        expected = alone.backward(module(inputs).sin().sum(1)).materialise()
    with PerRecordGradients(module) as first, PerRecordGradients(module) as second:
        try:
            found = (first, second)[which].backward(module(inputs).sin().sum(1)).materialise()
        except UnsupportedError as error:
            assert "another engine" in str(error)  # noqa: PT017
        else:
            for left, right in zip(found, expected, strict=True):
                torch.testing.assert_close(left, right)
