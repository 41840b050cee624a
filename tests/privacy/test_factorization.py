"""Strategies of correlated noise: their sensitivity, their error, and the noise that they stream."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from noiseproof.errors import SettingError
from noiseproof.privacy.factorization import (
    PREFIX_SUMS,
    Banded,
    Buffered,
    Dense,
    Participation,
    Strategy,
    Tree,
    Workload,
)
from noiseproof.privacy.strategies import strategy


def patterns(participation: Participation) -> list[tuple[int, ...]]:
    """Every set of steps that a record may take part in."""
    return [
        chosen
        for size in range(1, participation.most + 1)
        for chosen in itertools.combinations(range(participation.steps), size)
        if all(_apart(later - earlier, participation) for earlier, later in itertools.pairwise(chosen))
    ]


def _apart(steps: int, participation: Participation) -> bool:
    return steps % participation.separation == 0 if participation.fixed else steps >= participation.separation


def by_brute_force(found: Strategy) -> float:
    """The largest norm of C times a record's gradients, where all of C^T C is non-negative."""
    matrix = found.matrix()
    assert (matrix.T @ matrix >= -1e-12).all()
    return max(float(np.linalg.norm(matrix[:, list(chosen)].sum(1))) for chosen in patterns(found.participation))


participations = st.builds(Participation, st.integers(1, 11), st.integers(1, 4), st.integers(1, 6), st.booleans())


@given(participations, st.data())
@settings(max_examples=60, deadline=None)
def test_the_heaviest_participation_is_that_of_all_patterns(participation: Participation, data: st.DataObject) -> None:
    weights = np.array(data.draw(st.lists(st.floats(0, 9), min_size=participation.steps, max_size=participation.steps)))
    best = max(weights[list(chosen)].sum() for chosen in patterns(participation))
    assert participation.heaviest(weights) == pytest.approx(best)


@given(participations, st.data())
@settings(max_examples=60, deadline=None)
def test_a_banded_strategys_sensitivity_is_exact(participation: Participation, data: st.DataObject) -> None:
    bands = data.draw(st.integers(1, min(participation.steps, participation.separation)))
    rows = np.array(
        data.draw(
            st.lists(st.floats(0.1, 2), min_size=participation.steps * bands, max_size=participation.steps * bands)
        )
    ).reshape(participation.steps, bands)
    found = Banded(rows, participation)
    assert found.sensitivity == pytest.approx(by_brute_force(found))


@given(participations, st.lists(st.floats(0, 1), min_size=0, max_size=5))
@settings(max_examples=60, deadline=None)
def test_a_toeplitz_strategy_that_never_increases_is_exact_with_any_number_of_bands(
    participation: Participation, free: list[float]
) -> None:
    row = np.array([1.0, *sorted(free, reverse=True)])[None, : participation.steps]
    found = Banded(row, participation, toeplitz=True)
    assert found.sensitivity == pytest.approx(by_brute_force(found))


@given(participations)
@settings(max_examples=30, deadline=None)
def test_a_buffered_strategys_sensitivity_is_exact(participation: Participation) -> None:
    found = Buffered(np.array([0.9, 0.3]), np.array([0.2, 0.5]), participation)
    assert found.sensitivity == pytest.approx(by_brute_force(found))


@given(participations)
@settings(max_examples=60, deadline=None)
def test_a_trees_sensitivity_is_never_below_that_of_all_patterns(participation: Participation) -> None:
    tree = Tree(participation)
    assert tree.sensitivity >= by_brute_force(tree) - 1e-9
    if participation.most == 1:
        assert tree.sensitivity == pytest.approx(by_brute_force(tree))


@pytest.mark.parametrize("workload", [PREFIX_SUMS, Workload(0.9), Workload(0.5, tuple(np.linspace(1, 0.1, 24)))])
def test_variances_are_those_of_the_dense_matrices(workload: Workload) -> None:
    participation = Participation(24, 3, 6)
    found: list[Strategy] = [strategy("banded", participation, workload=workload)]
    if workload.lr is None:
        found.append(strategy("toeplitz", participation, workload=workload))
        found.append(strategy("buffered", participation, buffers=2, workload=workload))
    for one in found:
        left = workload.matrix(24) @ np.linalg.inv(one.matrix())
        assert one.variances(workload) == pytest.approx(np.square(left).sum(1))


@pytest.mark.parametrize("name", ["toeplitz", "banded", "buffered", "dense"])
def test_a_stream_adds_exactly_the_strategys_noise(name: str) -> None:
    steps, size = 37, 5
    found = strategy(name, Participation(steps, 4, 10, fixed=True))  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(3)
    gradients = torch.randn(steps, size, generator=generator, dtype=torch.float64)
    drawn: list[torch.Tensor] = []

    def noise(vector: torch.Tensor) -> torch.Tensor:
        drawn.append(torch.randn(size, generator=generator, dtype=torch.float64))
        return vector + drawn[-1]

    stream = found.start(size, gradients)
    released = torch.stack([stream.release(gradient, noise) for gradient in gradients])
    assert found.matrix() @ (released - gradients).numpy() == pytest.approx(torch.stack(drawn).numpy())


def _sums_of(found: Strategy, gradients: torch.Tensor) -> torch.Tensor:
    """What a stream hands to `noise`."""
    seen: list[torch.Tensor] = []

    def keep(vector: torch.Tensor) -> torch.Tensor:
        seen.append(vector.clone())
        return vector

    stream = found.start(gradients.shape[1], gradients)
    for gradient in gradients:
        stream.release(gradient, keep)
    return torch.stack(seen)


@pytest.mark.parametrize("name", ["tree", "toeplitz", "banded", "buffered", "dense"])
def test_noise_is_added_to_the_strategys_own_sums_and_to_nothing_else(name: str) -> None:
    gradients = torch.randn(23, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = strategy(name, Participation(23, 3, 8, fixed=True))  # type: ignore[arg-type]
    assert found.matrix() @ gradients.numpy() == pytest.approx(_sums_of(found, gradients).numpy())


@pytest.mark.parametrize("name", ["tree", "toeplitz", "banded", "buffered", "dense"])
def test_iterates_have_the_stated_variance(name: str) -> None:
    """Each step's mean square of 40,000 draws lies within 6 standard errors: false alarms below 1e-7 a test."""
    steps, size = 16, 40_000
    found = strategy(name, Participation(steps, 2, 8, fixed=True))  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(5)
    stream = found.start(size, torch.zeros(1))
    zero = torch.zeros(size)
    released = torch.stack(
        [stream.release(zero, lambda v: v + torch.randn(size, generator=generator)) for _ in range(steps)]
    )
    seen = released.cumsum(0).double().square().mean(1).numpy()
    assert seen == pytest.approx(found.variances(), rel=6 * math.sqrt(2 / size))


@pytest.mark.parametrize("name", ["tree", "toeplitz", "banded", "buffered", "dense"])
def test_a_stream_goes_on_from_its_state(name: str) -> None:
    found = strategy(name, Participation(9, 3, 4, fixed=True))  # type: ignore[arg-type]
    gradients = torch.randn(9, 4, generator=torch.Generator().manual_seed(2))
    noises = torch.randn(40, 4, generator=torch.Generator().manual_seed(4))

    def run(interrupted: bool) -> torch.Tensor:
        drawn = iter(noises)
        stream = found.start(4, gradients)
        released = []
        for step, gradient in enumerate(gradients):
            if interrupted and step == 5:
                state = {key: value.clone() for key, value in stream.state().items()}
                stream = found.start(4, gradients)
                stream.restore(state, 5)
            released.append(stream.release(gradient, lambda vector: vector + next(drawn)))
        return torch.stack(released)

    assert torch.equal(run(True), run(False))


@pytest.mark.parametrize("name", ["toeplitz", "banded", "buffered", "dense"])
@pytest.mark.parametrize("lost", [range(3, 4), range(5, 14)])
def test_lost_steps_leave_their_rows_and_columns_out(name: str, lost: range) -> None:
    found = strategy(name, Participation(20, 2, 10, fixed=True))  # type: ignore[arg-type]
    gradients = torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    stream, released, seen = found.start(3, gradients), [], []
    for step, gradient in enumerate(gradients):
        if step in lost:
            stream.skip(1)
        else:
            released.append(stream.release(gradient, lambda query: seen.append(query.clone()) or query + 1.0))
    kept = [step for step in range(20) if step not in lost]
    matrix = found.matrix()[np.ix_(kept, kept)]
    assert torch.stack(seen).numpy() == pytest.approx(matrix @ gradients[kept].numpy())
    assert matrix @ torch.stack(released).numpy() == pytest.approx(torch.stack(seen).numpy() + 1.0)


def test_a_release_does_not_change_when_an_optimizer_changes_what_it_was_given() -> None:
    found = strategy("toeplitz", Participation(10, 2, 5))
    gradients = torch.randn(10, 3, generator=torch.Generator().manual_seed(8))

    def run(change: bool) -> torch.Tensor:
        stream, released = found.start(3, gradients), []
        for gradient in gradients:
            one = stream.release(gradient, lambda query: query + 1.0)
            released.append(one.clone())
            if change:
                one.zero_()
        return torch.stack(released)

    assert torch.equal(run(True), run(False))


@pytest.mark.parametrize(("times", "bands"), [(1, 12), (3, 8), (6, 4)])
def test_errors_and_sensitivities_are_those_of_jax_privacy(times: int, bands: int) -> None:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", True)
    from jax_privacy.matrix_factorization import sensitivity, toeplitz

    steps = 24
    participation = Participation(steps, times, steps // times)
    ours = strategy("toeplitz", participation, bands=bands)
    assert isinstance(ours, Banded)
    row = jax.numpy.array(ours.rows[-1])
    squared = toeplitz.minsep_sensitivity_squared(row, min_sep=steps // times, max_participations=times, n=steps)
    assert ours.sensitivity == pytest.approx(math.sqrt(float(squared)), rel=1e-6)
    assert ours.variances() == pytest.approx(np.asarray(toeplitz.per_query_error(strategy_coef=row, n=steps)), rel=1e-6)

    best = strategy("banded", participation, bands=bands)
    matrix = jax.numpy.array(best.matrix())
    theirs = sensitivity.get_sensitivity_banded(matrix, min_sep=steps // times, max_participations=times)
    assert best.sensitivity == pytest.approx(theirs, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("times", "bands"), [(1, 12), (3, 8), (6, 4)])
def test_banded_strategies_leave_no_more_error_than_jax_privacys(times: int, bands: int) -> None:
    pytest.importorskip("jax").config.update("jax_enable_x64", True)
    from jax_privacy.matrix_factorization import banded

    steps = 24
    best = strategy("banded", Participation(steps, times, steps // times), bands=bands)
    peer = np.asarray(banded.optimize(steps, bands=bands).materialize())
    peer_error = np.linalg.norm(np.tri(steps) @ np.linalg.inv(peer)) * math.sqrt(times / steps)
    assert best.error() <= 1.0001 * peer_error


@given(st.integers(1, 5), st.integers(1, 4), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_no_gradients_in_a_fixed_order_move_a_dense_strategy_further_than_its_sensitivity(
    apart: int, times: int, random: object
) -> None:
    found = strategy("dense", Participation(apart * times, times, apart, fixed=True))
    generator = torch.Generator().manual_seed(random.randrange(2**32))  # type: ignore[attr-defined]
    for first in range(apart):
        gradients = torch.zeros(apart * times, 3, dtype=torch.float64)
        gradients[first::apart] = functional.normalize(torch.randn(times, 3, generator=generator, dtype=torch.float64))
        assert np.linalg.norm(found.matrix() @ gradients.numpy()) == pytest.approx(found.sensitivity, rel=1e-6)


def test_a_dense_strategy_that_is_not_orthogonal_has_a_larger_sensitivity() -> None:
    """The bound is by what the columns are, not by what an optimiser promised of them."""
    matrix = np.tri(4)
    found = Dense(matrix, Participation(4, 2, 2, fixed=True))
    assert found.matrix() == pytest.approx(matrix)
    assert found.sensitivity == pytest.approx(max(np.linalg.norm(matrix[:, first::2].sum(1)) for first in (0, 1)))


@pytest.mark.parametrize("times", [1, 3, 6])
def test_dense_strategies_leave_no_more_error_than_jax_privacys(times: int) -> None:
    pytest.importorskip("jax").config.update("jax_enable_x64", True)
    from jax_privacy.matrix_factorization import dense, sensitivity

    steps = 24
    best = strategy("dense", Participation(steps, times, steps // times, fixed=True))
    assert best.sensitivity == pytest.approx(sensitivity.fixed_epoch_sensitivity(best.matrix(), times), rel=1e-6)
    peer = np.asarray(dense.optimize(steps, epochs=times, max_optimizer_steps=300))
    peer_error = np.linalg.norm(np.tri(steps) @ np.linalg.inv(peer)) * math.sqrt(1 / steps)
    peer_error *= sensitivity.fixed_epoch_sensitivity(peer, times)
    assert best.error() <= (1 + 1e-6) * peer_error  # theirs stops where its slope is below 1e-3
    assert best.variances() == pytest.approx(np.asarray(dense.per_query_error(strategy_matrix=best.matrix())), rel=1e-6)


@pytest.mark.parametrize("times", [1, 3])
def test_a_buffered_strategy_is_jax_privacys_of_the_same_numbers(times: int) -> None:
    pytest.importorskip("jax").config.update("jax_enable_x64", True)
    from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz

    steps = 24
    ours = strategy("buffered", Participation(steps, times, steps // times), buffers=2)
    assert isinstance(ours, Buffered)
    peer = buffered_toeplitz.BufferedToeplitz.build(buf_decay=ours.decays, output_scale=ours.weights)
    row = peer.toeplitz_coefs(steps)
    assert ours.matrix() == pytest.approx(np.asarray(peer.materialize(steps)), rel=1e-6)
    assert ours.variances() == pytest.approx(np.asarray(toeplitz.per_query_error(strategy_coef=row, n=steps)), rel=1e-6)
    squared = toeplitz.minsep_sensitivity_squared(row, min_sep=steps // times, max_participations=times, n=steps)
    assert ours.sensitivity == pytest.approx(math.sqrt(float(squared)), rel=1e-6)


@pytest.mark.parametrize(
    ("steps", "times", "apart", "workload"),
    [
        (30, 1, 30, PREFIX_SUMS),
        (60, 3, 20, PREFIX_SUMS),
        (60, 12, 5, PREFIX_SUMS),
        (53, 5, 12, Workload(0.9)),
        (40, 4, 10, Workload(0.5, tuple(np.linspace(1, 0.05, 40)))),
    ],
)
def test_a_dense_strategy_has_the_least_error_that_there_is(
    steps: int, times: int, apart: int, workload: Workload
) -> None:
    participation = Participation(steps, times, apart, fixed=True)
    found = strategy("dense", participation, workload=workload)
    assert isinstance(found, Dense)
    assert found.error(workload) == pytest.approx(found.least_error(workload), rel=1e-4)


def test_what_is_called_the_least_error_is_below_that_of_any_strategy() -> None:
    """Also where it is computed from strategies that are not the best: orthogonal columns by chance, mixed with the best."""
    participation = Participation(24, 3, 8, fixed=True)
    best = strategy("dense", participation)
    gram, place = best.matrix().T @ best.matrix(), np.arange(24) % 8
    generator, bounds = np.random.default_rng(0), []
    for _ in range(20):
        other = generator.normal(size=(24, 24))
        other = other @ other.T / 24 + np.eye(24)
        other[(place == place[:, None]) & ~np.eye(24, dtype=bool)] = 0
        other += max(0, 0.1 - np.linalg.eigvalsh(other)[0]) * np.eye(24)
        mixed = 0.9 * gram + 0.1 * other / np.trace(other) * 8
        found = Dense(np.linalg.cholesky(mixed[::-1, ::-1]).T[::-1, ::-1], participation)
        assert found.error() > best.error()
        bounds.append(found.least_error())
    assert max(bounds) <= best.error() * (1 + 1e-9)
    assert max(bounds) > 0.5 * best.error()


def test_correlated_noise_leaves_less_error_than_independent_noise() -> None:
    participation = Participation(200, 4, 50, fixed=True)
    independent = strategy("toeplitz", participation, bands=1).error()
    names = ("tree", "buffered", "toeplitz", "banded", "dense")
    errors = [strategy(name, participation).error() for name in names]  # type: ignore[arg-type]
    assert sorted([independent, *errors], reverse=True) == [independent, *errors]


def test_a_schedule_is_worth_knowing() -> None:
    participation = Participation(100, 4, 25)
    workload = Workload(0.9, tuple(np.linspace(1, 0.01, 100)))
    fitted = strategy("banded", participation, workload=workload)
    assert fitted.error(workload) < strategy("banded", participation).error(workload)


def test_memory_is_two_vectors_a_band_or_buffer() -> None:
    participation = Participation(64, 4, 16)
    assert strategy("toeplitz", participation, bands=8).vectors == 14
    assert strategy("buffered", participation, buffers=3).vectors == 6
    assert strategy("tree", participation).vectors == 14


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Participation(0), "1 or more"),
        (lambda: strategy("toeplitz", Participation(20, 4, 5), bands=6), "at most as many bands"),
        (lambda: strategy("banded", Participation(20, 4, 5), bands=6), "at most as many bands"),
        (lambda: strategy("buffered", Participation(20), buffers=40), "1 to 16 buffers"),
        (lambda: strategy("toeplitz", Participation(3), workload=Workload(0, (1.0, 0.5, 0.1))), "take a banded one"),
        (lambda: strategy("banded", Participation(4), workload=Workload(0, (1.0,))), "as many learning rates"),
        (lambda: Banded(np.array([[1.0, 2.0]]), Participation(8, 2, 1), toeplitz=True), "never increase"),
        (lambda: Buffered(np.array([0.5]), np.array([1.5]), Participation(4)), "sum to at most 1"),
    ],
)
def test_what_no_proof_covers_is_refused(call: object, words: str) -> None:
    with pytest.raises(SettingError, match=words):
        call()  # type: ignore[operator]
