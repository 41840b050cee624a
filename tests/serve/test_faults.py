"""Whatever breaks: no answer without a committed spend, no overspend, and the service answers again by itself."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.slow

CLIENTS = 16
PLAIN = {f"client-{number}" for number in range(CLIENTS // 2)}
CAREFUL = {f"client-{number}" for number in range(CLIENTS // 2, CLIENTS)}


def hold(service, plain, careful, budget, capsys, what):
    """Nothing is answered that was not paid for; whoever retries gets all that was paid for, unless the load ended first."""
    receipts = {**plain.receipts, **careful.receipts}
    spent, lost = service.spent(), service.spent(PLAIN) - sum(plain.receipts.values())
    assert sum(receipts.values()) <= spent <= budget
    assert lost >= 0
    assert service.spent(CAREFUL) == sum(careful.receipts.values())
    statuses = sorted(
        (status, (plain.statuses + careful.statuses).count(status)) for status in {*plain.statuses, *careful.statuses}
    )
    with capsys.disabled():
        print(
            f"\n{what}: answered {sum(receipts.values())}, spent {spent}, spent but unanswered {lost}, statuses {statuses}"
        )
    return lost


def answers_again(service, keys):
    """Wait until every worker is back, and whether all is answered then."""
    service.wait_until_ready()
    told = service.load(keys, requests=2, retry=True)
    assert told.statuses.count(200) == 2 * len(keys)
    return told


def test_workers_that_are_killed_ten_times_in_the_middle_of_load(cluster, bundle, url, clients, capsys):
    budget = 200_000
    service = cluster(bundle(budget), url, workers=4)
    keys = clients(url, CLIENTS)
    chance = random.Random(0)

    def kill_ten_times():
        for _ in range(10):
            time.sleep(chance.uniform(0.3, 1.5))
            while not service.workers:
                time.sleep(0.1)
            os.kill(chance.choice(service.workers), signal.SIGKILL)
            service.wait_until_ready()

    plain, careful = service.under_load(keys, kill_ten_times)
    assert 0 in plain.statuses + careful.statuses  # connections did break
    hold(service, plain, careful, budget, capsys, f"kill -9 ten times, {'PostgreSQL' if '://' in url else 'SQLite'}")
    answers_again(service, keys)
    until = time.monotonic() + 60
    while (died := Path(service.log.name).read_text().count('] died"')) < 10 and time.monotonic() < until:
        time.sleep(0.5)
    assert died == 10


def test_a_postgresql_that_is_killed_and_started_again(cluster, bundle, postgres, clients, capsys):
    budget = 200_000
    service = cluster(bundle(budget), postgres.url, workers=4)
    keys = clients(postgres.url, CLIENTS)

    def kill_and_start():
        for _ in range(3):
            time.sleep(1)
            postgres.kill()
            time.sleep(2)
            postgres.start()
            service.wait_until_ready()

    plain, careful = service.under_load(keys, kill_and_start)
    assert 503 in plain.statuses + careful.statuses
    hold(service, plain, careful, budget, capsys, "PostgreSQL killed and started again, three times")
    answers_again(service, keys)


@pytest.fixture
def small_disk(tmp_path):
    """`small_disk(size)` is a file system of that many megabytes."""
    mounted = []

    def mount(megabytes):
        folder = tmp_path / "disk"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
        if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("a file system can be mounted by root only")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder):
    """Fill a disk to the last byte; the file that does so."""
    file = folder / "filler"
    with file.open("wb", buffering=0) as filler:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while filler.write(b"\0" * size):
                    pass
            except OSError:
                continue
    return file


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_disk_that_is_full(cluster, bundle, kind, small_disk, clients, capsys, request):
    if kind == "sqlite":
        folder = small_disk(8)
        url = str(folder / "ledger.db")
    else:
        folder = small_disk(160)
        folder.chmod(0o755)
        server = request.getfixturevalue("postgres_in")(folder / "data")
        url = server.url
    budget = 200_000
    service = cluster(bundle(budget), url, workers=2)
    keys = clients(url, CLIENTS)
    seen = {}

    def fill_and_free():
        time.sleep(1)
        filler = fill(folder)
        time.sleep(5)
        seen["full"] = shutil.disk_usage(folder).free
        filler.unlink()
        service.wait_until_ready()
        time.sleep(1)

    plain, careful = service.under_load(keys, fill_and_free)
    assert seen["full"] < 1 << 16
    assert 503 in plain.statuses + careful.statuses
    hold(service, plain, careful, budget, capsys, f"full disk, {kind}")
    answers_again(service, keys)
    service.stop()


LIBRARY = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)


@pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed")
def test_a_clock_that_jumps(cluster, bundle, tmp_path, clients, capsys):
    clock = tmp_path / "clock"
    clock.write_text("+0")
    faked = {
        "LD_PRELOAD": str(LIBRARY),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "DONT_FAKE_MONOTONIC": "1",  # which no jump of the clock touches
    }
    url, budget = str(tmp_path / "ledger.db"), 200_000
    service = cluster(bundle(budget), url, workers=2, environment=faked)
    *keys, probe = clients(url, CLIENTS + 1)
    years = []

    def jump():
        for to in ("+3650d", "-3650d", "+0", "-1", "+86400"):
            clock.write_text(to)
            years.extend(answer["receipt"]["made_at"][:4] for answer in service.load([probe], requests=3).answers)

    plain, careful = service.under_load(keys, jump)
    assert {*plain.statuses, *careful.statuses} == {200}
    assert hold(service, plain, careful, budget, capsys, "clock that jumps ten years") == 0
    assert len(set(years)) == 3  # the service did see them
    answers_again(service, keys)


SECONDS = float(os.environ.get("NOISEPROOF_STORM_SECONDS", "60"))
"""How long the storm lasts; half an hour gives some 100,000 requests on two quiet cores."""


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_everything_at_once(cluster, bundle, kind, small_disk, clients, capsys, request):
    """Kills, poison, half-sent requests, a full disk and database restarts: nothing is sold twice, and others are answered."""
    folder = small_disk(8 if kind == "sqlite" else 200)
    folder.chmod(0o755)
    server = None if kind == "sqlite" else request.getfixturevalue("postgres_in")(folder / "data")
    url = str(folder / "ledger.db") if server is None else server.url
    budget = 10**7
    service = cluster(bundle(budget), url, workers=2)
    *keys, attacker = clients(url, CLIENTS + 1)
    chance, recoveries, over = random.Random(0), [], threading.Event()

    def half_send():
        while not over.is_set():
            held = []
            for _ in range(300):
                with contextlib.suppress(OSError):
                    held.append(socket.create_connection(("127.0.0.1", service.port), 1, ("127.0.0.2", 0)))
                    held[-1].sendall(b"POST /v1/models/model/predictions HTTP/1.1\r\nX: ")
            over.wait(2)
            for one in held:
                one.close()

    def poison():
        bodies = [b'{"inputs": [[[[1e38' + b"]]]]}", b"[" * 10_000, b'{"inputs": [[[[NaN]]]]}', b"\x93NUMPY" * 100]
        with httpx.Client(
            base_url=service.address, timeout=30, headers={"Authorization": f"Bearer {attacker}"}
        ) as http:
            while not over.is_set():
                with contextlib.suppress(httpx.TransportError):
                    told = http.post(
                        "/v1/models/model/predictions",
                        content=chance.choice(bodies),
                        headers={"Content-Type": chance.choice(["application/json", "application/x-npy"])},
                    )
                    assert told.status_code != 500
                time.sleep(0.01)

    def break_things():
        attackers = [threading.Thread(target=one) for one in (half_send, poison)]
        for one in attackers:
            one.start()
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            trouble = chance.choice(["kill", "disk", "database"])
            if trouble == "kill" and service.workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(chance.choice(service.workers), signal.SIGKILL)
            elif trouble == "disk":
                filler = fill(folder)
                time.sleep(1)
                filler.unlink()
            elif server is not None:
                server.kill()
                time.sleep(0.5)
                server.start()
            began = time.monotonic()
            service.wait_until_ready()
            recoveries.append(time.monotonic() - began)
            time.sleep(chance.uniform(1, 4))
        over.set()
        for one in attackers:
            one.join()

    plain, careful = service.under_load(keys, break_things)
    hold(service, plain, careful, budget, capsys, f"everything at once for {SECONDS:.0f} s, {kind}")
    with capsys.disabled():
        print(
            f"longest until ready again: {[round(one, 1) for one in sorted(recoveries)[-3:]]} s of {len(recoveries)} troubles"
        )
    # Who retries is answered every time: `under_load` ends when every careful client has heard something final.
    assert len(careful.answers) > 0
    assert {status for status in careful.statuses if status >= 400} <= {503, 408, 429}
    answers_again(service, keys)
    service.stop()
