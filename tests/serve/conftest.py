"""A service in this process: a small network whose answers cost, one that costs nothing, and keys to ask with."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import replace

import httpx
import pytest
import torch
import uvicorn

from noiseproof.data.dataset import Public
from noiseproof.guarantees import Card, Claim, Proof, Reproducible
from noiseproof.guarantees.events import GaussianDpEvent
from noiseproof.ledger import Database, History, Keys, Ledger
from noiseproof.networks import Network
from noiseproof.releases import ModelRelease, PredictionRelease
from noiseproof.serve import Settings, create_app

PUBLIC = Public(shape=(4,), classes=("no", "yes", "perhaps"))


class NoisyRelease(PredictionRelease):
    """A real network with real noise on its logits, without the training."""

    def __init__(self, queries=20, asked=0):
        proof = Proof(epsilon=3.0, delta=1e-5, accountant="gdp")
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
    def restore(cls, tensors, description, **_):
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
    """A service, and ways to ask it and to look into its books."""

    def __init__(self, url, **settings):
        self.url = url
        self.noisy = NoisyRelease()
        self.settings = replace(Settings(ledger=url), **settings)
        app = create_app(self.settings, {"paid": self.noisy, "free": free_release()}, rng=Reproducible(0))
        self.service = app.state.service
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, server_header=False))
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.http = httpx.Client(base_url=self.address, timeout=30)
        self.database = Database(url)
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
    """`start(**settings)` is a running service."""
    running = []

    def begin(**settings):
        service = Running(f"sqlite:///{tmp_path / 'ledger.db'}", **settings)
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
