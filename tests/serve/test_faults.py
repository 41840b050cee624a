"""Whatever breaks: no answer without a committed spend, no overspend, and the service answers again by itself."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

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
    statuses = plain.statuses + careful.statuses
    # Everybody waits until it is back, but those whose commit was on its way: nobody knows what became of it.
    assert statuses.count(200) > 0.95 * len(statuses)
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
        folder = small_disk(64)
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
    hold(service, plain, careful, budget, capsys, f"full disk, {kind}")
    if kind == "sqlite":  # PostgreSQL ends itself, and takes its time to come back
        statuses = [*plain.statuses, *careful.statuses]
        assert set(statuses) <= {200, 503}
        assert statuses.count(200) > 0.95 * len(statuses)  # nearly everybody waited those five seconds
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
