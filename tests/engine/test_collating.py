"""A loader that mixes records while it puts them together is refused; one that pads, sorts or masks each by itself is not."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, TensorDataset, default_collate

from noiseproof import PrivateGradients, make_private
from noiseproof.engine import CorrelatedGradients, PoissonSampler
from noiseproof.engine.collating import SeparateCollate
from noiseproof.errors import UnsupportedError
from noiseproof.privacy import Reproducible
from noiseproof.privacy.factorization import Participation
from noiseproof.privacy.strategies import strategy

RECORDS = [
    (torch.rand(4, generator=torch.Generator().manual_seed(place)), torch.tensor(place % 2)) for place in range(40)
]


def mixup(records):
    x, y = default_collate(records)
    return 0.5 * x + 0.5 * x[torch.randperm(len(x))], y


def cutmix(records):
    x, y = default_collate(records)
    return torch.cat([x[:, :2], x.roll(1, 0)[:, 2:]], 1), y


def standardised(records):
    x, y = default_collate(records)
    return (x - x.mean(0)) / x.std(0), y


def running_mean(records):
    x, y = default_collate(records)
    return x.cumsum(0) / torch.arange(1, len(x) + 1)[:, None], y


def by_dictionary(records):
    x, y = mixup(records)
    return {"inputs": {"x": x}, "labels": [y]}


class Remembering:
    """Mixes by a generator of its own, and changes the records that it is given."""

    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __call__(self, records):
        x, y = default_collate(records)
        for record, _ in records:
            record.zero_()
        return x + x[self.rng.permutation(len(x))], y


@pytest.mark.parametrize("own", [mixup, cutmix, standardised, running_mean, by_dictionary, Remembering()])
def test_what_mixes_records_is_refused(own):
    collate = SeparateCollate(own)
    records = [(x.clone(), y) for x, y in RECORDS]
    with pytest.raises(UnsupportedError, match="mixes the records"):
        collate(records)


def padded(records):
    lengths = [1 + int(4 * x[0].nan_to_num()) for x, _ in records]
    return pad_sequence([x[:n] for (x, _), n in zip(records, lengths, strict=True)], batch_first=True)


def sorted_by_length(records):
    return default_collate(sorted(records, key=lambda record: float(record[0].sum())))


def masked(records):
    x, y = default_collate(records)
    return x * (torch.rand(x.shape) > 0.3) + 0.1 * torch.from_numpy(np.random.standard_normal(x.shape)), y  # noqa: NPY002


def masked_one_by_one(records):
    # A record takes as many random numbers as it has values above a half.
    drawn = [[random.random() * (value > 0.5 and random.random() > 0) for value in x.tolist()] for x, _ in records]
    return torch.tensor(drawn)


class Masking:
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __call__(self, records):
        x, y = default_collate(records)
        return x * torch.from_numpy(self.rng.random(x.shape) > 0.3), y


def in_place(records):
    for record, _ in records:
        record += 1
    return default_collate(records)


@pytest.mark.parametrize(
    "own", [padded, sorted_by_length, masked, masked_one_by_one, Masking(), in_place, default_collate]
)
def test_what_puts_each_record_in_by_itself_is_not(own):
    collate = SeparateCollate(own)
    for size in (1, 2, 3, 40, 17, 40, 40):
        torch.manual_seed(size), random.seed(size), np.random.seed(size)  # noqa: NPY002
        found = collate([(x.clone(), y) for x, y in RECORDS[:size]])
        after = torch.rand(1), random.random()
        assert len(found[0] if isinstance(found, list | tuple) else found) == size
        if not isinstance(
            own, Masking
        ):  # and it is the loader's own batch, with the random numbers that it would have drawn
            torch.manual_seed(size), random.seed(size), np.random.seed(size)  # noqa: NPY002
            own([(x.clone(), y) for x, y in RECORDS[:size]])
            assert after == (torch.rand(1), random.random())


def test_so_it_is_in_every_way_of_giving_a_loader():
    network, data, rng = nn.Linear(4, 2), TensorDataset(*default_collate(RECORDS)), Reproducible(0)
    settings = {"max_grad_norm": 1.0, "noise_multiplier": 1.0, "rng": rng}
    sampled = PrivateGradients(network, sample_rate=0.5, **settings)
    sampler = PoissonSampler(len(data), 0.5, 3, rng)
    ordered = CorrelatedGradients(network, strategy("banded", Participation(4, 1, 4)), **settings)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    private = DataLoader(data, batch_size=10, collate_fn=mixup)
    training = make_private(network, optimizer, private, noise_multiplier=1.0, seed=0)
    for batches in (
        sampled.load(DataLoader(data, batch_sampler=sampler, collate_fn=mixup)),
        ordered.load(DataLoader(data, batch_size=10, collate_fn=mixup)),
        iter(private),
    ):
        with pytest.raises(UnsupportedError, match="mixes the records"):
            next(batches)
    assert not len(sampled.events) + len(ordered.events) + training.gradients.steps


def test_where_their_order_tells_whose_records_are_it_must_stay():
    assert len(SeparateCollate(sorted_by_length)(RECORDS)[0]) == len(RECORDS)
    with pytest.raises(UnsupportedError, match="must not sort them"):
        SeparateCollate(sorted_by_length, ordered=True)(RECORDS)
    for own in (masked, in_place, padded):
        SeparateCollate(own, ordered=True)(
            [(x.clone(), y) for x, y in RECORDS] + [(torch.full((4,), torch.nan), y) for _, y in RECORDS]
        )
    network, data = nn.Linear(4, 2), TensorDataset(*default_collate(RECORDS))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=10, collate_fn=sorted_by_length)
    persons = {"groups": torch.arange(len(data)) // 4, "noise_multiplier": 1.0, "seed": 0}
    training = make_private(network, optimizer, loader, **persons)
    with pytest.raises(UnsupportedError, match="must not sort them"):
        next(iter(loader))
    training.close()
    hasty = DataLoader(data, batch_size=10, num_workers=1, in_order=False)
    with pytest.raises(UnsupportedError, match="in_order at True"):
        make_private(network, optimizer, hasty, **persons)
