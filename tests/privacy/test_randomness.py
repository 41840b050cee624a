"""Bits are ChaCha20's, blocks give the same whatever the threads, and a choice by logits has exactly its probabilities."""

from __future__ import annotations

import math
import multiprocessing

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.privacy import Randomness, Reproducible, Secure, randomness
from noiseproof.privacy.randomness import (
    BLOCK,
    Bits,
    add_in_blocks,
    check_value,
    choose,
    in_blocks,
)

KEY = bytes(range(32))


def test_the_stream_is_that_of_rfc_8439():
    # Appendix A.1, test vector 1: key, nonce and counter are all 0.
    assert Bits(bytes(32)).words(4).tobytes().hex() == (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    )
    # Section 2.3.2 has nonce 000000090000004a00000000 and counter 1: the second block of 64 bytes.
    nonce = int.from_bytes(bytes.fromhex("000000090000004a00000000"), "little")
    assert Bits(KEY, nonce).words(16).tobytes()[64:80].hex() == "10f1e7e4d13b5915500fdd1fa32071c4"


def test_asking_in_pieces_gives_the_same_stream():
    whole = Bits(KEY).words(300_000)  # more than is encrypted at a time
    pieces = Bits(KEY)
    assert np.array_equal(np.concatenate([pieces.words(n) for n in (1, 131_071, 168_928)]), whole)
    assert Bits(KEY).integer(128) == int(whole[0]) | int(whole[1]) << 64


def test_streams_of_other_keys_and_nonces_are_others():
    streams = [Bits(KEY), Bits(KEY, 1), Bits(KEY, 1 << 32), Bits(bytes(32))]
    first = [bytes(stream.words(4).tobytes()) for stream in streams]
    assert len(set(first)) == len(first)


def test_bits_are_uniform():
    counts = np.bincount(Bits(KEY).words(250_000).view(np.uint8), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-6


def test_uniforms_are_uniform_multiples_of_the_smallest_step():
    uniform = Bits(KEY).uniform((100, 1000))
    assert uniform.shape == (100, 1000)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert np.array_equal(np.rint(uniform * 2.0**53), uniform * 2.0**53)
    assert stats.kstest(uniform.ravel(), "uniform").pvalue > 1e-6
    assert Bits(KEY).uniform(()).shape == ()


def test_only_contiguous_arrays_can_be_filled():
    with pytest.raises(ValueError, match="contiguous"):
        Bits(KEY).fill(np.zeros(10, dtype=np.uint64)[::2])


# What holds of both kinds of randomness. Statistical tests have seeds, and alarm falsely once in 10^6 at most.


KINDS = {
    "reproducible": lambda seed: Reproducible(seed),
    "secure": lambda seed: Secure._for_test(seed.to_bytes(32, "little")),
}


@pytest.fixture(params=KINDS)
def make(request):
    return KINDS[request.param]


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 700.0])
def test_gaussian_noise_is_normal(make, dtype, scale):
    noise = make(1).add_gaussian(torch.zeros(400_001, dtype=dtype), scale).double().numpy() / scale
    assert stats.kstest(noise, "norm").pvalue > 1e-6
    bins = np.floor(stats.norm.cdf(noise) * 500).astype(int)
    assert stats.chisquare(np.bincount(bins, minlength=500)).pvalue > 1e-6
    for power, mean, square in ((1, 0, 1), (2, 1, 3), (3, 0, 15), (4, 3, 105)):
        assert abs((noise**power).mean() - mean) < 5 * math.sqrt((square - mean**2) / noise.size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1.0, 1e-3, 700.0])
def test_laplace_noise_is_laplacian(make, dtype, scale):
    noise = make(2).add_laplace(torch.zeros(400_001, dtype=dtype), scale).double().numpy() / scale
    assert stats.kstest(noise, "laplace").pvalue > 1e-6
    bins = np.floor(stats.laplace.cdf(noise) * 500).astype(int)
    assert stats.chisquare(np.bincount(bins, minlength=500)).pvalue > 1e-6
    for power, mean, square in ((1, 0, 2), (2, 2, 24), (3, 0, 720), (4, 24, 40320)):
        assert abs((noise**power).mean() - mean) < 5 * math.sqrt((square - mean**2) / noise.size)


def test_tails_are_as_heavy_as_they_should_be(make):
    noise = make(3).add_gaussian(torch.zeros(4_000_000), 1.0).abs().numpy()
    for edge in (2.9, 3.5, 4.5):
        count = int((noise > edge).sum())
        assert stats.binomtest(count, noise.size, 2 * stats.norm.sf(edge)).pvalue > 1e-6


def test_coordinates_are_independent(make):
    noise = make(4).add_gaussian(torch.zeros(3 * BLOCK, dtype=torch.float64), 1.0).numpy()
    # Neighbours, the two halves of a Box-Muller block, and the same place in two blocks: five standard errors.
    for lag in (1, 2, BLOCK // 2, BLOCK):
        assert abs((noise[lag:] * noise[:-lag]).mean()) < 5 / math.sqrt(noise.size - lag)
        assert abs((noise[lag:] ** 2 * noise[:-lag] ** 2).mean() - 1) < 5 * math.sqrt(8 / (noise.size - lag))


def test_calls_draw_new_noise(make):
    rng = make(5)
    zeros = torch.zeros(50_000, dtype=torch.float64)
    first, second = rng.add_gaussian(zeros, 1.0), rng.add_gaussian(zeros, 1.0)
    assert abs(float((first * second).mean())) < 5 / math.sqrt(50_000)


def test_noise_is_added_to_the_value(make):
    value = torch.linspace(-9, 9, 10_000, dtype=torch.float64)
    for add in ("add_gaussian", "add_laplace"):
        noise = getattr(make(6), add)(torch.zeros_like(value), 0.5)
        noisy = getattr(make(6), add)(value, 0.5)
        assert torch.allclose(noisy - noise, value, rtol=0, atol=1e-9)


def test_each_coordinate_can_have_its_own_laplace_scale(make):
    scale = torch.logspace(-6, 6, 1000, dtype=torch.float64)
    noise = make(7).add_laplace(torch.zeros(300, 1000, dtype=torch.float64), scale) / scale
    assert stats.kstest(noise.ravel().numpy(), "laplace").pvalue > 1e-6
    assert stats.kstest(noise[:, :20].ravel().numpy(), "laplace").pvalue > 1e-6
    column = make(7).add_laplace(torch.zeros(300, 1000), torch.rand(300, 1) + 1)
    assert column.dtype == torch.float32
    one, same = (make(7).add_laplace(torch.zeros(5), scale) for scale in (2.0, torch.tensor([2.0])))
    assert torch.equal(one, same)


@pytest.mark.parametrize("add", ["add_gaussian", "add_laplace"])
def test_the_number_of_threads_changes_nothing(make, add, threads):
    value = torch.linspace(0, 1, 3 * BLOCK + 7)
    results = []
    for number in (1, 2, 5):
        threads(number)
        results.append(getattr(make(8), add)(value, 2.0))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("add", ["add_gaussian", "add_laplace"])
def test_any_shape_and_layout_is_served(make, add):
    plain = torch.rand(6, 8)
    expected = getattr(make(9), add)(plain, 1.0)
    assert torch.equal(getattr(make(9), add)(plain.t().contiguous().t(), 1.0), expected)
    assert torch.equal(getattr(make(9), add)(plain.clone(), 1.0, out=torch.empty(6, 8)), expected)
    inplace = plain.clone()
    assert getattr(make(9), add)(inplace, 1.0, out=inplace) is inplace
    assert torch.equal(inplace, expected)
    assert getattr(make(9), add)(torch.empty(0, 3), 1.0).shape == (0, 3)
    assert getattr(make(9), add)(torch.tensor(1.0), 1.0).shape == ()
    half = getattr(make(9), add)(plain.half(), 1.0)
    assert half.dtype == torch.float16
    assert torch.allclose(half.float(), expected, atol=0.02)


@pytest.mark.parametrize("add", ["add_gaussian", "add_laplace"])
def test_what_cannot_be_is_refused(make, add):
    rng = make(10)
    for scale in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(SettingError, match="greater than 0"):
            getattr(rng, add)(torch.zeros(2), scale)
    with pytest.raises(NoiseproofError, match="NaN or infinite") as error:
        getattr(rng, add)(torch.tensor([271828.0, math.nan]), 1.0)
    assert "271828" not in str(error.value)
    with pytest.raises(SettingError, match="floating-point"):
        getattr(rng, add)(torch.tensor([1, 2]), 1.0)
    with pytest.raises(SettingError, match="greater than 0"):
        rng.add_laplace(torch.zeros(2), torch.tensor([1.0, 0.0]))
    with pytest.raises(SettingError, match="do not fit"):
        rng.add_laplace(torch.zeros(2), torch.ones(3))


def test_uniforms_are_uniform(make):
    uniform = make(11).uniform((500, 400))
    assert uniform.shape == (500, 400)
    assert uniform.dtype == torch.float64
    assert stats.kstest(uniform.ravel().numpy(), "uniform").pvalue > 1e-6


@pytest.mark.parametrize("rate", [0.5, 0.02, 1 / 3, 0.97, 2.0**-5])
def test_poisson_samples_hold_each_record_with_the_rate(make, rate):
    rng, records, samples = make(12), 200, 3000
    member = np.zeros((samples, records), dtype=bool)
    for row in member:
        sample = rng.poisson_sample(records, rate)
        assert sample.dtype == torch.int64
        assert torch.equal(sample, torch.unique(sample))  # in order, and none twice
        row[sample.numpy()] = True
    expected = rate * samples
    score = ((member.sum(axis=0) - expected) ** 2).sum() / (expected * (1 - rate))
    assert 5e-7 < stats.chi2.sf(score, records) < 1 - 5e-7
    # Sizes are binomial: their variance is right only if records are drawn independently.
    sizes = member.sum(axis=1)
    score = ((sizes - records * rate) ** 2).sum() / (records * rate * (1 - rate))
    spread = math.sqrt(samples * (2 + 1 / (records * rate * (1 - rate))))
    assert abs(score - samples) < 6 * spread
    # Next-door records are no likelier together than others.
    together = (member[:, 1:] & member[:, :-1]).mean(axis=0).sum()
    error = math.sqrt(records * rate**2 * (1 - rate**2 + 2 * rate) / samples)
    assert abs(together - (records - 1) * rate**2) < 6 * error


def test_poisson_samples_at_the_ends(make):
    rng = make(13)
    assert rng.poisson_sample(10, 0.0).tolist() == []
    assert rng.poisson_sample(10, 1.0).tolist() == list(range(10))
    assert rng.poisson_sample(0, 0.5).tolist() == []
    assert rng.poisson_sample(1000, 1e-300).tolist() == []
    assert rng.poisson_sample(5, math.nextafter(1, 0)).tolist() == list(range(5))
    for records, rate in ((-1, 0.5), (10, -0.1), (10, 1.1), (10, math.nan)):
        with pytest.raises(SettingError):
            rng.poisson_sample(records, rate)


def test_poisson_samples_of_many_records(make):
    records, rate = 3_000_000, 0.003
    sample = make(14).poisson_sample(records, rate).numpy()
    assert stats.binomtest(sample.size, records, rate).pvalue > 1e-6
    assert stats.kstest(sample / records, "uniform").pvalue > 1e-6
    gaps = np.bincount(np.minimum(np.diff(sample), 1000))[1:]
    law = np.append(stats.geom.pmf(np.arange(1, 1000), rate), stats.geom.sf(999, rate))
    pooled, expected = gaps.reshape(-1, 20).sum(1), law.reshape(-1, 20).sum(1)
    assert stats.chisquare(pooled, expected * pooled.sum()).pvalue > 1e-6


def test_choices_follow_their_logits(make):
    logits = torch.tensor([0.0, 1.0, -1.0, 2.5])
    chosen = make(15).choose(logits.expand(300, 500, 4))
    assert chosen.shape == (300, 500)
    counts = np.bincount(chosen.ravel().numpy(), minlength=4)
    assert stats.chisquare(counts, 150_000 * special.softmax(logits.double().numpy())).pvalue > 1e-6


def test_children_are_independent(make):
    rng = make(16)
    zeros = torch.zeros(50_000, dtype=torch.float64)
    family = [rng, rng.spawn(0), rng.spawn(1), rng.spawn(2**40), rng.spawn(1).spawn(0)]
    noises = torch.stack([member.add_gaussian(zeros, 1.0) for member in family])
    correlation = torch.corrcoef(noises) - torch.eye(len(family), dtype=torch.float64)
    assert correlation.abs().max() < 6 / math.sqrt(50_000)
    assert {type(member) for member in family} == {type(rng)}


def test_reading_numbers_changes_nothing(make):
    rng, undisturbed = make(17), make(17)
    for _ in range(3):
        rng.rounding(1.0, 10**6)
        rng.rounding(1.0, 10**6, norm=1)
        assert rng.kind in KINDS
        assert rng.assumptions
    value = torch.zeros(1000)
    assert torch.equal(rng.add_gaussian(value, 1.0), undisturbed.add_gaussian(value, 1.0))


def test_the_generator_goes_on(make):
    rng = make(19)
    assert rng.generator is rng.generator
    first, second = torch.rand(5, generator=rng.generator), torch.rand(5, generator=rng.generator)
    assert not torch.equal(first, second)
    assert torch.equal(torch.rand(5, generator=make(19).generator), first)


def test_both_are_randomness(make):
    assert isinstance(make(20), Randomness)


def streams(block):
    return Bits(KEY, block)


def add_bits(old, where, bits, new):
    np.add(old, bits.uniform(old.shape), out=new, casting="same_kind")


@pytest.mark.parametrize("count", [0, 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17])
def test_blocks_cover_everything_once_with_a_stream_of_their_own(count, threads):
    for number in (1, 3):
        threads(number)
        seen = np.zeros(count, dtype=int)
        first = {}

        def work(block, bits, seen=seen, first=first):
            seen[block] += 1
            first[block.start] = bits.integer(64)

        in_blocks(count, streams, work)
        assert (seen == 1).all()
        pieces = -(-count // BLOCK)
        starts = [count * piece // pieces for piece in range(pieces)]
        assert first == {start: Bits(KEY, number).integer(64) for number, start in enumerate(starts)}


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX says so where another test has imported it
def test_blocks_are_worked_on_in_a_forked_process_too(threads):
    threads(3)
    here = _sum_of_blocks()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply_async(_sum_of_blocks).get(timeout=120) == here


def _sum_of_blocks():
    # Without torch's own operations, whose threads do not survive a fork.
    values = np.empty(3 * BLOCK)

    def work(block, bits):
        values[block] = bits.uniform((block.stop - block.start,))

    in_blocks(3 * BLOCK, streams, work)
    return float(values.sum())


def test_an_error_in_a_thread_is_an_error(threads):
    threads(2)

    def work(block, bits):
        raise NoiseproofError("this block is bad.")

    with pytest.raises(NoiseproofError, match="this block"):
        in_blocks(2 * BLOCK, streams, work)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_shape_dtype_and_value_stay(dtype):
    value = torch.arange(24.0).reshape(2, 3, 4).to(dtype)
    result = add_in_blocks(value, None, streams, add_bits)
    assert result.shape == value.shape
    assert result.dtype == dtype
    assert torch.equal(value, torch.arange(24.0).reshape(2, 3, 4).to(dtype))
    work = torch.float64 if dtype == torch.float64 else torch.float32
    expected = value.to(work) + torch.from_numpy(Bits(KEY, 0).uniform((2, 3, 4)))
    assert torch.allclose(result, expected.to(dtype))


@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded", "needing gradients"])
def test_the_layout_of_the_memory_does_not_matter(layout):
    value = {
        "transposed": torch.rand(30, 40).t(),
        "strided": torch.rand(30, 40)[::2, 1::3],
        "expanded": torch.rand(30, 1).expand(30, 40),
        "needing gradients": torch.rand(30, 40, requires_grad=True),
    }[layout]
    plain = value.detach().clone(memory_format=torch.contiguous_format)
    result = add_in_blocks(value, None, streams, add_bits)
    assert torch.equal(result, add_in_blocks(plain, None, streams, add_bits))
    assert not result.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_result_can_be_written_where_the_value_is_or_elsewhere(dtype):
    value = torch.rand(BLOCK + 5, dtype=torch.float32).to(dtype)
    expected = add_in_blocks(value, None, streams, add_bits)
    elsewhere = torch.empty(2, BLOCK + 5, dtype=dtype).t()[:, 0]  # not contiguous
    assert add_in_blocks(value, elsewhere, streams, add_bits) is elsewhere
    assert torch.equal(elsewhere, expected)
    assert add_in_blocks(value, value, streams, add_bits) is value
    assert torch.equal(value, expected)


def test_what_cannot_be_released_is_refused_without_being_told():
    for bad in (float("nan"), float("inf"), -float("inf")):
        value = torch.tensor([271828.0, bad])
        with pytest.raises(NoiseproofError, match="NaN or infinite") as error:
            check_value(value)
        assert "271828" not in str(error.value)
    with pytest.raises(SettingError, match="int64"):
        check_value(torch.tensor([271828]))
    for out in (torch.empty(3), torch.empty(2, dtype=torch.float64)):
        with pytest.raises(SettingError, match="out must have"):
            check_value(torch.ones(2), out)


def test_values_whose_sum_overflows_are_values():
    check_value(torch.full((10,), 3e38))
    check_value(torch.empty(0))


INFINITY = float("inf")


class Chosen:
    """Bits that were chosen."""

    def __init__(self, *values: int) -> None:
        self.values = list(values)

    def integer(self, bits: int) -> int:
        return self.values.pop(0)


def test_frequencies_are_the_probabilities():
    # Chi-square: a false alarm once in 10^6 each.
    for logits in ([0.0, 1.0, -2.0, 0.5], [5.0, 5.0], [-800.0, -801.0, -803.0], list(np.linspace(-4, 3, 30))):
        chosen = choose(torch.tensor(logits).expand(200_000, -1), Bits(KEY))
        counts = np.bincount(chosen.numpy(), minlength=len(logits))
        assert stats.chisquare(counts, 200_000 * special.softmax(np.array(logits))).pvalue > 1e-6


def test_rows_are_chosen_independently():
    chosen = choose(torch.zeros(100_000, 2, 2), Bits(KEY))
    assert chosen.shape == (100_000, 2)
    counts = np.bincount((2 * chosen[:, 0] + chosen[:, 1]).numpy(), minlength=4)
    assert stats.chisquare(counts).pvalue > 1e-6


def test_large_and_small_tables_choose_alike(monkeypatch):
    logits = torch.randn(1000, 7, generator=torch.Generator().manual_seed(0))
    whole = choose(logits, Bits(KEY))
    monkeypatch.setattr(randomness, "_ENTRIES", 100)
    assert torch.equal(choose(logits, Bits(KEY)), whole)


def test_what_is_impossible_is_never_chosen():
    logits = torch.tensor([-INFINITY, 0.0, -INFINITY, -1.0, -INFINITY]).expand(50_000, -1)
    assert set(choose(logits, Bits(KEY)).tolist()) == {1, 3}
    assert choose(torch.tensor([-INFINITY, 3.0]), Bits(KEY)).item() == 1
    assert choose(torch.tensor([-1e308, 1e308], dtype=torch.float64), Bits(KEY)).item() == 1


def test_adding_a_number_to_all_logits_changes_nothing():
    logits = torch.tensor([0.0, 0.25, -1.5], dtype=torch.float64).expand(10_000, -1)
    assert torch.equal(choose(logits, Bits(KEY)), choose(logits + 2.0**20, Bits(KEY)))


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(st.floats(-30, 30), min_size=2, max_size=8), st.sampled_from([100, 250]), st.data())
def test_a_boundary_is_decided_right_however_near(logits, exponent, data):
    boundary = data.draw(st.integers(1, len(logits) - 1))
    length = 64 + 256
    with mpmath.workprec(500):
        weights = [mpmath.exp(logit) for logit in logits]
        uniform = int(mpmath.ldexp(sum(weights[:boundary]) / sum(weights), length))
    for distance, index in ((-1, boundary - 1), (1, boundary)):
        bits = uniform + distance * 2 ** (length - exponent)
        more = Chosen(bits >> 128 & (2**128 - 1), bits & (2**128 - 1))
        assert randomness._choose_exactly(np.array(logits), bits >> 256, more) == index
        # At a distance of 2^-250 the first 192 bits were not enough.
        assert len(more.values) == (1 if exponent == 100 else 0)


def test_exact_choices_agree_with_float_ones():
    logits = np.random.default_rng(0).normal(size=(300, 6)) * 3
    quick = randomness._choose_rows(logits, Bits(KEY))
    words = Bits(KEY).words(300)
    rest = Bits(KEY, 1)
    exact = [randomness._choose_exactly(row, int(word), rest) for row, word in zip(logits, words, strict=True)]
    assert quick.tolist() == exact


def test_rows_near_a_boundary_are_decided_exactly(monkeypatch):
    decided = []
    exact = randomness._choose_exactly

    def spy(*arguments):
        decided.append(arguments)
        return exact(*arguments)

    monkeypatch.setattr(randomness, "_choose_exactly", spy)

    class Near:
        def __init__(self, distance):
            self.word = (1 << 63) + (distance << 11)

        def words(self, count):
            return np.array([self.word], dtype=np.uint64)

        def integer(self, bits):
            return 1 << 100

    logits = np.zeros((1, 2))
    for distance, chosen in ((-1, 0), (0, 1), (1, 1)):
        assert randomness._choose_rows(logits, Near(distance)).tolist() == [chosen]
    assert len(decided) == 3
    assert randomness._choose_rows(logits, Near(1 << 20)).tolist() == [1]
    assert len(decided) == 3


@pytest.mark.parametrize("logits", [[0.0, float("nan")], [INFINITY, 0.0], [-INFINITY, -INFINITY], [], 3.0], ids=str)
def test_what_cannot_be_chosen_by_is_refused(logits):
    with pytest.raises(NoiseproofError):
        choose(torch.tensor(logits), Bits(KEY))


def test_no_rows_are_no_choices():
    assert choose(torch.empty(0, 3), Bits(KEY)).shape == (0,)
