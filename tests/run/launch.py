"""Starting ranks for tests, as torchrun does, without its supervisor."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def launch(arguments: Sequence[str], ranks: int, **environment: str) -> list[subprocess.Popen[str]]:
    """`python ARGUMENTS` on that many ranks of this machine."""
    port = free_port()
    common = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        **environment,
    }
    return [
        subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


def leave() -> NoReturn:
    """End a rank that has written what it found.

    DDP and FSDP2 keep torch's process group and its threads alive after `destroy_process_group`. One of them now and then
    aborts a process whose Python is shutting down, long after the work was done.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def finish(processes: Sequence[subprocess.Popen[str]], seconds: float = 240) -> list[tuple[int, str, str]]:
    """Each rank's exit code, stdout and stderr."""
    ended = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=seconds)
            ended.append((process.returncode, out, err))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return ended
