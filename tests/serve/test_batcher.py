"""A batch is held for requests that are about to come, as long as the last one makes that likely."""

from __future__ import annotations

import itertools
import threading
from types import SimpleNamespace

from noiseproof.serve import batcher
from noiseproof.serve.batcher import Batcher


def test_a_batch_waits_for_as_many_as_were_answered_last_and_came_meanwhile(monkeypatch):
    """Two groups of clients that took turns paid for two commits where one does."""
    clock = itertools.count(step=100)  # every look is 100 s after the last, so that a batch took 100 s
    monkeypatch.setattr(batcher, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(batcher, "_MOST_SECONDS", 1e6)
    held = Batcher(None, None, waiting=10)
    batches, second = [], threading.Event()

    def come(name):
        with held._changed:
            held._waiting.append(SimpleNamespace(told=None, outcome=None, name=name))
            held._changed.notify()

    def answer(requests):
        batches.append([one.name for one in requests])
        if len(batches) == 1:
            come("second")
        else:
            second.set()
        return []

    monkeypatch.setattr(held, "answer", answer)
    come("first")
    held.start()
    assert not second.wait(0.2)  # it is held for the client that was just answered
    come("first again")
    assert second.wait(20)
    held.stop()
    assert batches == [["first"], ["second", "first again"]]
