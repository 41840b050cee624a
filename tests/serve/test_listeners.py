"""Workers that share a port: each has its part of the connections, and one that hangs keeps nobody waiting."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import socket
import subprocess
import sys
import time

import pytest

from noiseproof.serve import listeners
from noiseproof.serve.listeners import Counts, FairLoop, FairServer

FORK = multiprocessing.get_context("fork")


def say(file, connections, said):
    counts = Counts(file)
    counts.say(connections)
    said.send(True)
    time.sleep(1e6)


class Protocol(asyncio.Protocol):
    """What `GuardedProtocol` is to a server, and no more."""

    def __init__(self, made):
        self._made, self.ended = made, lambda: None

    def connection_made(self, transport):
        self.transport = transport
        self._made.append(self)

    def connection_lost(self, error):
        self.ended()


@pytest.fixture
def other(tmp_path):
    """Other workers, which say that they have so many connections, and take none."""
    running = []

    def start(connections):
        here, there = FORK.Pipe()
        running.append(FORK.Process(target=say, args=(tmp_path / "counts", connections, there), daemon=True))
        running[-1].start()
        assert here.recv()
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.join()


@pytest.fixture
def serving(tmp_path):
    """Runs what is given a server, its address, what it has taken, and the counts, in a loop of its own."""

    def run(look):
        async def main(counts):
            listening, made = socket.create_server(("127.0.0.1", 0)), []
            server = FairServer(asyncio.get_running_loop(), lambda: Protocol(made), listening, counts)
            with listening:
                try:
                    clients = await look(listening.getsockname(), made, counts)
                    for client in clients:
                        client.close()
                finally:
                    server.close()
                    assert not server.is_serving()
                    for one in made:
                        one.transport.abort()
                    await asyncio.sleep(0.01)

        counts = Counts(tmp_path / "counts")
        with contextlib.closing(counts), asyncio.Runner(loop_factory=FairLoop) as runner:
            runner.run(main(counts))

    return run


async def until(holds, seconds=10.0):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.001)


def connect(address, count):
    return [socket.create_connection(address) for _ in range(count)]


def test_a_place_in_the_counts_is_a_worker_s_until_it_dies(tmp_path, other):
    dying = other(7)
    with contextlib.closing(Counts(tmp_path / "counts")) as counts:
        counts.say(9)
        assert counts.least == 7
        dying.kill()
        dying.join()
        other(12)  # in the place of the one that died
        assert counts.least == 9


def test_connections_are_left_to_a_worker_that_has_fewer_for_a_moment(serving, other, monkeypatch):
    monkeypatch.setattr(listeners, "_LEFT_SECONDS", 1e6)
    other(3)

    async def look(address, made, counts):
        clients = connect(address, 8)
        await until(lambda: len(made) == 4)  # one more than the other has
        await asyncio.sleep(0.05)
        assert len(made) == 4
        return clients

    serving(look)


def test_what_no_other_worker_takes_is_taken_and_soon_at_once(serving, other):
    other(0)

    async def look(address, made, counts):
        began = time.monotonic()
        clients = connect(address, 100)
        await until(lambda: len(made) == 100)
        # Were each left for the whole time, it would be two seconds.
        assert time.monotonic() - began < 50 * listeners._LEFT_SECONDS
        return clients

    serving(look)


def test_a_connection_that_ends_is_counted_no_more(serving, other):
    other(50)

    async def look(address, made, counts):
        clients = connect(address, 5)
        await until(lambda: counts.least == 5)
        for client in clients[:2]:
            client.close()
        await until(lambda: counts.least == 3)
        made[-1].transport.abort()
        await until(lambda: counts.least == 2)
        return clients

    serving(look)


def test_a_server_with_an_address_of_its_own_is_uvloop_s(monkeypatch):
    monkeypatch.delenv(listeners.FILE, raising=False)

    async def main():
        with socket.create_server(("127.0.0.1", 0)) as listening:
            server = await asyncio.get_running_loop().create_server(lambda: Protocol([]), sock=listening)
            assert not isinstance(server, FairServer)
            server.close()

    with asyncio.Runner(loop_factory=FairLoop) as runner:
        runner.run(main())


def test_a_worker_collects_no_garbage_of_what_it_has_loaded(tmp_path):
    code = (
        "import gc, json, os\n"
        "from noiseproof.serve.app import from_environment\n"
        "from noiseproof.serve.ledger import Database\n"
        f"Database({str(tmp_path / 'ledger.db')!r}).close()\n"
        f"os.environ['NOISEPROOF_SERVE'] = json.dumps({{'ledger': {str(tmp_path / 'ledger.db')!r}}})\n"
        "from_environment()\n"
        "print(len(gc.get_objects()) < gc.get_freeze_count())\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ}, timeout=120
    )
    assert run.stdout == "True\n"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processors are given by Linux")
def test_workers_have_a_processor_each_where_they_are_enough_for_all_and_else_any(tmp_path):
    code = (
        "import os, threading\n"
        "from noiseproof.serve.listeners import stay\n"
        "waiting = threading.Event()\n"
        "threading.Thread(target=waiting.wait, daemon=True).start()\n"
        "all = os.sched_getaffinity(0)\n"
        "def where():\n"
        "    return [sorted(os.sched_getaffinity(int(thread))) for thread in os.listdir('/proc/self/task')]\n"
        "stay(0, len(all) - 1)\n"
        "assert where() == [sorted(all)] * 2\n"
        "stay(len(all) + 1, len(all))\n"
        "assert where() == [sorted(all)[1 % len(all):][:1]] * 2\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env={**os.environ}, timeout=120)


def test_workers_that_live_have_different_numbers(other, tmp_path):
    other(3)
    other(4)
    counts = Counts(tmp_path / "counts")
    assert counts.number == 2
    counts.close()
