"""A checked step goes over its graph in sections, and lets go of what lies before each."""

from __future__ import annotations

import json

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
