"""Tasks on the machines of a Ray cluster; what a dead machine was doing is run again on another."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from noiseproof.errors import MissingPartError, SettingError
from noiseproof.parallel.tasks import Lost, Options, perform

T = TypeVar("T")
R = TypeVar("R")

_AHEAD = 2
"""Tasks handed to Ray for each core: enough that none waits, few enough that their arguments do not pile up."""


def connect(address: str) -> Any:
    """Ray, connected to the cluster at `address` (`auto`: the one that this machine belongs to)."""
    try:
        import ray
    except ImportError:
        raise MissingPartError("Ray is not installed; `pip install 'noiseproof[cluster]'` brings it.") from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
            raise SettingError(
                f"no Ray cluster answers at {address!r} ({type(error).__name__}); start one with `ray start --head`, or "
                "use --jobs for this machine alone."
            ) from None
    return ray


def run_on_cluster(
    function: Callable[..., R], tasks: Sequence[T], common: tuple[Any, ...], address: str, options: Options
) -> Iterator[tuple[int, R | Lost]]:
    """(index, result) as tasks finish on the cluster; see `tasks.run`."""
    ray = connect(address)
    # Ray itself would run lost tasks again, too; counted here, an attempt is an attempt whatever was lost with it.
    remote = ray.remote(num_cpus=options.threads, max_retries=0)(perform)
    # In the driver's own store, so that it outlives every other machine.
    shared = ray.put(common)
    waiting = deque((index, 1) for index in range(len(tasks)))
    running: dict[Any, tuple[int, int]] = {}
    try:
        while waiting or running:
            most = max(1, int(_AHEAD * ray.cluster_resources().get("CPU", 1) / options.threads))
            while waiting and len(running) < most:
                index, attempt = waiting.popleft()
                running[remote.remote(function, shared, tasks[index], options.threads)] = index, attempt
            # One that is ready is fetched here, so that a machine that dies with its result is noticed, too.
            finished, _ = ray.wait(list(running), num_returns=1)
            for reference in finished:
                index, attempt = running.pop(reference)
                try:
                    result = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    raise (error.cause if isinstance(error.cause, Exception) else error) from None
                except ray.exceptions.RayError as error:
                    if attempt < options.attempts:
                        waiting.append((index, attempt + 1))
                    else:
                        yield index, Lost(f"its machine or process died ({type(error).__name__}).")
                    continue
                yield index, result
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
