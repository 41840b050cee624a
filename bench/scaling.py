"""How much faster do two processes train Lin's CNN than one, if each has one thread?

Both ways take the same private steps (batches of 512 of MNIST's shape, 3.3 million parameters), in turn and within the
same processes: while one process steps alone, the other waits. Each way the noise is drawn once in law; sums go over
gloo. Whatever else the machine does slows both; the ratio is what counts.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.errors import NoiseproofError
from noiseproof.networks import Network
from noiseproof.privacy import Reproducible

if TYPE_CHECKING:
    from noiseproof.engine.ranks import Ranks


_BATCH, _RECORDS, _MICRO = 512, 4096, 64


def rows(repeats: int = 5, ranks: int = 2) -> list[dict[str, Any]]:
    """Milliseconds of a step on `ranks` processes and on one, and their ratio; also of the first process's own time."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.scaling", str(repeats)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    said = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise NoiseproofError("a rank of the benchmark ended early; see what it said above.")
    times = json.loads(said[0])
    step = f"a private step of lin-cnn, batch {_BATCH}, {ranks} processes / one process, a thread each"
    found = []
    # On a machine that does other work, more processes get more of it: the processor's time tells what is left to do.
    for unit, clock in (("ms", "wall"), ("ms of a process's processor time", "busy")):
        together, alone = (1e3 * statistics.median(times[f"{way} {clock}"]) for way in ("together", "alone"))
        found.append({"what": step, "ours": together, "theirs": alone, "ratio": together / alone, "unit": unit})
    return found


def measure(ranks: Ranks, wait: Callable[[], None], repeats: int) -> dict[str, list[float]]:
    """Seconds of steps that the first rank takes alone, and of steps that all take together, in turn."""
    from noiseproof.engine.ranks import ALONE

    generator = torch.Generator().manual_seed(0)
    features = torch.rand(_RECORDS, 1, 28, 28, generator=generator)
    labels = torch.randint(10, (_RECORDS,), generator=generator)
    together = _steps(features, labels, ranks)
    alone = _steps(features, labels, ALONE) if ranks.rank == 0 else None
    times: dict[str, list[float]] = {}
    for repeat in range(repeats + 1):
        for way, step in (("alone", alone), ("together", together)):
            wait()
            if step is None:
                continue
            began, busy = time.perf_counter(), time.process_time()
            step()
            if repeat:  # the first of each pays for what is set up once
                times.setdefault(f"{way} wall", []).append(time.perf_counter() - began)
                times.setdefault(f"{way} busy", []).append(time.process_time() - busy)
    return times


def _steps(features: torch.Tensor, labels: torch.Tensor, ranks: Ranks) -> Callable[[], None]:
    """A function that takes one private step each time it is called."""
    from noiseproof.engine.ranks import ALONE

    module = Network("lin-cnn", (1, 28, 28), 10).build(0)
    gradients = PrivateGradients(
        module, max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=_BATCH / _RECORDS, rng=Reproducible(0)
    )
    if ranks is not ALONE:
        gradients.join(ranks)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    batches = gradients.batches(features, labels, steps=1 << 30, micro_batch_size=_MICRO)

    def step() -> None:
        for inputs, targets in batches:
            losses = functional.cross_entropy(module(inputs), targets, reduction="none") if len(targets) else None
            if gradients.backward(losses):
                optimizer.step()
                return

    return step


def main() -> None:
    """One rank of the benchmark; the first prints its times as JSON."""
    import torch.distributed as dist

    from noiseproof.run import distributed

    torch.set_num_threads(1)
    with distributed.start() as ranks:
        times = measure(ranks, dist.barrier, int(sys.argv[1]))
    if ranks.rank == 0:
        print(json.dumps(times))


if __name__ == "__main__":
    main()
