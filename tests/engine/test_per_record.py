"""The engine: which uses of which parameters a batch's losses come from, and what it refuses to guess."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from noiseproof.engine import PerRecordGradients, RecordGradients, contributions
from noiseproof.engine.rules.convolution import Correlations
from noiseproof.errors import SettingError, UnsupportedError


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def inputs(records: int = 6) -> torch.Tensor:
    return torch.randn(records, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def test_parameters_are_the_trainable_ones_in_the_modules_order():
    module = network()
    module[0].bias.requires_grad_(False)
    engine = PerRecordGradients(module)
    assert [id(parameter) for parameter in engine.parameters] == [
        id(parameter) for parameter in (module[0].weight, module[2].weight, module[2].bias)
    ]
    assert engine.layers == {"0": [0], "2": [1, 2]}


def test_gradients_of_the_parameters_are_left_alone():
    module = network()
    module(inputs()).sum().backward()
    before = [parameter.grad.clone() for parameter in module.parameters()]
    with PerRecordGradients(module) as engine:
        engine.backward(module(inputs()).sum(1)).weighted_sum(torch.ones(6).double())
    for parameter, gradient in zip(module.parameters(), before, strict=True):
        assert torch.equal(parameter.grad, gradient)


@pytest.mark.parametrize("frozen", ["0.weight", "0.bias", "2.weight", "2.bias"])
def test_frozen_parameters_are_skipped(agree, frozen):
    module = network()
    module.get_parameter(frozen).requires_grad_(False)
    agree(module, inputs())


def test_one_record_and_none():
    module = network()
    with PerRecordGradients(module) as engine:
        alone = engine.backward(module(inputs(1)).sum(1))
        module(inputs(1)).sum().backward()
        for row, parameter in zip(alone.materialise(), engine.parameters, strict=True):
            torch.testing.assert_close(row[0], parameter.grad)
        none = engine.backward(module(inputs(0)).sum(1))
    assert none.records == 0
    assert none.squared_norms().shape == (0,)
    assert none.squared_norms("layer").shape == (0, 2)
    assert none.gram().shape == (0, 0)
    for total, parameter in zip(none.weighted_sum(torch.ones(0)), module.parameters(), strict=True):
        assert torch.equal(total, torch.zeros_like(parameter))
    assert [rows.shape for rows in none.materialise()] == [(0, *parameter.shape) for parameter in module.parameters()]


def test_no_record_in_another_dimension_than_the_first():
    module = network()
    with PerRecordGradients(module) as engine:
        gradients = engine.backward(module(torch.empty(3, 0, 4, dtype=torch.float64)).sum((0, 2)))
    assert [tuple(part.shape) for part in gradients.materialise()] == [(0, 5, 4), (0, 5), (0, 3, 5), (0, 3)]


def test_records_of_nothing_have_gradients_of_nothing():
    table = nn.Embedding(7, 5)
    words = torch.empty(0, 3, dtype=torch.long)  # three sentences of no words, in dimension 1
    with PerRecordGradients(table) as engine:
        (found,) = engine.backward(table(words).abs().transpose(0, 1).flatten(1).sum(1)).materialise()
    assert torch.equal(found, torch.zeros(3, 7, 5))


@pytest.mark.parametrize(
    "module",
    [nn.Conv2d(2, 3, 3, padding=1), nn.GRU(6, 4, batch_first=True), nn.LayerNorm(6), nn.GroupNorm(1, 2)],
    ids=lambda module: type(module).__name__,
)
def test_an_empty_batch_runs_through_every_kind_of_layer(module):
    given = torch.randn(0, 5, 6) if isinstance(module, nn.GRU) else torch.randn(0, 2, 6, 6)
    with PerRecordGradients(module) as engine:
        output = module(given)
        output = output[0] if isinstance(output, tuple) else output
        sums = engine.backward(output.flatten(1).sum(1)).weighted_sum(torch.ones(0))
    assert all(not total.any() for total in sums)


def test_a_layer_used_twice_adds_up(agree):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.filter = nn.Linear(4, 4), nn.Conv1d(1, 1, 3, padding=1)

        def forward(self, given):
            for _ in range(2):
                given = self.filter(self.layer(given).tanh().unsqueeze(1)).squeeze(1)
            return given

    torch.manual_seed(0)
    agree(Twice(), inputs())


def test_a_parameter_shared_by_different_layers_adds_up(agree):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.scores, self.norm = nn.Embedding(7, 4), nn.Linear(4, 7), nn.LayerNorm(4)
            self.scores.weight = self.table.weight
            self.other = nn.Linear(4, 4)
            self.other.bias = self.norm.bias

        def forward(self, words):
            return self.scores(self.other(self.norm(self.table(words))).tanh())

    torch.manual_seed(0)
    engine = agree(Tied(), torch.randint(0, 7, (5, 3)))
    # A shared parameter counts once, for the first layer that owns it.
    assert sorted(index for members in engine.layers.values() for index in members) == [0, 1, 2, 3, 4]


def test_each_backward_pass_takes_the_forward_passes_of_its_own_losses():
    module = network()
    real, fake = inputs(6), inputs(4) + 1
    with PerRecordGradients(module) as engine:
        first, second = module(real).sum(1), module(fake).sin().sum(1)
        of_second = engine.backward(second).materialise()
        of_first = engine.backward(first).materialise()
        again = engine.backward(module(real).sum(1)).materialise()
        other = engine.backward(module(fake).sin().sum(1)).materialise()
    for found, expected in zip([*of_first, *of_second], [*again, *other], strict=True):
        torch.testing.assert_close(found, expected)


def test_one_loss_of_two_forward_passes_adds_up():
    module = network()
    left, right = inputs(6), inputs(6) + 1
    with PerRecordGradients(module) as engine:
        both = engine.backward((module(left) * module(right)).sum(1)).materialise()
        losses = (module(left) * module(right)).sum(1)
        for record in range(6):
            expected = torch.autograd.grad(losses[record], engine.parameters, retain_graph=True)
            for found, gradient in zip(both, expected, strict=True):
                torch.testing.assert_close(found[record], gradient)


def test_a_generator_learns_through_a_discriminator():
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(inplace=True), nn.Linear(8, 4)).double()
    discriminator = network()
    noise = torch.randn(5, 3, dtype=torch.float64)
    with PerRecordGradients(generator) as of_generator, PerRecordGradients(discriminator) as of_discriminator:
        # Both watch; each engine finds its own layers in the common graph.
        found = of_generator.backward(discriminator(generator(noise)).sum(1)).materialise()
        with of_discriminator.paused():
            paused = of_generator.backward(discriminator(generator(noise)).sum(1)).materialise()
        through = of_discriminator.backward(discriminator(generator(noise)).sum(1)).materialise()
        apart = of_discriminator.backward(discriminator(generator(noise).detach()).sum(1)).materialise()
    losses = discriminator(generator(noise)).sum(1)
    for record in range(5):
        expected = torch.autograd.grad(losses[record], list(generator.parameters()), retain_graph=True)
        for ours, same, gradient in zip(found, paused, expected, strict=True):
            torch.testing.assert_close(ours[record], gradient)
            torch.testing.assert_close(same[record], gradient)
    for left, right in zip(through, apart, strict=True):
        torch.testing.assert_close(left, right)


def test_a_layer_that_the_losses_do_not_use_gets_zeros():
    class Unused(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, given):
            self.unused(given)
            return self.used(given)

    module = Unused().double()
    with PerRecordGradients(module) as engine:
        batch = engine.backward(module(inputs()).sum(1))
    assert not batch.squared_norms("layer")[:, 1].any()
    assert not batch.weighted_sum(torch.ones(6).double())[2].any()
    assert batch.squared_norms("layer")[:, 0].all()


def test_a_vector_over_all_parameters_gets_their_shapes_back():
    module = network()
    with PerRecordGradients(module) as engine:
        batch = engine.backward(module(inputs()).sum(1))
    weights = torch.linspace(0, 1, 6, dtype=torch.float64)
    vector = batch.weighted_vector(weights)
    assert vector.shape == (sum(parameter.numel() for parameter in module.parameters()),)
    for view, total in zip(engine.split(vector), batch.weighted_sum(weights), strict=True):
        assert view._base is vector
        torch.testing.assert_close(view, total)


def test_dropout_has_the_mask_of_the_forward_pass():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 3)).double()
    with PerRecordGradients(module) as engine:
        torch.manual_seed(3)
        sums = engine.backward(module(inputs()).sin().sum(1)).weighted_sum(torch.ones(6).double())
    torch.manual_seed(3)
    module(inputs()).sin().sum().backward()
    for total, parameter in zip(sums, module.parameters(), strict=True):
        torch.testing.assert_close(total, parameter.grad)


def test_layers_followed_by_operations_in_place(agree):
    torch.manual_seed(0)
    agree(nn.Sequential(nn.Linear(4, 5), nn.ReLU(inplace=True), nn.Linear(5, 3), nn.Tanh()), inputs())


def test_an_input_that_is_overwritten_is_refused():
    class Overwriting(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, given):
            output = self.layer(given)
            given.zero_()
            return output

    module = Overwriting().double()
    with PerRecordGradients(module) as engine:
        losses = module(inputs()).sum(1)
        with pytest.raises(UnsupportedError, match="the layer layer was given was changed in place"):
            engine.backward(losses)


def test_forward_passes_that_are_never_followed_by_a_backward_pass_leave_nothing_behind():
    module = network()
    with PerRecordGradients(module) as engine:
        given = inputs()
        hidden: list[weakref.ref[torch.Tensor]] = []
        watcher = module[2].register_forward_hook(lambda _, args, __: hidden.append(weakref.ref(args[0])))
        module(given)
        with torch.no_grad():
            module(given)
        module.eval()
        with engine.paused():
            module(given)
        losses = module(given).sum(1)
        batch = engine.backward(losses)
        del losses, batch
        watcher.remove()
        gc.collect()
        assert len(hidden) >= 4
        assert all(reference() is None for reference in hidden)


def test_losses_without_a_graph_or_of_another_network_are_refused():
    module = network()
    with PerRecordGradients(module) as engine:
        with torch.no_grad():
            losses = module(inputs()).sum(1)
        with pytest.raises(UnsupportedError, match="gradients on"):
            engine.backward(losses)
        for records in (1, 6):
            with pytest.raises(UnsupportedError, match="do not come from a forward pass of the network"):
                engine.backward(network()(inputs(records)).sum(1))


def test_losses_are_one_a_record():
    module = network()
    with PerRecordGradients(module) as engine:
        with pytest.raises(SettingError, match="one loss a record"):
            engine.backward(module(inputs()).sum())
        with pytest.raises(UnsupportedError, match="for 3 records"):
            engine.backward(module(inputs()).sum(0))


def test_a_parameter_used_behind_its_layers_back_counts(agree):
    class Behind(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, given):
            return F.linear(self.layer(given), self.layer.weight)

    torch.manual_seed(0)
    agree(Behind(), inputs())


def test_a_hook_that_changes_a_layers_output_does_not_confuse(agree):
    module = network()
    handle = module[0].register_forward_hook(lambda _, __, output: 3 * output)
    agree(module, inputs())
    handle.remove()


def test_checkpointed_parts(agree):
    class Checkpointed(nn.Module):
        def __init__(self, *, reentrant):
            super().__init__()
            self.first, self.inside, self.reentrant = nn.Linear(4, 4), nn.Linear(4, 3), reentrant

        def forward(self, given):
            return checkpoint(self.inside, self.first(given).tanh(), use_reentrant=self.reentrant)

    torch.manual_seed(0)
    agree(Checkpointed(reentrant=False), inputs())
    module = Checkpointed(reentrant=True).double()
    with PerRecordGradients(module) as engine, pytest.raises(UnsupportedError, match="use_reentrant=False"):
        engine.backward(module(inputs()).sum(1))
    # Also where the graph shows no parameter behind the checkpoint, as for a network's first part.
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)).double()
    with PerRecordGradients(module) as engine, pytest.raises(UnsupportedError, match="use_reentrant=False"):
        engine.backward(module[1](checkpoint(module[0], inputs().requires_grad_(), use_reentrant=True)).sum(1))


def replace_weight(module):
    module[0].weight = nn.Parameter(module[0].weight.detach().clone())


def add_layer(module):
    module.append(nn.Linear(3, 3).double())


CHANGES = {
    "frozen": lambda module: module[0].requires_grad_(False),
    "one frozen": lambda module: module[0].bias.requires_grad_(False),
    "made trainable": lambda module: module[2].requires_grad_(True),
    "replaced": replace_weight,
    "added": add_layer,
}


@pytest.mark.parametrize("change", CHANGES)
def test_parameters_that_change_after_the_engine_was_made_are_noticed(change):
    module = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Linear(5, 3)).double()
    module[2].requires_grad_(False)
    with PerRecordGradients(module) as engine:
        engine.backward(module(inputs()).sum(1), check=True)
        CHANGES[change](module)
        with pytest.raises(UnsupportedError, match="make a new one"):
            engine.backward(module(inputs()).sum(1), check=True)


def test_closing_takes_the_hooks_off():
    module = network()
    with PerRecordGradients(module):
        assert not module[0]._forward_hooks  # operations are followed, not layers
    recurrent = nn.LSTM(3, 4)
    with PerRecordGradients(recurrent):
        assert recurrent._forward_hooks
    assert not recurrent._forward_hooks
    assert not recurrent._forward_pre_hooks


def test_copies_of_a_watched_module_are_not_watched():
    module = nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 3, batch_first=True)).double()
    given = inputs().unsqueeze(1)
    with PerRecordGradients(module) as engine:
        for twin in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
            with pytest.raises(UnsupportedError, match="a forward pass of the network"):
                engine.backward(twin(given)[0].sum((1, 2)))
            with PerRecordGradients(twin) as other:
                assert other.backward(twin(given)[0].sum((1, 2))).records == 6


def test_a_module_without_trainable_parameters_is_refused():
    with pytest.raises(SettingError, match="no trainable parameter"):
        PerRecordGradients(nn.ReLU())


@pytest.mark.parametrize("recurrent", [False, True])
def test_mixed_precision_gives_gradients_of_the_parameters_type(recurrent):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.below, self.layer = nn.Linear(4, 4), nn.LSTM(4, 3, batch_first=True)

        def forward(self, given):
            return self.layer(self.below(given))[0][:, -1]

    torch.manual_seed(0)
    layered = nn.Sequential(nn.Conv1d(1, 4, 3), nn.Flatten(), nn.Linear(8, 3), nn.LayerNorm(3))
    module = Last() if recurrent else layered
    given = torch.randn(6, 1, 4)
    with PerRecordGradients(module) as engine:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses = module(given).float().sin().sum(1)
        batch = engine.backward(losses)
        exact = engine.backward(module(given).sin().sum(1))
    assert all(total.dtype == torch.float32 for total in batch.weighted_sum(torch.ones(6)))
    torch.testing.assert_close(batch.squared_norms(), exact.squared_norms(), rtol=0.1, atol=0.01)


# A batch's gradients: groups, weights, and records that must be left out.


@pytest.fixture
def module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)
    ).double()


@pytest.fixture
def batch(module: nn.Module) -> RecordGradients:
    given = torch.randn(6, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with PerRecordGradients(module) as engine:
        return engine.backward(module(given).sum(1))


def test_layers_group_the_tensors_of_a_module(batch):
    by_tensor, by_layer = batch.squared_norms("tensor"), batch.squared_norms("layer")
    assert by_tensor.shape == (6, 8)
    torch.testing.assert_close(by_layer, by_tensor.view(6, 4, 2).sum(2))
    torch.testing.assert_close(batch.squared_norms(), by_tensor.sum(1))


@pytest.mark.parametrize(("by", "groups"), [("tensor", 8), ("layer", 4)])
def test_weights_by_group(batch, by, groups):
    weights = torch.rand(6, groups, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    explicit = batch.materialise()
    for place, total in enumerate(batch.weighted_sum(weights, by=by)):
        column = weights[:, place if by == "tensor" else place // 2]
        torch.testing.assert_close(total, torch.tensordot(column, explicit[place], dims=1))


def test_weights_of_another_shape_or_group_are_refused(batch):
    with pytest.raises(SettingError, match=r"\(6,\)"):
        batch.weighted_sum(torch.ones(5))
    with pytest.raises(SettingError, match=r"\(6, 4\)"):
        batch.weighted_sum(torch.ones(6), by="layer")
    with pytest.raises(SettingError, match="not one of"):
        batch.weighted_sum(torch.ones(6), by="channel")
    with pytest.raises(SettingError, match="not one of"):
        batch.squared_norms("channel")


def test_weights_may_be_negative_and_of_another_type(batch):
    weights = torch.tensor([-1.0, 2.0, 0.5, -3.0, 1.0, 4.0])
    for total, rows in zip(batch.weighted_sum(weights), batch.materialise(), strict=True):
        torch.testing.assert_close(total, torch.tensordot(weights.double(), rows, dims=1))


LAYERS = {
    "linear": (lambda: nn.Linear(6, 3), (6,)),
    "linear at positions": (lambda: nn.Linear(6, 3), (4, 6)),
    "convolution": (lambda: nn.Conv1d(2, 3, 2), (2, 5)),
    "layer norm": (lambda: nn.LayerNorm(6), (6,)),
    "attention": (lambda: _Attention(), (4, 6)),
    "recurrent": (lambda: _Recurrent(), (4, 6)),
    "embedding": (lambda: _Table(), (4,)),
}


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.layer(given, given.flip(1), given)[0]


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(6, 3, batch_first=True)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.layer(given)[0]


class _Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Embedding(5, 3)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        return self.layer((given.nan_to_num(0.0, 1.0).abs() * 2).long().clamp(max=4)) * given.unsqueeze(-1)


@pytest.mark.parametrize("kind", sorted(LAYERS))
@pytest.mark.parametrize("norms_first", [True, False])
def test_a_record_that_is_not_finite_can_be_left_out_by_weight_zero(kind, norms_first):
    torch.manual_seed(0)
    build, shape = LAYERS[kind]
    module = build().double()
    given = torch.randn(5, *shape, dtype=torch.float64)
    weights = torch.tensor([0.5, 0.0, 1.0, 0.0, 2.0], dtype=torch.float64)
    with PerRecordGradients(module, check=False) as engine:
        expected = engine.backward(module(given[::2]).sin().flatten(1).sum(1)).weighted_sum(weights[::2])
        given[1], given[3] = torch.inf, torch.nan
        scale = torch.tensor([1.0, torch.nan, 1.0, torch.inf, 1.0], dtype=torch.float64)
        batch = engine.backward((module(given).sin().flatten(1).sum(1)) * scale)
        if norms_first:
            assert batch.squared_norms()[::2].isfinite().all()
        for found, wanted in zip(batch.weighted_sum(weights), expected, strict=True):
            torch.testing.assert_close(found, wanted)
        assert all(not total.any() for total in batch.weighted_sum(torch.zeros_like(weights)))
        assert not batch.weighted_vector(torch.zeros_like(weights)).any()


def test_the_gram_matrix_has_the_norms_on_its_diagonal(batch):
    torch.testing.assert_close(batch.gram().diagonal(), batch.squared_norms())
    torch.testing.assert_close(batch.gram(), batch.gram().T)


def test_inner_products_with_a_weighted_sum_are_the_gram_matrix_applied(batch):
    weights = torch.linspace(-1, 1, 6, dtype=torch.float64)
    torch.testing.assert_close(batch.inner(batch.weighted_sum(weights)), batch.gram() @ weights)


def test_errors_that_take_more_memory_than_gradients_are_let_go_of_during_the_backward_pass():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU())
    given = torch.randn(6, 1, 20, 20)
    losses = lambda records: module(records).square().flatten(1).sum(1)  # noqa: E731
    for check in (False, True):
        with PerRecordGradients(module) as engine:
            batch = engine.backward(losses(given), check=check)
        later = batch._contributions[4]
        assert isinstance(later, Correlations)
        assert later._kept is not None
        assert later._errors.numel() == later._inputs.numel() == 0
        for record, expected in enumerate(given):
            alone = torch.autograd.grad(losses(expected.unsqueeze(0)).sum(), engine.parameters)
            for own, wanted in zip(batch.materialise(), alone, strict=True):
                torch.testing.assert_close(own[record], wanted, rtol=1e-4, atol=1e-4)


def test_layers_of_a_batch_share_the_room_for_written_out_gradients(monkeypatch):
    monkeypatch.setattr(Correlations, "shrink", lambda part: None)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv1d(1, 2, 3), nn.Conv1d(2, 2, 3), nn.Conv1d(2, 2, 3))
    given = torch.randn(4, 1, 30)
    wanted: list[list[torch.Tensor]] = []
    kept: list[list[bool]] = []
    # The gradients of the later two take 4 x 12 x 4 = 192 bytes each, those of the first 96.
    for size in (0, 200, 300, 10**6):
        monkeypatch.setattr(contributions, "KEPT_BYTES", size)
        with PerRecordGradients(module) as engine:
            batch = engine.backward(module(given).sin().flatten(1).sum(1))
        weights = batch.squared_norms().rsqrt()
        wanted.append(batch.weighted_sum(weights))
        kept.append([part._kept is not None for part in batch._contributions[::2]])
    for other in wanted[1:]:
        torch.testing.assert_close(other, wanted[0])
    assert [sum(each) for each in kept] == [0, 1, 2, 3]
