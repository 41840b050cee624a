"""A training loop that stays as it is becomes private: the gradients of its steps, its spends, and what is refused."""

from __future__ import annotations

import copy
import itertools
import json

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

import noiseproof as npf
from noiseproof.errors import NoiseproofError, SettingError, UnsupportedError
from tests.integrations.conftest import RECORDS, Numbered, clipped_sum, network


def check_step(model, frozen, data, numbers, batch_size, clip=0.3):
    """`.grad` is the clipped sum over the records that were drawn, divided by the expected batch."""
    expected = clipped_sum(frozen, data, numbers, clip)
    found = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
    for gradient, total in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient, total / batch_size, rtol=1e-4, atol=1e-6)


def plain_epoch(model, optimizer, loader, batch_size, reduction="mean"):
    """The loop as anybody writes it; every step is compared with single-record autograd. Returns how many there were."""
    steps = 0
    for numbers, x, y in loader:
        optimizer.zero_grad()
        frozen = copy.deepcopy(model)
        loss = functional.cross_entropy(model(x), y, reduction=reduction)
        loss.backward()
        check_step(model, frozen, loader.dataset, numbers.tolist(), batch_size)
        optimizer.step()
        steps += 1
    return steps


def test_a_plain_loop_steps_by_the_clipped_gradients_of_a_poisson_sample(parts, quietly):
    model, optimizer, loader = parts()
    engine = quietly(model, optimizer, loader)
    assert plain_epoch(model, optimizer, loader, 12) == len(loader) == 5 == engine.steps


def test_a_sum_is_taken_for_a_sum_if_one_says_so(parts, quietly):
    model, optimizer, loader = parts()
    quietly(model, optimizer, loader, loss_reduction="sum")
    assert plain_epoch(model, optimizer, loader, 12, "sum") == 5


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_records_that_are_not_finite_are_left_out_and_end_nothing(parts, quietly, value):
    model, optimizer, loader = parts()
    loader.dataset.x[::5] = value
    engine = quietly(model, optimizer, loader)
    for numbers, x, y in loader:
        frozen = copy.deepcopy(model)
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        ordinary = [number for number in numbers.tolist() if number % 5]
        check_step(model, frozen, loader.dataset, ordinary, 12)
        optimizer.step()
    assert engine.steps == 5


def test_losses_of_single_records_can_be_given_instead(parts, quietly):
    model, optimizer, loader = parts()
    engine = quietly(model, optimizer, loader)
    for numbers, x, y in loader:
        frozen = copy.deepcopy(model)
        engine.backward(functional.cross_entropy(model(x), y, reduction="none"))
        check_step(model, frozen, loader.dataset, numbers.tolist(), 12)
        optimizer.step()


def test_workers_and_their_order_change_nothing(parts, quietly):
    model, optimizer, loader = parts(num_workers=2, persistent_workers=True)
    quietly(model, optimizer, loader)
    for _ in range(2):
        assert plain_epoch(model, optimizer, loader, 12) == 5


def test_nested_batches_are_handed_over_as_the_collate_function_made_them(parts, quietly):
    model, optimizer, loader = parts("dict")
    quietly(model, optimizer, loader)
    for batch in loader:
        frozen = copy.deepcopy(model)
        functional.cross_entropy(model(batch["inputs"]["x"]), batch["labels"]).backward()
        check_step(model, frozen, loader.dataset, batch["number"].tolist(), 12)
        optimizer.step()


def test_an_empty_sample_comes_as_a_record_that_counts_for_nothing(parts, quietly):
    model, optimizer, loader = parts(batch_size=1)
    engine = quietly(model, optimizer, loader)
    empty = 0
    for _, x, y in loader:
        optimizer.zero_grad()
        drawn = engine.gradients.waiting
        assert len(x) == max(1, drawn)
        functional.cross_entropy(model(x), y).backward()
        if drawn == 0:
            empty += 1
            assert all(float(parameter.grad.abs().max()) < 1e-6 for parameter in model.parameters())
        optimizer.step()
    assert 10 < empty < 40  # of 60, each with probability 0.365
    assert engine.steps == 60


def test_accumulated_batches_are_pieces_of_one_sample(parts, quietly):
    model, optimizer, loader = parts(batch_size=4)
    engine = quietly(model, optimizer, loader, accumulation_steps=3)
    assert engine.gradients.sample_rate == 12 / RECORDS
    seen = []
    for place, (numbers, x, y) in enumerate(loader, 1):
        seen += numbers.tolist()
        functional.cross_entropy(model(x), y).backward()
        if place % 3 == 0:
            assert len(set(seen)) == len(seen)
            check_step(model, copy.deepcopy(model), loader.dataset, seen, 12)
            optimizer.step()
            optimizer.zero_grad()
            seen = []
    assert engine.steps == 5


def test_physical_batches_bound_what_is_in_memory_and_step_when_all_have_come(parts, quietly):
    model, optimizer, loader = parts(batch_size=30)
    engine = quietly(model, optimizer, loader, max_physical_batch_size=4)
    seen, steps = [], 0
    for numbers, x, y in loader:
        assert len(x) <= 4
        seen += numbers.tolist()
        optimizer.zero_grad()
        before = copy.deepcopy(model)
        functional.cross_entropy(model(x), y).backward()
        if not engine.gradients.in_step:
            check_step(model, before, loader.dataset, seen, 30)
            seen, steps = [], steps + 1
        optimizer.step()
        assert engine.stepped is not engine.gradients.in_step
        assert engine.stepped is not all(map(torch.equal, model.parameters(), before.parameters()))
    assert (engine.steps, steps) == (2, 2)


def test_several_optimizers_parameter_groups_and_schedulers_stay_the_users(parts, quietly):
    model, _, loader = parts()
    first = torch.optim.SGD([{"params": [model[0].weight], "lr": 0.3}, {"params": [model[0].bias]}], lr=0.1)
    second = torch.optim.Adam(model[2].parameters())
    before = torch.optim.lr_scheduler.StepLR(first, 1, 0.5)
    quietly(model, [first, second], loader)
    after = torch.optim.lr_scheduler.ExponentialLR(second, 0.9)
    start = copy.deepcopy(model)
    for _, x, y in loader:
        functional.cross_entropy(model(x), y).backward()
        first.step()
        second.step()
    before.step()
    after.step()
    assert first.param_groups[0]["lr"] == 0.15
    assert not any(map(torch.equal, model.parameters(), start.parameters()))


def test_an_evaluation_in_between_neither_spends_nor_leads_back_to_the_parameters(parts, quietly):
    model, optimizer, loader = parts()
    engine = quietly(model, optimizer, loader)
    for number, (_, x, y) in enumerate(loader):
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        model.eval()
        assert not model(loader.dataset.x).requires_grad
        model.train()
        assert engine.steps == number + 1


def test_bfloat16_autocast_gives_the_gradients_to_its_own_precision(parts, quietly):
    model, optimizer, loader = parts()
    quietly(model, optimizer, loader)
    for numbers, x, y in loader:
        frozen = copy.deepcopy(model)
        with torch.autocast("cpu", torch.bfloat16):
            loss = functional.cross_entropy(model(x), y)
        loss.backward()
        expected = clipped_sum(frozen, loader.dataset, numbers.tolist(), 0.3)
        for parameter, total in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, total / 12, rtol=0.05, atol=3e-3)
        optimizer.step()


def test_a_gradient_scaler_changes_neither_clipping_nor_the_step(parts, quietly):
    model, optimizer, loader = parts()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    quietly(model, optimizer, loader, scaler=scaler)
    for numbers, x, y in loader:
        frozen = copy.deepcopy(model)
        scaler.scale(functional.cross_entropy(model(x), y)).backward()
        scaler.unscale_(optimizer)
        check_step(model, frozen, loader.dataset, numbers.tolist(), 12)
        scaler.step(optimizer)
        scaler.update()


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


def test_gradient_checkpointing_changes_nothing(parts, quietly):
    _, _, loader = parts()
    model = Checkpointed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    quietly(model, optimizer, loader)
    assert plain_epoch(model, optimizer, loader, 12) == 5


def test_a_compiled_network_trains_as_it_is_and_evaluates_compiled(parts, quietly):
    model, optimizer, loader = parts()
    used = []

    def backend(graph, _):
        used.append(graph)
        return graph.forward

    compiled = torch.compile(model, backend=backend)
    quietly(compiled, optimizer, loader)
    for numbers, x, y in loader:
        frozen = copy.deepcopy(model)
        functional.cross_entropy(compiled(x), y).backward()
        check_step(model, frozen, loader.dataset, numbers.tolist(), 12)
        optimizer.step()
    assert not used
    with torch.no_grad():
        torch.testing.assert_close(compiled(loader.dataset.x), model(loader.dataset.x))
    assert used


def test_frozen_parameters_stay_as_they_are(parts, quietly):
    model, _, loader = parts()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    quietly(model, optimizer, loader)
    start = model[0].weight.clone()
    assert plain_epoch(model, optimizer, loader, 12) == 5
    assert torch.equal(model[0].weight, start)


# ---- what is refused ----------------------------------------------------------------------------------------------


def take_steps(loader, model, optimizer, loss):
    for batch in loader:
        loss(model, *batch[1:]).backward()
        optimizer.step()


def refused(loader, model, optimizer, loss, match):
    with pytest.raises(UnsupportedError, match=match):
        take_steps(loader, model, optimizer, loss)


@pytest.mark.parametrize(
    "loss",
    [
        lambda model, x, y: functional.cross_entropy(model(x), y, weight=torch.tensor([1.0, 5.0, 0.2])),
        lambda model, x, y: functional.cross_entropy(model(x), y, ignore_index=1),
        lambda model, x, y: functional.cross_entropy(model(x), y, reduction="sum"),
        lambda model, x, y: functional.cross_entropy(model(x) - model(x).mean(0), y),
        lambda model, x, y: functional.cross_entropy(model(x - x.mean(0)), y),
    ],
    ids=["class weights", "ignored labels", "a sum", "outputs centred", "inputs centred"],
)
def test_a_loss_in_which_records_depend_on_each_other_is_refused(parts, quietly, loss):
    model, optimizer, loader = parts()
    engine = quietly(model, optimizer, loader)
    refused(loader, model, optimizer, loss, "mean of its records' own losses|depends on which other records")
    assert engine.steps == 0


def test_a_gradient_that_bypasses_the_forward_pass_is_refused_and_leaves_nothing(parts, quietly):
    model, optimizer, loader = parts()
    quietly(model, optimizer, loader)

    def around(model, x, y):
        return functional.cross_entropy(model(x), y) + (x @ model[0].weight.T).mean()

    refused(loader, model, optimizer, around, "without noise has come")
    assert model[0].weight.grad is None


def test_parts_of_the_network_called_by_themselves_are_refused(parts, quietly):
    model, optimizer, loader = parts()
    quietly(model, optimizer, loader)
    refused(
        loader,
        model,
        optimizer,
        lambda m, x, y: functional.cross_entropy(m[2](m[1](m[0](x))), y),
        "without noise has come",
    )


def test_records_that_the_loader_did_not_hand_over_are_refused(parts, quietly):
    model, optimizer, loader = parts()
    quietly(model, optimizer, loader)
    with pytest.raises(NoiseproofError, match="did not hand over"):
        model(loader.dataset.x)


def test_a_batch_is_good_for_one_backward(parts, quietly):
    model, optimizer, loader = parts()
    quietly(model, optimizer, loader)
    batches = iter(loader)
    _, x, y = next(batches)
    functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    with pytest.raises(NoiseproofError, match="did not hand over"):
        model(x)


def test_no_step_is_taken_without_a_new_private_gradient(parts, quietly):
    model, optimizer, loader = parts()
    quietly(model, optimizer, loader)
    batches = iter(loader)
    _, x, y = next(batches)
    functional.cross_entropy(model(x), y).backward()
    optimizer.step()
    with pytest.raises(NoiseproofError, match="no new private gradient"):
        optimizer.step()


def test_a_batch_that_is_passed_over_is_noticed(parts, quietly):
    model, optimizer, loader = parts()
    quietly(model, optimizer, loader)
    with pytest.raises(NoiseproofError, match="no `backward` came"):
        list(loader)


def test_public_records_may_be_used_while_paused(parts, quietly):
    model, optimizer, loader = parts()
    engine = quietly(model, optimizer, loader)
    with engine.paused():
        model(torch.randn(3, 6)).sum().backward()
    assert float(model[0].weight.grad.abs().sum()) > 0
    optimizer.zero_grad()
    assert plain_epoch(model, optimizer, loader, 12) == 5


class Stream(IterableDataset):
    def __iter__(self):
        yield from ()


@pytest.mark.parametrize(
    ("loader", "match"),
    [
        (DataLoader(Stream(), batch_size=4), "map-style"),
        (DataLoader(Numbered(), batch_size=None), "batch size"),
        (DataLoader(Numbered(), 4, sampler=WeightedRandomSampler([1.0] * RECORDS, RECORDS)), "WeightedRandomSampler"),
        ([1, 2], "torch DataLoader"),
    ],
)
def test_loaders_that_cannot_be_sampled_as_accounted_are_refused(parts, quietly, loader, match):
    model, optimizer, _ = parts()
    with pytest.raises(UnsupportedError, match=match):
        quietly(model, optimizer, loader)


def test_settings_that_do_not_go_together_are_refused(parts, quietly):
    model, optimizer, loader = parts()
    with pytest.raises(SettingError, match="epsilon with delta and epochs"):
        npf.make_private(model, optimizer, loader, epsilon=3.0)
    with pytest.raises(SettingError, match="epsilon with delta and epochs"):
        npf.make_private(model, optimizer, loader, epsilon=3.0, delta=1e-5, epochs=1, noise_multiplier=1.0)
    other = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(SettingError, match="not the model's"):
        quietly(model, other, loader)


# ---- what is spent ------------------------------------------------------------------------------------------------


def test_a_loop_spends_its_budget_and_no_more(parts):
    model, optimizer, loader = parts()
    engine = npf.make_private(model, optimizer, loader, epsilon=2.0, delta=1e-5, epochs=2, seed=1)

    def epoch():
        for _, x, y in loader:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()

    epoch()
    assert 0 < engine.epsilon() < 1.9
    epoch()
    assert 1.9 < engine.epsilon() <= 2
    with pytest.raises(NoiseproofError, match="all steps"):
        epoch()
    assert engine.steps == 10


def trained(parts, steps, state=None, **options):
    """A new process's engine, after so many steps from a state."""
    model, optimizer, loader = parts()
    engine = npf.make_private(
        model, optimizer, loader, **{"epsilon": 2.0, "delta": 1e-5, "epochs": 4, "seed": 1, **options}
    )
    if state is not None:
        engine.load_state_dict(json.loads(json.dumps(state)))
    for (_, x, y), _ in zip(loader, range(steps), strict=False):
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return engine


def test_what_was_spent_comes_along_and_no_way_of_resuming_loses_any_of_it(parts):
    first = trained(parts, 3)
    early = first.state_dict()
    second = trained(parts, 4, early)
    assert second.steps == 7
    # Back to the early state in the process that went on from it, as after a bad epoch.
    second.load_state_dict(early)
    assert second.steps == 7
    # Both branches from one state: whoever hears of both has spent both.
    third = trained(parts, 2, early)
    assert third.steps == 5
    third.load_state_dict(second.state_dict())
    third.load_state_dict(early)
    assert third.steps == 3 + 4 + 2
    assert third.epsilon() == pytest.approx(trained(parts, 5, trained(parts, 4).state_dict()).epsilon())
    # A process that had begun before it loaded keeps what it did itself.
    fourth = trained(parts, 1)
    fourth.load_state_dict(early)
    assert fourth.steps == 4


def test_the_budget_holds_over_all_processes(parts):
    state = trained(parts, 5).state_dict()
    for _ in range(3):
        state = trained(parts, 5, state).state_dict()
    with pytest.raises(NoiseproofError, match="have been taken"):
        trained(parts, 1, state)


def test_a_state_of_other_noise_is_refused(parts):
    with pytest.raises(SettingError, match="noise_multiplier"):
        trained(parts, 1, trained(parts, 1).state_dict(), epsilon=1.0)


# ---- what is released ---------------------------------------------------------------------------------------------


def test_a_release_has_the_card_that_train_would_give_and_can_be_loaded(parts, tmp_path):
    engine = trained(parts, 5, seed=None)
    release = engine.release(preprocessing="public", classes=["a", "b", "c"])
    assert release.card.verdict == "proven"
    assert release.card.proven.epsilon == pytest.approx(engine.epsilon())
    assert (release.card.claimed.epsilon, release.card.ran["steps"], release.card.ran["records"]) == (2.0, 5, RECORDS)
    loaded = npf.load_bundle(release.save(tmp_path / "bundle"), module=network())
    assert loaded.card == release.card
    x = Numbered().x
    torch.testing.assert_close(loaded.predict(x), release.predict(x))
    torch.testing.assert_close(loaded.module(x), engine.module.eval()(x))
    assert sum(count for _, count in loaded.event_log) == 5


def test_what_nobody_declared_or_was_made_from_the_records_proves_nothing(parts):
    engine = trained(parts, 1, seed=None)
    assert engine.release().card.verdict == "nothing proven"
    assert "preprocessing='public'" in engine.release().card.why
    assert engine.release(preprocessing="data").card.proven is None


def test_a_seeded_loop_is_a_rehearsal(parts):
    assert trained(parts, 1).release(preprocessing="public").card.verdict == "rehearsal"


def test_without_a_budget_the_delta_must_be_named(parts):
    engine = trained(parts, 2, noise_multiplier=1.0, epsilon=None, delta=None, epochs=None, seed=None)
    with pytest.raises(SettingError, match="name the delta"):
        engine.epsilon()
    assert engine.release(delta=1e-5, preprocessing="public").card.claimed is None


def test_a_copy_of_the_network_is_an_ordinary_network(parts, quietly):
    model, optimizer, loader = parts()
    quietly(model, optimizer, loader)
    other = copy.deepcopy(model)
    other(torch.randn(3, 6)).sum().backward()
    assert other[0].weight.grad is not None


def test_a_closed_training_leaves_an_ordinary_network_and_optimizer(parts):
    engine = trained(parts, 1)
    engine.close()
    engine.module(torch.randn(3, 6)).sum().backward()
    engine.optimizers[0].step()


def test_tied_weights_can_be_released(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    model[2].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(20, 4)), batch_size=5)
    engine = npf.make_private(model, optimizer, loader, noise_multiplier=1.0)
    for (x,) in loader:
        model(x).pow(2).mean().backward()
        optimizer.step()
    engine.release(delta=1e-5).save(tmp_path / "bundle")


def mf(make, model, optimizer, loader, **options):
    return make(model, optimizer, loader, mechanism="mf", neighbours="replace-one", **{"epochs": 2, **options})


def numbers_seen(model, optimizer, loader, most=None):
    seen = []
    for numbers, x, y in itertools.islice(loader, most):
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        seen.append(numbers.tolist())
    return seen


@pytest.mark.parametrize("shuffle", [False, True])
def test_with_correlated_noise_a_loader_keeps_one_order(quietly, shuffle):
    model, data = network(), Numbered()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=12, shuffle=shuffle)
    engine = mf(quietly, model, optimizer, loader)
    first = numbers_seen(model, optimizer, loader, 2)  # left early: the next loop goes on there
    first += numbers_seen(model, optimizer, loader)
    order = [number for batch in first for number in batch]
    assert sorted(order) == list(range(RECORDS))
    assert (order == sorted(order)) is not shuffle
    assert numbers_seen(model, optimizer, loader) == first
    assert engine.steps == 10
    with pytest.raises(NoiseproofError, match="all steps that the budget was planned for"):
        numbers_seen(model, optimizer, loader)


def test_correlated_noise_steps_by_the_clipped_gradients_of_the_loaders_batches(parts, quietly):
    model, optimizer, loader = parts()
    mf(quietly, model, optimizer, loader, accumulation_steps=1)
    assert plain_epoch(model, optimizer, loader, 12) == 5


def test_correlated_noise_spends_one_gaussian_mechanism_and_its_card_says_the_order(parts):
    model, optimizer, loader = parts()
    engine = mf(npf.make_private, model, optimizer, loader, epsilon=3, delta=1e-5)
    for _ in range(2):
        numbers_seen(model, optimizer, loader)
    assert 2.9 < engine.epsilon() <= 3
    card = engine.release(preprocessing="public", classes=("a", "b", "c")).card
    assert card.method == "dp-mf"
    assert card.ran["sampler"] == "fixed order, each record at most 2 times, 5 steps apart"
    assert not any("Poisson" in assumption for assumption in card.proven.assumptions)


def test_a_loop_with_correlated_noise_that_is_resumed_twice_takes_no_step_again(parts, tmp_path):
    """Two processes go on from one checkpoint; the journal tells the second what the first has taken."""

    def process(state=None):
        model, optimizer, loader = parts()
        loader.sampler.generator = torch.Generator().manual_seed(3)  # one fixed shuffle, in every process
        engine = mf(npf.make_private, model, optimizer, loader, epsilon=3, delta=1e-5, journal=tmp_path / "spent")
        if state is not None:
            engine.load_state_dict(state)
        return engine, (model, optimizer, loader)

    engine, loop = process()
    order = numbers_seen(*loop, 3)
    state = copy.deepcopy(engine.state_dict())
    engine.close()
    engine, loop = process(state)
    order += numbers_seen(*loop)
    engine.close()
    engine, loop = process(state)
    assert numbers_seen(*loop) == order
    assert engine.steps == 10
    assert engine.epsilon() <= 3
    with pytest.raises(NoiseproofError, match="steps that the budget was planned for"):
        numbers_seen(*loop)
    engine.close()


@pytest.mark.parametrize("journals", [(None, None), ("spent", None), ("spent", "another")])
def test_a_loop_with_correlated_noise_is_not_resumed_without_its_journal(parts, tmp_path, journals):
    """Without it nobody can know whether the checkpoint has been gone on from before."""
    first, second = (None if name is None else tmp_path / name for name in journals)
    loop = parts()
    engine = mf(npf.make_private, *loop, epsilon=3, delta=1e-5, journal=first)
    numbers_seen(*loop, 3)
    state = copy.deepcopy(engine.state_dict())
    numbers_seen(*loop, 1)
    engine.load_state_dict(state)  # its own: it knows what it has taken since
    assert engine.steps == 4
    other = mf(npf.make_private, *parts(), epsilon=3, delta=1e-5, journal=second)
    with pytest.raises(NoiseproofError, match="only with the journal that it was begun with"):
        other.load_state_dict(state)
    assert other.steps == 0
    engine.close()
    other.close()


def test_a_loop_with_correlated_noise_that_is_resumed_in_another_order_is_stopped(parts, tmp_path):
    first, second = ((model, optimizer, loader) for model, optimizer, loader in (parts(), parts()))
    for loop, seed in ((first, 3), (second, 4)):
        loop[2].sampler.generator = torch.Generator().manual_seed(seed)
    engine = mf(npf.make_private, *first, epsilon=3, delta=1e-5, journal=tmp_path / "spent")
    numbers_seen(*first, 3)
    engine.gradients.events.close()
    other = mf(npf.make_private, *second, epsilon=3, delta=1e-5, journal=tmp_path / "spent")
    with pytest.raises(NoiseproofError, match="the same seed in every process"):
        other.load_state_dict(engine.state_dict())


def test_correlated_noise_needs_epochs_and_replace_one(parts):
    model, optimizer, loader = parts()
    with pytest.raises(SettingError, match="one record more would move all that follow"):
        npf.make_private(model, optimizer, loader, epsilon=3, delta=1e-5, epochs=2, mechanism="mf")


def test_correlated_noise_in_a_loaders_own_order_is_not_for_persons(parts):
    model, optimizer, loader = parts()
    with pytest.raises(UnsupportedError, match="which place persons"):
        mf(npf.make_private, model, optimizer, loader, epsilon=3, delta=1e-5, groups=[0] * RECORDS)


def test_an_optimizer_that_looks_at_a_batch_several_times_is_refused():
    model = nn.Linear(4, 2)
    loader = DataLoader(TensorDataset(torch.randn(20, 4)), batch_size=5)
    with pytest.raises(UnsupportedError, match="LBFGS"):
        npf.make_private(model, torch.optim.LBFGS(model.parameters()), loader, noise_multiplier=1.0)
