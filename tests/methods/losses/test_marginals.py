"""marginals: noisy counts within the budget, and records that have them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from noiseproof import load_bundle, train
from noiseproof.audits import audit
from noiseproof.data.lazy import StoredTensor
from noiseproof.data.schema import Schema
from noiseproof.data.tables import code, decode
from noiseproof.errors import DataError, SettingError
from noiseproof.methods.losses import Marginals, marginals
from noiseproof.methods.losses.coding import write
from noiseproof.methods.losses.conditions import Conditions
from noiseproof.methods.losses.counts import Counts, Groups, View, _on_simplex, count_event, denoised
from noiseproof.methods.losses.mixture import Measurement, Mixture, evenly
from noiseproof.methods.losses.ranges import halves, slot_counts, smoothed
from noiseproof.privacy import Budget, EventLog, Reproducible, accountants
from noiseproof.privacy.events import GaussianDpEvent, PureDpEvent

QUICK = {"steps": 40, "components": 64}


@pytest.fixture(scope="module")
def release(table):
    return train("marginals", table, epsilon=5, seed=0, **QUICK)


def test_synthetic_records_look_like_the_private_ones(release, table, test_table):
    from noiseproof.methods.losses.quality import quality

    found = quality(release.dataset, table, test_table)
    assert found.synthetic_to_real > 0.8
    assert max(found.pmf_errors[name] for name in ("city", "same", "income")) < 0.05
    assert release.dataset.features.shape == table.features.shape


def test_columns_keep_their_types_and_what_nobody_has_stays_rare(release, table):
    frame = decode(table.public, release.dataset.features, release.dataset.labels)
    assert list(frame.columns) == ["age", "city", "money", "same", "income"]
    assert set(frame["same"]) == {"always"}
    assert float((frame["city"] == "never").mean()) < 0.02
    assert frame["age"].dtype == "int64"
    assert 0.05 < float(frame["money"].isna().mean()) < 0.15


def test_the_cards_epsilon_is_the_accountants_for_the_events_and_within_the_budget(release):
    proven = release.card.proven
    assert proven.epsilon <= 5
    event = Marginals(**QUICK).plan(View(release.public), 2000, Budget(5.0, 1e-5)).event
    assert proven.epsilon == pytest.approx(accountants.epsilon(event, 1e-5, accountant="gdp").epsilon, rel=1e-9)
    noted = sum(count for _, count in release.event_log)
    assert noted == 5 + release.card.ran["pairs counted"] + release.card.ran["pairs chosen"]


def _view(*sizes):
    """Columns of numbers of so many slots, the target last."""
    return SimpleNamespace(sizes=sizes, widths=(*(torch.ones(size) for size in sizes[:-1]), None))


@pytest.mark.parametrize("neighbours", ["add-or-remove", "replace-one"])
@settings(max_examples=15, deadline=None)
@given(
    epsilon=st.floats(0.05, 20),
    records=st.integers(50, 10**7),
    sizes=st.lists(st.integers(1, 90), min_size=2, max_size=30),
)
def test_a_plan_spends_no_more_than_the_budget_whatever_the_table(neighbours, epsilon, records, sizes):
    budget = Budget(epsilon, 1e-6, neighbours)
    plan = Marginals().plan(_view(*sizes), records, budget)
    spent = plan.spent(plan.event, 1e-6)
    assert spent.epsilon <= epsilon
    assert plan.chosen <= plan.pairs <= len(sizes) * (len(sizes) - 1) / 2


@settings(max_examples=25, deadline=None)
@given(place=st.integers(0, 399), seed=st.integers(0, 99))
def test_one_record_moves_one_count_of_a_table_by_one_and_an_error_by_at_most_one(table, place, seed):
    fewer = table.take(torch.cat([torch.arange(place), torch.arange(place + 1, len(table))]))
    counts = [_counts(part, seed) for part in (table, fewer)]
    mixture = Mixture(View(table.public).sizes, 8, torch.Generator().manual_seed(seed))
    model = mixture.pairs()
    for pair in [(0, 1), (1, 4), (0, 4)]:
        exact = [one._exact(pair) for one in counts]
        assert (exact[0] - exact[1]).abs().sum() == 1
        errors = [(one - 2000 * model[pair]).abs().sum() for one in exact]
        assert abs(errors[0] - errors[1]) <= 1 + 1e-9


def test_a_person_counts_for_one_however_many_records_they_have(table):
    groups = torch.arange(len(table)).clamp(max=1500)
    persons = replace(table, groups=groups)
    counts = _counts(persons, 0)
    assert counts.records == 1501
    for columns in [(0,), (0, 1), (1, 4)]:
        assert counts._exact(columns).sum().item() == pytest.approx(1501)
    without = persons.take((groups < 1500).nonzero().squeeze(1))
    difference = counts._exact((0, 1)) - _counts(without, 0)._exact((0, 1))
    assert difference.abs().sum().item() == pytest.approx(1)
    assert difference.norm() <= 1


def test_what_is_given_out_was_noted_before(table):
    log = EventLog()
    counts = Counts(table, View(table.public), "add-or-remove", _Broken(0), log)
    with pytest.raises(RuntimeError):
        counts.noised((0,), 7.0)
    assert log.runs == ((GaussianDpEvent(7.0), 1),)


def test_pairs_are_chosen_where_the_model_is_most_wrong_and_the_choice_is_noted(table):
    log = EventLog()
    view = View(table.public)
    counts = Counts(table, view, "add-or-remove", Reproducible(0), log)
    mixture = Mixture(view.sizes, 16, torch.Generator().manual_seed(0))
    shares = [counts._exact((column,)).float() / len(table) for column in range(5)]
    mixture.start_at(shares, spread=0.0)
    # Of the pairs without age, whose many cells drown in noise, city and income alone depend on each other.
    pairs = [(1, 2), (1, 4), (2, 4)]
    assert counts.choose(pairs, 1, mixture.pairs(), sigma=0.1, epsilon=1.0) == [(1, 4)]
    assert pairs == [(1, 2), (2, 4)]
    assert log.runs == ((PureDpEvent(1.0, bounded_range=True), 1),)


def test_a_small_budget_counts_few_pairs_and_those_with_the_target_first(table):
    plan = Marginals().plan(View(table.public), len(table), Budget(0.05))
    assert (plan.pairs, plan.chosen) == (4, 0)
    release = train("marginals", table, epsilon=0.05, seed=0, **QUICK)
    assert release.card.ran["pairs counted"] == 4
    assert release.card.proven.epsilon <= 0.05


def test_a_mixture_takes_on_the_marginals_that_it_is_fitted_to():
    generator = torch.Generator().manual_seed(0)
    joint = torch.tensor([[0.4, 0.0, 0.1], [0.0, 0.3, 0.2]])
    mixture = Mixture((2, 3), 64, generator)
    mixture.start_at([joint.sum(1), joint.sum(0)])
    mixture.fit([Measurement((0, 1), joint, 1e-3)], 400, 0.1)
    assert (mixture.pairs()[0, 1] - joint).abs().max() < 0.01
    drawn = mixture.sample(50_000)
    counted = torch.bincount(drawn[:, 0] * 3 + drawn[:, 1], minlength=6).view(2, 3) / 50_000
    assert (counted - joint).abs().max() < 0.02


def test_a_mixture_takes_on_triples_that_no_pair_shows():
    # Whether the first two columns are equal is the third: every pair is independent.
    joint = torch.zeros(2, 2, 2)
    for one, other in ((0, 0), (0, 1), (1, 0), (1, 1)):
        joint[one, other, int(one == other)] = 0.25
    mixture = Mixture((2, 2, 2), 64, torch.Generator().manual_seed(0))
    mixture.start_at([torch.full((2,), 0.5)] * 3)
    pairs = [Measurement(columns, torch.full((2, 2), 0.25), 1e-3) for columns in ((0, 1), (0, 2), (1, 2))]
    mixture.fit(pairs, 100, 0.1)
    drawn = mixture.sample(20_000)
    assert abs(((drawn[:, 0] == drawn[:, 1]).long() == drawn[:, 2]).float().mean() - 0.5) < 0.1
    mixture.fit([*pairs, Measurement((0, 1, 2), joint, 1e-3)], 400, 0.1)
    drawn = mixture.sample(20_000)
    assert ((drawn[:, 0] == drawn[:, 1]).long() == drawn[:, 2]).float().mean() > 0.97
    assert all((table - 0.25).abs().max() < 0.02 for table in mixture.pairs().values())


def test_triples_are_counted_where_noise_would_not_hide_them():
    view = _view(24, 24, 24, 2)
    triples = {
        (records, epsilon): Marginals().plan(view, records, Budget(epsilon)).triples
        for records, epsilon in ((500, 1.0), (20_000, 0.01), (20_000, 3.0))
    }
    assert triples == {(500, 1.0): 0, (20_000, 0.01): 0, (20_000, 3.0): 3}
    assert Marginals(three_way=0.0).plan(view, 20_000, Budget(3.0)).triples == 0
    assert Marginals().plan(_view(24, 24, 24, 9), 10**6, Budget(3.0)).triples == 0


def test_triples_are_within_the_budget_and_noted(table):
    release = train("marginals", table, epsilon=100, seed=0, **QUICK)
    assert release.card.ran["triples counted"] == 6
    assert sum(count for _, count in release.event_log) == 5 + 10 + 6
    assert 99 < release.card.proven.epsilon <= 100


def test_few_records_have_few_components():
    assert [Marginals()._components(records) for records in (100, 4_000, 10**6)] == [256, 500, 1024]
    assert Marginals(components=7)._components(10**6) == 7


def test_numbers_lie_evenly_within_each_stratum():
    strata = torch.tensor([0, 2, 2, 0, 2, 2, 0])
    drawn = evenly(strata, torch.Generator().manual_seed(0))
    for stratum, count in ((0, 3), (2, 4)):
        assert (drawn[strata == stratum] * count).floor().sort().values.tolist() == list(range(count))


def test_the_target_is_as_frequent_among_rows_that_are_alike_as_it_is_likely():
    mixture = Mixture((2, 3), 4, torch.Generator().manual_seed(0))
    likely = torch.tensor([[0.2, 0.3, 0.5], [0.7, 0.1, 0.2]])
    first = torch.tensor([[1.0, 1e-12], [1e-12, 1.0]])
    mixture._logits = torch.cat([first, likely], dim=1).log().repeat(2, 1)
    drawn = mixture.sample(1000, even_target=True)
    counted = torch.bincount(drawn[:, 0] * 3 + drawn[:, 1], minlength=6).view(2, 3)
    assert (counted - 500 * likely).abs().max() <= 2


def test_columns_of_many_values_have_less_noise():
    few, many, target = Marginals().plan(_view(3, 200, 2), 1000, Budget(1.0, 1e-5)).one_way
    assert many < few < target


def test_the_more_noise_the_fewer_groups_of_a_number_and_the_more_of_the_budget_for_columns():
    view = _view(*[64] * 6, 2)
    plans = [Marginals().plan(view, records, Budget(1.0, 1e-5)) for records in (20_000, 4_000, 1_000, 300)]
    assert [plan.values for plan in plans] == [24, 11, 8, 8]
    assert [plan.pairs for plan in plans] == [21, 21, 6, 6]
    # Columns and pairs spend their shares of the same budget.
    shares = [(plan.one_way[0] / plan.target) ** -2 for plan in plans]
    assert shares == sorted(shares)
    fixed = Marginals(values=24, one_way=0.15).plan(view, 1_000, Budget(1.0, 1e-5))
    assert (fixed.values, fixed.pairs) == (24, 6)
    # Categories are told apart whatever the number's groups, so that coarser numbers would not help.
    named = SimpleNamespace(sizes=(64,) * 7, widths=(None,) * 7)
    assert Marginals().plan(named, 1_000, Budget(1.0, 1e-5)).pairs == 6


def test_where_noise_hides_a_number_it_is_taken_to_lie_about_evenly():
    counts, widths = torch.tensor([450.0, -50.0], dtype=torch.float64), torch.tensor([0.5, 0.5])
    noise = 200.0**2 * torch.eye(2, dtype=torch.float64)
    # The halves differ by 250 more than evenly, noise of variance 20,000 on that, 400 / 4 expected.
    kept = 250 * 100**2 / (100**2 + 20_000)
    found = smoothed(counts, widths, noise, doubted=True)
    torch.testing.assert_close(found, torch.tensor([200 + kept, 200 - kept], dtype=torch.float64))
    assert float(smoothed(counts, widths, noise)[0]) == pytest.approx(200 + 250 * (1 - 20_000 / 250**2))


def test_rare_values_are_joined_and_drawn_by_their_own_shares():
    numbers = torch.tensor([500.0, 0.0, 2.0, 3.0, 495.0])
    names = torch.tensor([900.0, 1.0, 98.0, 1.0])
    ranges = halves(4, missing=True)
    widths = (torch.full((4,), 0.25), None)
    by_ranges = Groups([ranges @ numbers.double(), names], widths, (ranges, None), (2.0, 2.0), 1000, 24)
    groups = Groups([numbers, names], widths, (None, None), (2.0, 2.0), 1000, 24)
    assert torch.allclose(by_ranges.fine[0], groups.fine[0].double(), atol=0.02)
    # The last slot of a number's is for what is missing, which is never joined with numbers.
    assert groups.of_slot[0].tolist() == [0, 0, 0, 0, 1]
    assert groups.of_slot[1].tolist() == [0, 2, 1, 2]
    drawn = groups.slot(0, torch.zeros(10_000, dtype=torch.int64), torch.Generator().manual_seed(0))
    shares = torch.bincount(drawn, minlength=5) / 10_000
    assert shares[4] == 0
    assert abs(shares[0] - 0.99) < 0.01


def test_differences_that_noise_explains_are_smoothed_away_and_others_stay():
    widths = torch.full((8,), 1 / 8)
    noise = torch.tensor([3.0, -4.0, 2.0, 1.0, -3.0, 0.0, 4.0, -3.0], dtype=torch.float64)
    flat = smoothed(100 + noise, widths, 64 * torch.eye(8))
    assert torch.allclose(flat, torch.full((8,), 100.0, dtype=torch.float64))
    peak = torch.tensor([0.0, 0.0, 0.0, 900.0, 0.0, 0.0, 0.0, 0.0, 50.0], dtype=torch.float64)
    kept = smoothed(peak, widths, 16 * torch.eye(9))
    assert kept[3] > 880
    assert kept[8] == 50  # missing
    assert kept[:8].sum().item() == pytest.approx(900)


@settings(max_examples=40, deadline=None)
@given(numbers=st.integers(1, 256), missing=st.booleans())
def test_a_record_adds_a_norm_of_one_to_the_ranges_that_hold_its_value(numbers, missing):
    ranges = halves(numbers, missing)
    assert ranges.min() >= 0
    assert ranges.norm(dim=0).max() <= 1
    assert ranges.norm(dim=0).min() > 1 - 1e-8
    assert torch.linalg.matrix_rank(ranges) == numbers + missing


def test_what_a_record_adds_to_the_counts_of_a_column_has_a_norm_of_one_at_most(table):
    persons = replace(table, groups=torch.arange(len(table)).clamp(max=1500))
    for records in (table, persons):
        fewer = records.take(torch.arange(1, len(table)) if records is table else torch.arange(1500))
        for column in range(5):
            both = [_counts(part, 0, sigma=1e4).exact((column,)) for part in (records, fewer)]
            assert (both[0] - both[1]).norm() <= 1
            assert (both[0] - both[1]).norm() > (0.999 if records is table else 0.1)


def test_counts_of_values_fit_those_of_ranges_and_are_as_many_as_records():
    generator = torch.Generator().manual_seed(0)
    true, ranges = torch.randint(50, (101,), generator=generator).double(), halves(100, missing=True)
    records = int(true.sum())
    noise = 30 * torch.randn(2000, len(ranges), generator=generator, dtype=torch.float64)
    found, covariance = slot_counts(ranges @ true, ranges, 30.0, records)
    assert torch.allclose(found, true)
    tried = torch.stack([slot_counts(ranges @ true + one, ranges, 30.0, records)[0] for one in noise])
    assert torch.allclose(tried.sum(1), torch.tensor(float(records), dtype=torch.float64))
    assert torch.allclose(tried.var(0), covariance.diagonal(), rtol=0.15)
    # Noise of the same budget on single values would add up to 212 in half of the range.
    assert tried[:, :50].sum(1).std() < 110


def test_a_number_of_which_noise_hides_everything_lies_evenly_and_not_where_noise_was():
    ranges, widths, true = halves(64, missing=False), torch.full((64,), 1 / 64), torch.full((64,), 400 / 64).double()
    noise = 3000 * torch.randn(20, len(ranges), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fine = [Groups([ranges @ true + one], (widths,), (ranges,), (3000.0,), 400, 24).fine[0] for one in noise]
    assert max(float((shares - 1 / 64).abs().sum()) for shares in fine) < 0.1


def test_categories_that_are_about_as_common_lend_each_other_their_counts_and_others_stay():
    true = torch.cat([torch.full((99,), 20.0), torch.full((1,), 5000.0)]).double()
    noisy = true + 30 * torch.randn(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = denoised(noisy, 30.0, 6980)
    assert found[99] == pytest.approx(noisy[99], abs=1)
    assert (found - true)[:99].abs().mean() < (noisy - true)[:99].abs().mean() / 3
    assert torch.allclose(denoised(noisy, 1e-3, 6980), noisy.clamp_min(0), atol=0.01)
    assert torch.equal(denoised(noisy[:3], 30.0, 6980), noisy[:3])


def test_a_few_categories_that_noise_hides_are_about_as_common():
    noise = 1200 * torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    fine = torch.stack(
        [Groups([torch.tensor([240.0, 160.0]) + one], (None,), (None,), (1200.0,), 400, 24).fine[0] for one in noise]
    )
    assert float((fine - 0.5).abs().max()) < 0.3
    torch.testing.assert_close(fine.sum(1), torch.ones(50, dtype=torch.float64))


def test_where_noise_would_hide_every_pair_columns_have_the_whole_budget():
    view, budget = _view(*[64] * 10, 2), Budget(0.1, 1e-5)
    plan = Marginals().plan(view, 300, budget)
    assert (plan.pairs, plan.chosen, plan.triples) == (0, 0, 0)
    assert 0.099 < plan.spent(plan.event, 1e-5).epsilon <= 0.1
    assert Marginals().plan(view, 3000, budget).pairs == 10
    assert Marginals(pairs=10).plan(view, 300, budget).pairs == 10
    with_pairs = Marginals(pairs=10).plan(view, 300, budget).one_way
    assert all(noise < less / 1.4 for noise, less in zip(plan.one_way, with_pairs, strict=True))


def test_exchanging_two_records_moves_counts_by_no_more_than_the_event_says(table):
    features, labels = table.features.clone(), table.labels.clone()
    features[0], labels[0] = table.features[1], table.labels[1]
    counts = [_counts(one, 0) for one in (table, replace(table, features=features, labels=labels))]
    moved = max(float((counts[0]._exact(pair) - counts[1]._exact(pair)).norm()) for pair in [(0, 1), (1, 4), (0, 4)])
    assert moved == pytest.approx(2**0.5)
    assert count_event(3.0, "replace-one").event.noise_multiplier * moved == pytest.approx(3.0)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20))
def test_shares_are_not_negative_and_one_together(values):
    shares = _on_simplex(torch.tensor(values, dtype=torch.float64))
    assert shares.min() >= 0
    assert shares.sum().item() == pytest.approx(1)


def test_every_row_meets_the_conditions(table):
    release = train("marginals", table, epsilon=5, seed=0, where="age >= 40 and city = a", rows=300, **QUICK)
    frame = decode(table.public, release.dataset.features, release.dataset.labels)
    assert len(frame) == 300
    assert frame["age"].min() >= 40
    assert set(frame["city"]) == {"a"}


def test_columns_may_be_compared_with_each_other(table):
    conditions = Conditions.read("age <= money").of(table.public)
    met = conditions.met(table.public, table.features, table.labels)
    frame = decode(table.public, table.features, table.labels)
    assert met.tolist() == ((frame["age"] <= frame["money"]) | frame["money"].isna()).tolist()


COUNTS = {"low": 0, "high": 1000, "integer": True}


@pytest.fixture(scope="module")
def bills():
    """Totals in cents, some summands missing, and a total with bounds that are narrower than its summands'."""
    drawn = torch.randint(0, 900, (400, 2), generator=torch.Generator().manual_seed(0)).numpy()
    frame = pd.DataFrame(
        {"drugs": drawn[:, 0], "beds": drawn[:, 1], "total": drawn.sum(1), "paid": ["no", "yes"] * 200}
    )
    frame["beds"] = frame["beds"].where(drawn[:, 0] % 10 > 0).astype("Int64")
    schema = Schema.model_validate(
        {
            "columns": {"drugs": COUNTS, "beds": {**COUNTS, "missing": True}, "total": {**COUNTS, "high": 1500}},
            "target": {"name": "paid", "classes": ["no", "yes"]},
        }
    )
    return code(frame, schema, name="bills")[0]


def test_a_total_is_the_sum_of_what_it_adds_up_in_every_row_that_has_it(bills):
    release = train("marginals", bills, epsilon=5, seed=0, where="total = drugs + beds", rows=500, **QUICK)
    frame = decode(bills.public, release.dataset.features, release.dataset.labels)
    whole = frame.dropna()
    assert len(frame) == 500
    assert 350 < len(whole) < 500
    assert (whole["total"] == whole["drugs"] + whole["beds"]).all()
    assert whole["total"].max() <= 1500


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("total = drugs + rooms", "'rooms', which the table does not have"),
        ("total >= drugs + beds", "compared with = alone"),
        ("total = drugs + drugs", "each once"),
        ("paid = drugs + beds", "'paid', which the table does not have"),
    ],
)
def test_a_total_that_does_not_fit_is_refused_before_anything_is_spent(bills, where, said):
    with pytest.raises(SettingError, match=said):
        train("marginals", bills, epsilon=5, seed=0, where=where)


def test_totals_are_of_whole_numbers_within_their_bounds(table, bills):
    with pytest.raises(SettingError, match="totals are of whole numbers"):
        Conditions.read("age = money + age").of(table.public)
    columns = tuple(
        replace(column, low=3000.0, high=4000.0) if column.name == "total" else column
        for column in bills.public.columns
    )
    with pytest.raises(SettingError, match="is never drugs"):
        Conditions.read("total = drugs + beds").of(replace(bills.public, columns=columns))


@pytest.mark.parametrize("written", ["%d.%m.%Y", "ISO8601"])
def test_dates_are_compared_as_days_and_a_rule_between_columns_is_for_rows_that_have_both(written):
    bounds = {"low": "2024-01-01", "high": "2024-12-31", "date": written}
    schema = Schema.model_validate(
        {
            "columns": {"in": bounds, "out": {**bounds, "missing": True}},
            "target": {"name": "ill", "classes": ["no", "yes"]},
        }
    )
    days = pd.DataFrame(
        {
            "in": ["2024-01-10", "2024-02-02", "2024-02-02", "2024-03-01"],
            "out": ["2024-02-02", "2024-01-10", None, "2024-03-01"],
            "ill": ["no", "yes"] * 2,
        }
    )
    records = code(days, schema, name="stays")[0]

    def met(where: str) -> list[bool]:
        return Conditions.read(where).of(records.public).met(records.public, records.features, records.labels).tolist()

    assert met("out >= in") == [True, False, True, True]
    assert met("out > 2024-01-31") == [True, False, False, True]
    with pytest.raises(SettingError, match="which is none that is written"):
        met("out > soon")


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("age", "is none"),
        ("size > 3", "does not have"),
        ("age > old", "which is none"),
        ("city > a", "categories"),
    ],
)
def test_conditions_that_do_not_fit_are_refused_before_anything_is_spent(table, where, said):
    with pytest.raises(SettingError, match=said):
        train("marginals", table, epsilon=5, seed=0, where=where)


def test_small_pictures_are_tables_of_their_pixels_and_large_ones_are_refused(pictures):
    release = train("marginals", pictures, epsilon=10, seed=0, rows=200, values=4, **QUICK)
    upper = release.dataset.features[release.dataset.labels == 0]
    assert upper[:, :, :4].mean() > upper[:, :, 4:].mean() + 0.3
    wide = replace(pictures.public, shape=(1, 28, 28))
    with pytest.raises(DataError, match="784 features"):
        View(wide)


def test_a_numeric_target_comes_back_within_its_bounds(table):
    public = replace(table.public, task="regression", classes=(), target_bounds=(0.0, 10.0))
    numbers = replace(table, labels=torch.rand(len(table)), public=public)
    release = train("marginals", numbers, epsilon=5, seed=0, rows=100, **QUICK)
    assert release.dataset.labels.is_floating_point()
    assert 0 <= float(release.dataset.labels.min()) <= float(release.dataset.labels.max()) <= 1


def test_a_bundle_keeps_the_records_and_the_card(release, tmp_path):
    kept = load_bundle(release.save(tmp_path / "bundle"))
    assert torch.equal(kept.dataset.features, release.dataset.features)
    assert kept.card == release.card


def test_many_records_are_kept_by_column_and_are_the_same(release, table, monkeypatch, tmp_path):
    monkeypatch.setattr(marginals, "SMALL", 0)
    many = train("marginals", table, epsilon=5, seed=0, **QUICK)
    assert isinstance(many.dataset.features, StoredTensor)
    assert torch.equal(many.dataset.features.read(), release.dataset.features)
    assert torch.equal(many.dataset.labels, release.dataset.labels)
    for one, name in ((many, "many.csv"), (release, "release.csv")):
        write(one, tmp_path / name)
    assert (tmp_path / "many.csv").read_bytes() == (tmp_path / "release.csv").read_bytes()
    many.save(tmp_path / "bundle")
    assert torch.equal(load_bundle(tmp_path / "bundle").dataset.features, release.dataset.features)


def test_an_audit_comes_near_the_proof_and_never_above():
    found = audit(Marginals().game(Budget(3.0, 1e-5)), trials=2000, timeout=None)
    assert 1.8 < found.audited.epsilon <= 3
    assert found.verdict == "proven"


def test_numbers_are_counted_by_ranges_where_noise_hides_values_that_are_as_common(table):
    view = View(table.public)
    few, many = (view.ranges([sigma] * 5, 2000) for sigma in (2000 / view.sizes[0], 2001 / view.sizes[0]))
    assert few[0] is None
    assert many[0].shape[1] == view.sizes[0]
    assert [place for place, ranges in enumerate(view.ranges([1e9] * 5, 2000)) if ranges is not None] == [0, 2]


def _counts(dataset, seed, sigma=0.0):
    view = View(dataset.public)
    ranges = view.ranges([sigma] * len(view.sizes), dataset.persons)
    return Counts(dataset, view, "add-or-remove", Reproducible(seed), EventLog(), ranges)


class _Broken(Reproducible):
    def add_gaussian(self, *arguments, **options):
        raise RuntimeError
