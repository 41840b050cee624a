"""A checked step goes over its graph in sections, and lets go of what lies before each."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from noiseproof.engine import PrivateGradients, checks
from noiseproof.privacy import Reproducible

RECORDS = 128


def network():
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(784, 10)]
    return nn.Sequential(*layers)


def peak(step, path):
    """The most bytes that tensors take at once during a step, by torch's own account: the same in every run."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    profiled.export_chrome_trace(str(path))
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("name") == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda event: event["ts"]):
        now += event["args"]["Bytes"]
        most = max(most, now)
    return most


def test_a_checked_step_takes_little_more_memory_than_one_without_privacy(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "FIRST", 3)
    x, y = torch.rand(RECORDS, 1, 28, 28), torch.randint(10, (RECORDS,))
    plain, private = network(), network()
    gradients = PrivateGradients(private, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=1.0, rng=Reproducible(0))

    def plain_step():
        F.cross_entropy(plain(x), y).backward()

    def private_step():
        for features, labels in gradients.batches(x, y, steps=1):
            gradients.backward(F.cross_entropy(private(features), labels, reduction="none"))

    peaks = [peak(step, tmp_path / "trace.json") for step in (plain_step, private_step)]
    assert gradients._checked == 1
    copy_of_the_batch = x.numel() * x.element_size()  # `batches` takes a sample, which a loop without privacy does not
    assert peaks[1] - copy_of_the_batch < 1.4 * peaks[0]


class Tables(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.scores = nn.EmbeddingBag(5000, 64, mode="mean"), nn.Linear(64, 2)

    def forward(self, tokens):
        return self.scores(self.rows(tokens))


@pytest.mark.parametrize("kind", ["wide rows", "three layers", "a bag"])
def test_nor_do_wide_rows_and_tables(kind, tmp_path):
    """What a twin, a dense gradient, a bag's rows and what a few records give by themselves would take beside the batch."""
    torch.manual_seed(0)
    records = 512
    module, x, classes = {
        "wide rows": lambda: (
            nn.Sequential(nn.Linear(600, 128), nn.ReLU(), nn.Linear(128, 100)),
            torch.randn(records, 600),
            100,
        ),
        "three layers": lambda: (
            nn.Sequential(nn.Linear(446, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 30)),
            torch.randn(records, 446),
            30,
        ),
        "a bag": lambda: (Tables(), torch.randint(5000, (records, 32)), 2),
    }[kind]()
    y = torch.randint(classes, (records,))
    private = copy.deepcopy(module)
    gradients = PrivateGradients(private, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=1.0, rng=Reproducible(0))

    def losses(network, x, y):
        return F.cross_entropy(network(x), y, reduction="none")

    def plain_step():
        order = torch.randperm(records)
        losses(module, x[order], y[order]).mean().backward()

    def private_step():
        for features, labels in gradients.batches(x, y, steps=1):
            gradients.backward(losses(private, features, labels))

    peaks = [peak(step, tmp_path / "trace.json") for step in (plain_step, private_step)]
    assert gradients._checked == 1
    assert peaks[1] < 1.3 * peaks[0]
