"""How does a private step's cost over plain torch's grow with the batch and with the length of records?

Each row is a step at one size over torch's own at the same size: a ratio that does not rise with it means growth no worse than
plain torch's. Processor time on one thread, least of some steps in turns, so that other load on the machine matters little.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from bench.networks import NETWORKS, VOCABULARY, Lstm, Measured, Text, numbers, tokens
from bench.steps import CONTENDERS, OURS, Setting
from noiseproof.engine.checks import FIRST

PLAIN = "non-private torch"
BATCHES: dict[str, tuple[int, ...]] = {
    **{"mlp": (32, 128, 512, 2048), "cnn": (8, 32, 128), "lstm": (32, 128, 512), "resnet": (8, 32)},
    **{"vit": (8, 32, 128), "bert": (4, 16, 64), "gpt2": (4, 16), "bag": (32, 128, 512)},
}
LENGTHS = (("lstm", 128, (7, 28, 112)), ("bert", 4, (16, 64, 256)), ("gpt2", 4, (16, 64, 256)))
"""By network the batch and the lengths of its records."""
SECONDS = 6.0


def rows() -> list[dict[str, Any]]:
    """Rows for every size, seeded and secure."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return list(_rows())
    finally:
        torch.set_num_threads(threads)


def _rows() -> Iterator[dict[str, Any]]:
    for name, batches in BATCHES.items():
        for batch in batches:
            yield from _over_plain(f"batch: {name} at {batch}", Setting(name, batch))
    for name, batch, lengths in LENGTHS:
        for length in lengths:
            yield from _over_plain(f"length: {name} at {length}", Setting(name, batch, _of_length(name, length)))


def _of_length(name: str, length: int) -> Measured:
    if name == "lstm":
        return Measured(Lstm, numbers(length, 28), 10)
    classes = NETWORKS[name].classes
    return Measured(lambda: Text(causal=name == "gpt2", longest=length), tokens(length, VOCABULARY), classes)


def _over_plain(what: str, setting: Setting) -> Iterator[dict[str, Any]]:
    print(f"bench: {what}", file=sys.stderr, flush=True)
    steps = {name: CONTENDERS[name](setting) for name in (*OURS, PLAIN)}
    least = dict.fromkeys(steps, float("inf"))
    begun, turn = time.monotonic(), 0
    while turn < FIRST + 4 or time.monotonic() - begun < SECONDS:
        for name, step in steps.items():
            start = time.process_time()
            step()
            if turn > FIRST:  # the first are checked
                least[name] = min(least[name], 1000 * (time.process_time() - start))
        turn += 1
    for mine, name in zip(("dp-sgd", "dp-sgd, secure"), OURS, strict=True):
        yield {
            "what": f"{what}, {mine} / {PLAIN}",
            "ours": least[name],
            "theirs": least[PLAIN],
            "ratio": least[name] / least[PLAIN],
            "unit": "ms of processor time",
        }
