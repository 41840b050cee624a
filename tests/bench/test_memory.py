"""What work adds to a process at its peak is seen, also after a higher peak."""

from __future__ import annotations

import pytest
import torch

from bench import memory


def small_after_large() -> float:
    torch.ones(64 << 20)  # 256 MB
    return memory.added(lambda: torch.ones(32 << 20))


@pytest.mark.skipif(not memory.measurable(), reason="this system does not let a process forget its peak")
def test_memory_that_work_takes_and_gives_back_is_seen_after_a_higher_peak():
    # In a process of its own, as benchmarks have it: what earlier tests hold may be given back at any moment.
    assert 120 < memory.alone(small_after_large) < 140
