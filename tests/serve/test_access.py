"""Who may ask, and how often: wrong and revoked keys spend nothing, and nobody sees another client's budget."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from noiseproof.serve.access import Authenticator, Problem, RateLimits
from noiseproof.serve.ledger import Caller

PATHS = [
    "/v1/models",
    "/v1/models/paid",
    "/v1/models/paid/budget",
    "/v1/models/paid/clients",
    "/v1/models/paid/spending",
]


def test_without_a_right_key_there_is_nothing_to_see_and_nothing_to_have(service, rows):
    wrong = [service.ann[:-1] + "x", service.ann + "x", "np_0000000000000000_x", "x", "x" * 5000, "~", "np__"]
    for key in wrong:
        for path in PATHS:
            assert service.get(path, key).status_code == 401
        response = service.ask(rows(1), key)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.headers["content-type"] == "application/problem+json"
    assert service.http.get("/v1/models").status_code == 401
    assert service.http.get("/v1/models", headers={"Authorization": f"Basic {service.ann}"}).status_code == 401
    assert service.http.get("/v1/models", headers={"Authorization": service.ann}).status_code == 401
    assert service.spent == 0


def test_the_key_is_checked_before_the_body_is_looked_at(service):
    assert service.ask(b"{", "wrong").status_code == 401
    assert service.ask(b"x" * 10_000_000, "wrong").status_code == 401


def test_a_revoked_key_spends_nothing_from_the_moment_it_is_revoked(service, rows):
    assert service.ask(rows(1)).status_code == 200  # now the worker remembers the key for a second
    service.keys.revoke(service.ann.split("_")[1])
    response = service.ask(rows(1))
    assert response.status_code == 401
    assert service.spent == 1


def test_another_clients_budget_is_for_operators(service, rows):
    service.ask(rows(2), service.ann)
    assert service.get("/v1/models/paid/budget?client=ann", service.bob).status_code == 403
    assert service.get("/v1/models/paid/spending?client=ann", service.bob).status_code == 403
    assert service.get("/v1/models/paid/clients", service.bob).status_code == 403
    assert service.get("/v1/models/paid/budget?client=ann", service.operator).json()["own"]["answers_spent"] == 2
    assert service.get("/v1/models/paid/budget?client=ann", service.ann).json()["own"]["answers_spent"] == 2


def test_a_client_that_asks_too_often_is_told_when_to_come_back_and_others_are_not_held_up(start, rows):
    service = start(rate=0.5)
    service.service.rates._clock = lambda: 1e9  # however long the requests take
    statuses = [service.ask(rows(1)).status_code for _ in range(4)]
    assert statuses == [200, 200, 429, 429]
    assert 1 <= int(service.ask(rows(1)).headers["retry-after"]) <= 3
    assert service.spent == 2
    assert service.ask(rows(1), service.bob).status_code == 200


def test_a_rate_lets_a_burst_through_and_then_so_many_a_second(tmp_path):
    now = 1000.0
    rates = RateLimits(10, burst=5, clock=lambda: now)
    assert [rates.wait("ann") for _ in range(6)] == [0.0] * 6
    assert rates.wait("ann") == pytest.approx(0.1)
    now += 1
    assert sum(rates.wait("ann") == 0 for _ in range(20)) == 6
    assert rates.wait("bob") == 0
    rates.close()


def test_workers_count_together(tmp_path):
    one, two = (RateLimits(1, burst=2, file=tmp_path / "rates", clock=lambda: 5.0) for _ in range(2))
    assert [one.wait("ann"), two.wait("ann"), one.wait("ann")] == [0.0] * 3
    assert two.wait("ann") > 0
    one.close()
    two.close()


def test_a_good_key_is_looked_up_once_a_second_and_a_wrong_one_every_time():
    looked = []

    def check(key):
        looked.append(key)
        return Caller("id", "ann") if key == "good" else None

    now = 0.0
    rates = RateLimits(1e9, 1e9)
    authenticator = Authenticator(check, rates, rates, clock=lambda: now)
    request = SimpleNamespace(state=SimpleNamespace(), client=None)

    def come(key):
        return asyncio.run(authenticator.authenticate(request, key))

    for key in ("good", "good"):
        assert come(key).client == "ann"
    for key in ("bad", "bad"):
        with pytest.raises(Problem):
            come(key)
    assert looked == ["good", "bad", "bad"]
    now = 1.5
    come("good")
    assert looked[-1] == "good"
    rates.close()
