"""Compiled kernels do what the lines of torch beside their callers do, bit by bit or to float32's precision."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special
from torch import nn

from noiseproof import kernels
from noiseproof.engine import PerRecordGradients, clip_weights
from noiseproof.engine.persons import Owners
from noiseproof.engine.products import SparseRows
from noiseproof.errors import NoiseproofError
from noiseproof.methods.predictions import NeuronNoise
from noiseproof.methods.predictions.neuron import NoiseAhead
from noiseproof.privacy import Reproducible, Secure, discrete_noise
from noiseproof.privacy.factorization import Banded, Participation

pytestmark = pytest.mark.skipif(
    kernels.compiled is None, reason="no C compiler was there when noiseproof was installed"
)


@pytest.fixture
def without(monkeypatch):
    """`without(f)`: what f() gives where no kernels were built."""

    def call(function):
        with monkeypatch.context() as patched:
            patched.setattr(kernels, "compiled", None)
            return function()

    return call


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 255, 256, 257, 10_000, 2**17 - 1, 2**17, 2**17 + 1, 300_001])
def test_noise_is_the_same_with_kernels_and_without(count, without):
    value = torch.linspace(-3, 3, count)
    noisy = Reproducible(7).add_gaussian(value, 2.0)
    torch.testing.assert_close(noisy, without(lambda: Reproducible(7).add_gaussian(value, 2.0)), rtol=2e-6, atol=2e-6)


def test_calls_draw_from_streams_of_their_own(without):
    value = torch.zeros(1000)

    def draws():
        rng = Reproducible(1)
        rng._calls = 2**32 - 1  # the nonce's next word
        return torch.stack([rng.add_gaussian(value, 1.0) for _ in range(3)])

    noise = draws()
    torch.testing.assert_close(noise, without(draws), rtol=2e-6, atol=2e-6)
    assert np.abs(np.corrcoef(noise.numpy()) - np.eye(3)).max() < 0.2  # six standard deviations


def test_noise_does_not_depend_on_the_number_of_threads():
    value, threads = torch.randn(100_000, generator=torch.Generator().manual_seed(0)), torch.get_num_threads()
    try:
        found = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(Reproducible(2).add_gaussian(value, 1.0))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("place", [0, 300, 999])
def test_a_value_that_is_not_finite_is_refused_wherever_it_is(bad, place):
    value = torch.full((1000,), torch.finfo(torch.float32).max)
    assert Reproducible(0).add_gaussian(value, 1.0).isfinite().all()
    value[place] = bad
    with pytest.raises(NoiseproofError, match="NaN or infinite"):
        Reproducible(0).add_gaussian(value, 1.0)


def test_noise_can_be_added_in_place_and_leaves_the_value_alone_otherwise():
    value = torch.randn(1000, requires_grad=True)
    old = value.detach().clone()
    noisy = Reproducible(0).add_gaussian(value, 1.0)
    assert torch.equal(value.detach(), old)
    assert not noisy.requires_grad
    assert Reproducible(0).add_gaussian(old, 1.0, out=old) is old
    assert torch.equal(old, noisy)


def test_normals_are_the_inverse_error_function_of_uniforms_as_far_as_integers_go():
    limits = np.iinfo(np.int32)
    powers = 2 ** np.arange(31)
    chosen = np.random.default_rng(0).integers(limits.min, limits.max, 100_000, endpoint=True)
    near = limits.max - np.arange(2000)
    whole = np.concatenate([[limits.min, limits.max, 0, 1, -1], powers, -powers, chosen, near, -near]).astype(np.int32)
    normals = np.empty(len(whole), dtype=np.float32)
    kernels.compiled.make_normals(whole.ctypes.data, len(whole), normals.ctypes.data)
    uniforms = whole.astype(np.float32) * np.float32((1 - 2**-24) / 2**31)
    np.testing.assert_allclose(normals, special.erfinv(uniforms.astype(np.float64)), rtol=1e-6)
    assert np.isfinite(normals).all()
    assert normals[0] == -normals[1] < -3.8
    assert normals[2] == 0


def layers_of(widths: list[int], bias: bool) -> nn.Module:
    torch.manual_seed(len(widths))
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after, bias=bias), nn.Tanh()]
    return nn.Sequential(*layers)


def gradients_of(module: nn.Module, features: torch.Tensor, scale: float = 1.0):
    engine = PerRecordGradients(module)
    batch = engine.backward(scale * module(features).square().sum(1))
    engine.close()
    return batch


@given(st.lists(st.integers(1, 70), min_size=2, max_size=4), st.integers(2, 40), st.booleans(), st.floats(1e-3, 1e3))
@settings(max_examples=60, deadline=None)
def test_clipped_sums_are_those_of_weights_by_norms(widths, records, bias, clip):
    module = layers_of(widths, bias)
    batch = gradients_of(module, torch.randn(records, widths[0], generator=torch.Generator().manual_seed(records)))
    expected = batch.weighted_vector(clip_weights(batch.squared_norms(), clip, 0.25))
    found = batch._clipped_rows(clip, 0.25)
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5 * float(expected.abs().max()))


def test_wide_layers_and_many_records_are_clipped_in_threads(without):
    module = layers_of([700, 300, 5], True)
    features = torch.randn(500, 700, generator=torch.Generator().manual_seed(1))
    clipped = gradients_of(module, features).clipped_vector(0.1)
    torch.testing.assert_close(clipped, without(lambda: gradients_of(module, features).clipped_vector(0.1)))


def test_no_clipped_record_is_longer_than_the_norm():
    module = layers_of([50, 40, 30], True)
    for scale in (1e-6, 1.0, 1e6, 1e12):
        for record in torch.randn(20, 1, 50, generator=torch.Generator().manual_seed(2)):
            assert gradients_of(module, record, scale).clipped_vector(0.37).double().norm() <= 0.37


def test_norms_do_not_shrink_by_rounding_however_wide_a_layer_is():
    # Equal numbers round the same way in every partial sum.
    module = nn.Linear(400_000, 1, bias=False)
    nn.init.constant_(module.weight, 1e-3)
    for value in (0.1, 0.7, 1.3):
        record = torch.full((1, 400_000), value)
        clipped = gradients_of(module, record).clipped_vector(0.37).double()
        assert 0.37 * (1 - 2e-5) < clipped.norm() <= 0.37


@given(st.integers(1, 600), st.integers(1, 40), st.integers(1, 130))
@settings(max_examples=60, deadline=None)
def test_weighed_outer_products_are_those_of_a_matrix_product(rows, high, wide):
    generator = torch.Generator().manual_seed(rows)
    errors, activations = (torch.randn(rows, columns, generator=generator) for columns in (high, wide))
    weights, out = torch.rand(rows, generator=generator), torch.full((high, wide), torch.nan)
    assert kernels.sum_products(errors, activations, weights, out)
    expected = (errors * weights.unsqueeze(1)).double().T @ activations.double()
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-6 * rows)


@given(st.integers(1, 9), st.integers(1, 13), st.integers(16, 300), st.booleans())
@settings(max_examples=60, deadline=None)
def test_inner_products_of_rows_are_those_of_torch_wherever_records_lie(records, count, width, time_first):
    shape = (count, records, width) if time_first else (records, count, width)
    vectors = torch.randn(shape, generator=torch.Generator().manual_seed(width))
    vectors = vectors.transpose(0, 1) if time_first else vectors
    expected = torch.bmm(vectors.double(), vectors.double().transpose(1, 2))
    torch.testing.assert_close(kernels.multiply_rows(vectors).double(), expected, rtol=0, atol=1e-6 * width)


def test_what_is_not_finite_stays_in_its_own_products():
    vectors = torch.ones(2, 3, 20)
    vectors[0, 1, 2] = torch.inf
    found = kernels.multiply_rows(vectors)
    assert found.isfinite().tolist()[0] == [[True, False, True], [False, False, False], [True, False, True]]
    assert (found[1] == 20).all()


@pytest.mark.parametrize("frozen", ["0.weight", "0.bias", "2.weight", "2.bias"])
def test_layers_of_which_only_a_part_is_trained_are_clipped_too(frozen, without):
    module = layers_of([9, 8, 7], True)
    dict(module.named_parameters())[frozen].requires_grad_(False)
    features = torch.randn(12, 9, generator=torch.Generator().manual_seed(3))
    clipped = gradients_of(module, features).clipped_vector(0.1)
    torch.testing.assert_close(clipped, without(lambda: gradients_of(module, features).clipped_vector(0.1)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_a_record_whose_gradient_is_not_finite_is_left_out(bad):
    module = nn.Linear(4, 3)
    features = torch.randn(6, 4, generator=torch.Generator().manual_seed(4))
    others = gradients_of(module, features[1:]).clipped_vector(0.1)
    features[0] = bad
    torch.testing.assert_close(gradients_of(module, features).clipped_vector(0.1), others)


def test_a_record_without_gradient_adds_nothing():
    module = nn.Linear(4, 3, bias=False)
    features = torch.randn(6, 4, generator=torch.Generator().manual_seed(4))
    others = gradients_of(module, features[1:]).clipped_vector(0.1)
    features[0] = 0
    torch.testing.assert_close(gradients_of(module, features).clipped_vector(0.1), others)


def test_layers_that_share_their_errors_or_their_weight_are_clipped_without_kernels():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Linear(5, 5), nn.Linear(5, 5)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return self.one(self.one(features)) + self.other(features)

    torch.manual_seed(0)
    batch = gradients_of(Twice(), torch.randn(8, 5))
    expected = batch.weighted_vector(clip_weights(batch.squared_norms(), 0.1))
    torch.testing.assert_close(batch.clipped_vector(0.1), expected)


@given(st.integers(1, 100), st.integers(2, 40), st.floats(0.01, 50), st.sampled_from(["laplace", "gaussian"]))
@settings(max_examples=40, deadline=None)
def test_answers_are_those_of_torch(queries, classes, epsilon, law):
    noise = NeuronNoise(epsilon, classes, neuron=0.7, probability=0.9, law=law)
    logits = 8 * torch.randn(queries, classes, generator=torch.Generator().manual_seed(classes))
    found = noise.answers(logits, NoiseAhead(noise, Reproducible(5)))
    # In float64 no kernel is taken; the draws are the same but for rounding.
    uniforms, draws = NoiseAhead(noise, Reproducible(5)).take(queries, torch.float32)
    expected = noise._seeded_answers(logits.double(), uniforms.double(), draws.double())
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)


def test_an_answer_of_a_broken_network_is_not_a_number():
    noise = NeuronNoise(1.0, 3, neuron=0.7, probability=0.9, law="gaussian")
    logits = torch.zeros(20, 3)
    logits[3, 1] = float("nan")
    found = noise.answers(logits, NoiseAhead(noise, Reproducible(5)))
    assert found[3].isnan().all()
    assert found[[*range(3), *range(4, 20)]].isfinite().all()


def test_more_classes_than_the_kernel_takes_are_answered_without_it():
    classes = kernels.MOST_CLASSES + 1
    noise = NeuronNoise(1.0, classes, neuron=0.7, probability=0.9, law="gaussian")
    found = noise.answers(torch.zeros(4, classes), NoiseAhead(noise, Reproducible(5)))
    torch.testing.assert_close(found.sum(1), torch.ones(4), rtol=0, atol=1e-4)


def test_numbers_of_another_kind_do_not_suit():
    matrix = torch.zeros(4, 3)
    assert kernels.suit(matrix, matrix[1:])
    assert not kernels.suit(matrix, matrix.double())
    assert not kernels.suit(matrix.t())


def test_the_environment_can_leave_kernels_alone():
    program = "from noiseproof import kernels; print(kernels.compiled)"
    environment = {**os.environ, "NOISEPROOF_KERNELS": "off"}
    printed = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert printed.stdout.strip() == "None"


@pytest.mark.parametrize("add", ["add_gaussian", "add_laplace"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 40_000, 2**17 + 1])
def test_secure_noise_is_the_same_to_the_last_bit(add, dtype, count, without):
    value = 10 * torch.randn(count, dtype=dtype, generator=torch.Generator().manual_seed(count))
    for scale in (3.7e-5, 1.0, 123.4):

        def noisy(scale=scale):
            return getattr(Secure._for_test(bytes(range(32))), add)(value, scale)

        assert torch.equal(noisy(), without(noisy))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 65, 100_001])
def test_secure_noise_with_a_scale_each_is_the_same_to_the_last_bit(dtype, count, without):
    generator = torch.Generator().manual_seed(count)
    value = 10 * torch.randn(count, dtype=dtype, generator=generator)
    scales = torch.rand(count, dtype=torch.float64, generator=generator).mul(20).sub(10).exp()

    def noisy():
        return Secure._for_test(bytes(range(32))).add_laplace(value, scales)

    assert torch.equal(noisy(), without(noisy))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_secure_noise_on_the_largest_values_is_the_same_to_the_last_bit(dtype, without):
    largest = torch.finfo(dtype).max
    value = torch.tensor([largest, -largest, largest / 3, 2.0**61, -(2.0**62), 0.5, -0.5, 1.5, 0.0], dtype=dtype)

    def noisy():
        return Secure._for_test(bytes(32)).add_gaussian(value, 1e-3)

    assert torch.equal(noisy(), without(noisy))


@pytest.mark.parametrize("count", [1, 7, 8, 63, 64, 100])
def test_no_place_is_noted_beyond_the_room_for_them(count):
    words, ends, scales = np.zeros(count, dtype=np.uint64), (np.zeros(1), np.ones(1)), np.ones(count)
    certain, drawn = np.zeros(1, dtype=np.uint64), np.empty(count, dtype=np.int64)  # nothing is certain
    places = np.full(count + 1, -1)
    assert kernels.propose_each(words, scales, ends, certain, 0, drawn, places[:count]) == count
    assert places.tolist() == [*range(count), -1]


def test_secure_noise_reaches_rows_that_lie_apart(without):
    value = torch.zeros(50, 4)[:, ::2]

    def noisy():
        return Secure._for_test(bytes(32)).add_gaussian(value, 1.0, out=value.clone())

    assert torch.equal(noisy(), without(noisy))


def test_blocks_that_float64_cannot_decide_are_drawn_exactly(monkeypatch, without):
    value = torch.zeros(100_000)

    def noisy():
        return Secure._for_test(bytes(range(32))).add_gaussian(value, 1.0)

    expected, handed_back = noisy(), []
    original = kernels.add_law

    def undecided(key, law, tail, value, out, blocks, step):
        # As if compiled code had left two blocks alone.
        before = out.clone()
        assert original(key, law, tail, value, out, blocks, step) == []
        for block in (1, 3):
            where = slice(out.numel() * block // blocks, out.numel() * (block + 1) // blocks)
            out[where] = before[where]
            handed_back.append(block)
        return handed_back

    monkeypatch.setattr(kernels, "add_law", undecided)
    assert torch.equal(noisy(), expected)
    assert handed_back == [1, 3]
    assert torch.equal(without(noisy), expected)


def test_draws_take_the_same_words_whatever_float64_leaves_undecided(monkeypatch, without):
    # A hundred thousand times as many draws are decided exactly, by bits aside: 1 in 600 or so.
    def noisy():
        return Secure._for_test(bytes(range(32))).add_gaussian(torch.zeros(20_000), 1.0)

    expected = noisy()
    monkeypatch.setattr(discrete_noise, "_FLOAT_ERROR", 2.0**-11)
    discrete_noise.at_scale.cache_clear()
    left_alone = []
    original = kernels.add_law
    monkeypatch.setattr(kernels, "add_law", lambda *given: left_alone.append(original(*given)) or left_alone[-1])
    try:
        assert torch.equal(noisy(), expected)
        assert sorted(left_alone[0]) == [0, 1, 2, 3]  # each of them holds such a draw
        assert torch.equal(without(noisy), expected)
    finally:
        discrete_noise.at_scale.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 7, 50_001, 99_999])
def test_secure_noise_is_refused_for_a_value_that_is_not_finite(dtype, bad, place, without):
    value = torch.zeros(100_000, dtype=dtype)
    value[place] = bad
    for refused in (lambda add: add(), without):
        with pytest.raises(NoiseproofError, match="NaN or infinite"):
            refused(lambda: Secure().add_gaussian(value, 1.0))


def test_secure_noise_does_not_depend_on_the_number_of_threads():
    def noisy():
        return Secure._for_test(bytes(range(32))).add_gaussian(torch.zeros(300_000), 1.0)

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = noisy()
        torch.set_num_threads(4)
        assert torch.equal(noisy(), alone)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("width", [1, 7, 8, 21])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_an_lstm_is_the_same_with_kernels_and_without(width, scale, without):
    torch.manual_seed(width)
    network, records = nn.LSTM(3, width), torch.randn(5, 4, 3) * scale

    def gradients():
        with PerRecordGradients(network) as engine:
            outputs, (hidden, cell) = network(records)
            losses = outputs.transpose(0, 1).flatten(1).sum(1) + hidden[0].sum(1) + cell[0].sum(1)
            return outputs.detach(), *engine.backward(losses).materialise()

    for found, expected in zip(gradients(), without(gradients), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("counts", [[1, 1, 1], [3, 1, 5, 2], [4, 4], [70, 2]])
def test_persons_are_clipped_the_same_with_kernels_and_without(counts, without):
    torch.manual_seed(0)
    network, total = nn.Sequential(nn.Linear(20, 9), nn.Tanh(), nn.Linear(9, 4, bias=False)), sum(counts)
    owners = Owners(torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts)), len(counts))
    records = torch.randn(total, 20)

    def clipped():
        with PerRecordGradients(network) as engine:
            gradients = engine.backward(network(records).square().sum(1)).by_person(owners)
        bound = float(gradients.squared_norms().median().sqrt())
        with PerRecordGradients(network) as engine:
            return engine.backward(network(records).square().sum(1)).by_person(owners).clipped_vector(bound, 0.5)

    torch.testing.assert_close(clipped(), without(clipped), rtol=1e-4, atol=1e-6)


def test_a_person_whose_records_cancel_adds_no_more_than_the_clipping_norm():
    torch.manual_seed(0)
    network, records = nn.Linear(300, 50), 1e3 * torch.randn(1, 300).expand(16, -1)
    signs = torch.tensor([1.0, -1.0]).repeat(8)
    signs[0] += 1e-6
    owners = Owners(torch.zeros(16, dtype=torch.int64), 1)
    with PerRecordGradients(network) as engine:
        gradients = engine.backward(signs * network(records).square().sum(1)).by_person(owners)
    for clip in (1e-3, 1.0, 1e3):
        assert float(gradients.clipped_vector(clip).double().norm()) <= clip


@pytest.mark.parametrize("bands", [2, 3, 5, 16, 65])
@pytest.mark.parametrize("size", [1, 9, 5000, 40_001])
def test_correlated_noise_is_the_same_with_kernels_and_without(bands, size, without):
    rows = np.linspace(1, 0.1, bands)[None].repeat(70, 0)
    gradients = torch.randn(70, size, generator=torch.Generator().manual_seed(2))

    def released():
        stream = Banded(rows, Participation(70), toeplitz=True).start(size, gradients)
        return torch.stack([stream.release(gradient, lambda query: query + 1.0) for gradient in gradients])

    torch.testing.assert_close(released(), without(released), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("owners", ["in order", "in any order"])
@pytest.mark.parametrize(
    ("lookups", "records", "rows", "width"), [(0, 3, 5, 4), (1, 3, 5, 1), (200, 6, 9, 7), (3000, 4, 900, 64)]
)
def test_rows_of_a_table_are_merged_and_summed_as_by_torch(owners, lookups, records, rows, width, without):
    generator = torch.Generator().manual_seed(lookups)
    whose = torch.randint(records, (lookups,), generator=generator)
    whose = whose.sort().values if owners == "in order" else whose
    given = (
        torch.randn(lookups, width, generator=generator),
        whose,
        torch.randint(rows, (lookups,), generator=generator),
    )
    weights = torch.rand(records, generator=generator)

    def found():
        table = SparseRows(*given, records, torch.Size((rows, width)))
        return table.explicit(), table.squared_norms(), table.weighted_sum(weights)

    expected = torch.zeros(records, rows, width).index_put_((given[1], given[2]), given[0], accumulate=True)
    for one, other in zip(found(), without(found), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found()[0], expected, rtol=1e-5, atol=1e-5)


def test_a_row_that_a_record_looks_up_often_is_one_row():
    rows = torch.tensor([7, 7, 3, 7, 3, 7])
    table = SparseRows(torch.ones(6, 2), torch.tensor([0, 0, 0, 1, 1, 1]), rows, 2, torch.Size((9, 2)))
    # (1 + 1)^2 + 1 for the first record, and the same for the second, in each of two columns
    torch.testing.assert_close(table.squared_norms(), torch.tensor([10.0, 10.0]))


@pytest.mark.parametrize("shape", [(6, 8, 5, 7), (3, 16, 32, 32), (4, 6), (5, 6, 9)])
@pytest.mark.parametrize("trained", ["both", "weight", "bias"])
def test_gradients_of_group_norms_are_the_same_with_kernels_and_without(shape, trained, without):
    torch.manual_seed(0)
    layer = nn.GroupNorm(2, shape[1])
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(trained in ("both", name))
    # Far from 0, where the difference of two sums would lose digits in float32.
    inputs, factors = 0.1 * torch.randn(shape) + 30, torch.randn(shape)

    def gradients():
        with PerRecordGradients(layer) as engine:
            return engine.backward((layer(inputs) * factors).flatten(1).sum(1)).materialise()

    for found, expected in zip(gradients(), without(gradients), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
