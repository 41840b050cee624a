"""Iterable data sets in a loop that was made private: what is proven of a stream, and what stops it."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

import noiseproof as npf
from noiseproof.engine import CorrelatedGradients
from noiseproof.errors import NoiseproofError, SettingError, UnsupportedError
from noiseproof.privacy.factorization import Participation
from noiseproof.privacy.strategies import strategy
from tests.integrations.conftest import QUIET, RECORDS, Numbered, clipped_sum, network

STATED = {"epochs": 2, "records": RECORDS}


class Stream(IterableDataset):
    """The records one after another, of several workers each its own (or all, if nobody shares)."""

    def __init__(self, *, shuffled=False, share=True, most=RECORDS, changed=None):
        self.data, self.shuffled, self.share, self.most = Numbered(), shuffled, share, most
        if changed is not None:
            self.data.x[changed] = -self.data.x[changed]

    def __iter__(self):
        order = torch.randperm(RECORDS).tolist() if self.shuffled else list(range(RECORDS))
        order = (order * 2)[: self.most]
        worker = get_worker_info()
        if worker is not None and self.share:
            order = order[worker.id :: worker.num_workers]
        return (self.data[number] for number in order)


def parts(stream=None, **options):
    model = network()
    loader = DataLoader(Stream() if stream is None else stream, **{"batch_size": 12, **options})
    return model, torch.optim.SGD(model.parameters(), lr=0.1), loader


def private(loop, **options):
    terms = {"mechanism": "mf", "neighbours": "replace-one", "noise_multiplier": QUIET, "max_grad_norm": 0.3, "seed": 5}
    return npf.make_private(*loop, **{**terms, **STATED, **options})


def ids(batch):
    return batch[0]


def seen(model, optimizer, loader, most=None):
    """A loop as anybody writes it, and the numbers of its records."""
    numbers = []
    for own, x, y in itertools.islice(loader, most):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        numbers.append(own.tolist())
    return numbers


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("options", [{}, {"ids": ids}], ids=["places", "ids"])
def test_a_stream_is_taken_as_it_comes(options, workers):
    loop = parts(num_workers=workers)
    engine = private(loop, **options)
    assert len(loop[2]) == 5
    once = seen(*loop)
    assert once == [list(range(start, start + 12)) for start in range(0, RECORDS, 12)]
    assert seen(*loop) == once
    assert engine.steps == 10
    with pytest.raises(NoiseproofError):
        seen(*loop)


def test_its_steps_are_the_clipped_sums_of_its_batches_over_a_constant_and_the_last_may_be_short():
    model, optimizer, loader = parts(batch_size=16)
    private((model, optimizer, loader))
    sizes = []
    for numbers, x, y in loader:
        frozen = copy.deepcopy(model)
        functional.cross_entropy(model(x), y).backward()
        expected = clipped_sum(frozen, loader.dataset.data, numbers.tolist(), 0.3)
        for parameter, total in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, total / 16, rtol=1e-4, atol=1e-6)
        optimizer.step()
        sizes.append(len(numbers))
    assert sizes == [16, 16, 16, 12]


def test_pieces_of_a_step_are_one_step():
    whole, cut = parts(batch_size=30), parts(batch_size=10)
    one, other = private(whole), private(cut, accumulation_steps=3, max_physical_batch_size=7)
    seen(*whole)
    sizes = [len(piece) for piece in seen(*cut)]
    assert sizes == [7, 3] * 6
    assert one.steps == other.steps == 2
    for mine, theirs in zip(whole[0].parameters(), cut[0].parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_its_epsilon_and_its_noise_are_those_of_the_same_loader_taken_by_hand():
    loop = parts()
    engine = private(loop, noise_multiplier=2.0)
    seen(*loop)
    plan = strategy("banded", Participation(10, 2, 5), bands=5)
    model = network()
    own = CorrelatedGradients(model, plan, max_grad_norm=0.3, noise_multiplier=2.0, rng=npf.privacy.Reproducible(5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _, x, y in own.load(DataLoader(Stream(), batch_size=12), ids=ids, records=RECORDS):
        own.backward(functional.cross_entropy(model(x), y, reduction="none"))
        optimizer.step()
    assert engine.epsilon(1e-5) == own.epsilon(1e-5, neighbours="replace-one")
    for mine, theirs in zip(loop[0].parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_neighbouring_streams_differ_in_the_one_batch_of_a_pass_that_the_record_is_in_by_two_norms_at_most():
    """Under the same (no) noise, and with weights that stay, so that nothing else could tell the two apart."""

    def gradients(changed):
        model, _, loader = parts(Stream(changed=changed))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        private((model, optimizer, loader))
        found = []
        for _, x, y in itertools.chain(loader, loader):
            functional.cross_entropy(model(x), y).backward()
            found.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
            optimizer.step()
        return torch.stack(found)

    apart = (gradients(None) - gradients(30)).norm(dim=1) * 12
    assert (apart > 1e-3).nonzero()[:, 0].tolist() == [2, 7]
    assert float(apart.max()) <= 2 * 0.3


def test_a_pass_that_was_left_goes_on_in_the_next_also_in_another_process(tmp_path):
    def process(state=None):
        loop = parts()
        engine = private(loop, journal=tmp_path / "spent")
        if state is not None:
            engine.load_state_dict(state)
        return engine, loop

    engine, loop = process()
    found = seen(*loop, 3)
    state = copy.deepcopy(engine.state_dict())
    engine.close()
    engine, loop = process(state)
    found += seen(*loop)
    assert [batch[0] for batch in found + seen(*loop)] == [0, 12, 24, 36, 48] * 2
    assert engine.steps == 10
    engine.close()
    engine, loop = process({**state, "stream": {"marks": state["stream"]["marks"].flip(0)}})
    with pytest.raises(NoiseproofError, match="other records"):
        seen(*loop)
    engine.close()


def test_a_last_batch_that_is_shorter_than_stated_moves_nobody():
    loop = parts(Stream(most=50))
    engine = private(loop)
    assert [len(batch) for batch in seen(*loop) + seen(*loop)] == [12, 12, 12, 12, 2] * 2
    assert engine.steps == 10


def test_workers_that_share_a_stream_are_told_apart_by_ids():
    loop = parts(num_workers=2, batch_size=8)
    engine = private(loop, ids=ids)
    once = seen(*loop)
    assert sorted(itertools.chain(*once)) == list(range(RECORDS))
    assert seen(*loop) == once
    assert engine.steps == 2 * len(once)


@pytest.mark.parametrize(
    ("stream", "loader", "options", "match"),
    [
        ({"share": False}, {"num_workers": 2}, {"ids": ids}, "came again"),
        ({"shuffled": True}, {}, {"ids": ids}, "came again"),
        ({"shuffled": True}, {}, {}, "other records, or others in their places"),
        ({"most": 80}, {}, {}, "more than the 60 records"),
        ({"most": 80}, {}, {"ids": ids}, "came again"),
        ({"most": 40}, {}, {}, "ended after 40 of the 60"),
        ({"most": 40}, {}, {"ids": ids}, "came again"),
        ({}, {}, {"ids": ids, "records": 50}, "from 0 to 49"),
    ],
)
def test_a_stream_that_is_not_what_was_stated_is_stopped_before_anything_of_it_is_released(
    stream, loader, options, match
):
    loop = parts(Stream(**stream), **loader)
    engine = private(loop, **options)
    before = -1
    with pytest.raises(NoiseproofError, match=match):  # noqa: PT012, since each pass may be the one
        for _ in range(3):
            assert engine.steps > before
            before = engine.steps
            seen(*loop)
    assert engine.steps < 10


@pytest.mark.parametrize(
    ("loader", "options", "error", "match"),
    [
        ({}, {"records": None}, SettingError, "records=..."),
        ({"num_workers": 2}, {}, UnsupportedError, "ids=lambda batch"),
        ({"drop_last": True}, {}, UnsupportedError, "drop_last"),
        ({"batch_size": None}, {}, UnsupportedError, "batch size"),
        ({}, {"mechanism": "sgd"}, UnsupportedError, "mechanism='mf', neighbours='replace-one', records="),
        ({}, {"neighbours": "add-or-remove"}, SettingError, "one record more"),
    ],
)
def test_what_nobody_can_account_for_is_refused_at_once(loader, options, error, match):
    with pytest.raises(error, match=match):
        private(parts(**loader), **options)


def test_records_are_stated_of_streams_alone():
    model = network()
    loader = DataLoader(Numbered(), batch_size=12)
    with pytest.raises(SettingError, match="for iterable data sets"):
        private((model, torch.optim.SGD(model.parameters(), lr=0.1), loader))


def test_one_pass_needs_no_order_and_its_card_says_what_was_stated():
    loop = parts(Stream(shuffled=True))
    engine = private(loop, epochs=1, noise_multiplier=None, epsilon=3, delta=1e-5, seed=None)
    assert len(seen(*loop)) == 5
    assert 2.9 < engine.epsilon() <= 3
    card = engine.release(preprocessing="public", classes=("a", "b", "c")).card
    assert card.method == "dp-mf"
    assert any("stream gives each of its records once a pass" in assumption for assumption in card.proven.assumptions)


def test_a_stream_whose_collate_fn_mixes_records_is_refused():
    def mixing(records):
        numbers, x, y = torch.utils.data.default_collate(records)
        return numbers, x - x.mean(0), y

    loop = parts(collate_fn=mixing)
    private(loop)
    with pytest.raises(UnsupportedError, match="mixes the records"):
        seen(*loop)


def test_other_records_of_a_stream_in_the_network_are_refused():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = network()

        def forward(self, x):
            return self.inner(x - x.mean(0))

    model = Centred()
    loop = model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(Stream(), batch_size=12)
    private(loop)
    with pytest.raises(UnsupportedError, match="other records"):
        seen(*loop)
