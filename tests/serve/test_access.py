"""Who may ask, and how often: wrong and revoked keys spend nothing, and nobody sees another client's budget."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from noiseproof.serve.access import Authenticator, Problem, RateLimits
from noiseproof.serve.ledger import Caller, LedgerAwayError
from noiseproof.serve.ledger.deadlines import Patience

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


class Door:
    """An authenticator that knows one key, and what was looked up in its ledger."""

    def __init__(self, **caller):
        self.now, self.looked, self.caller = 0.0, [], Caller("id", "ann", **caller)
        self.rates = RateLimits(1e9, 1e9)
        self.authenticator = Authenticator(
            self.check, self.rates, self.rates, clock=lambda: self.now, patience=Patience(10.0, lambda: self.now)
        )

    def check(self, keys):
        self.looked.extend(keys)
        return [self.caller if key == "good" else None for key in keys]

    def come(self, key="good"):
        request = SimpleNamespace(state=SimpleNamespace(), client=None)
        return asyncio.run(self.authenticator.authenticate(request, key))


@pytest.fixture
def door():
    made = []

    def make(**caller):
        made.append(Door(**caller))
        return made[-1]

    yield make
    for one in made:
        one.rates.close()


def test_a_good_key_is_looked_up_once_a_second_and_a_wrong_one_every_time(door):
    one = door()
    for _ in range(2):
        assert one.come().client == "ann"
    for _ in range(2):
        with pytest.raises(Problem):
            one.come("bad")
    assert one.looked == ["good", "bad", "bad"]
    one.now = 1.5
    one.come()
    assert one.looked[-1] == "good"


def test_while_no_right_changes_a_known_key_is_not_looked_up_again_and_is_as_soon_as_one_does(door):
    one = door()
    one.authenticator.saw("rights")
    one.come()
    one.now = 5.0
    one.authenticator.saw("rights")
    one.come()
    assert one.looked == ["good"]
    one.authenticator.saw("other rights")
    one.come()
    assert one.looked == ["good", "good"]
    one.now = 12.0  # for seven seconds nobody has looked whether rights have changed
    one.come()
    assert len(one.looked) == 3
    for one.now in range(12, 620, 5):
        one.authenticator.saw("other rights")
        one.come()
    assert len(one.looked) == 4  # and every ten minutes in any case


def test_a_known_key_that_expires_is_known_no_more(door):
    one = door(expires_at=1)
    one.come()  # which the ledger's own check would not have let in
    one.come()
    assert one.looked == ["good", "good"]


def test_a_key_that_was_looked_up_before_rights_changed_is_not_remembered_after(door):
    one = door()
    one.authenticator.saw("rights")

    def slow(keys):
        one.authenticator.saw("other rights")
        return Door.check(one, keys)

    one.authenticator._check_keys = slow
    one.come()
    one.now = 2.0
    one.come()
    assert one.looked == ["good", "good"]


def test_a_ledger_that_is_back_in_a_moment_refuses_nobody_by_its_key(door, monkeypatch):
    monkeypatch.setattr("noiseproof.serve.access._RETRY_SECONDS", 0.001)
    one = door()

    def away_until(moment):
        def check(keys):
            one.now += 4.0
            if one.now < moment:
                raise LedgerAwayError("away")
            return Door.check(one, keys)

        return check

    one.authenticator._check_keys = away_until(9.0)
    assert one.come().client == "ann"
    assert one.now == 12.0
    one.authenticator._check_keys = away_until(1000.0)
    with pytest.raises(LedgerAwayError):
        one.come("another")
    assert one.now == 24.0


def test_keys_that_come_at_once_are_looked_up_together_and_each_is_told_its_own(door):
    one, batches = door(), []

    def check(keys):
        batches.append(len(keys))
        return Door.check(one, keys)

    one.authenticator._check_keys = check

    async def all_at_once():
        requests = [SimpleNamespace(state=SimpleNamespace(), client=None) for _ in range(20)]
        keys = ["good" if number % 2 else f"bad-{number}" for number in range(20)]
        coming = [one.authenticator.authenticate(*pair) for pair in zip(requests, keys, strict=True)]
        return await asyncio.gather(*coming, return_exceptions=True)

    outcomes = asyncio.run(all_at_once())
    assert [isinstance(outcome, Caller) for outcome in outcomes] == [False, True] * 10
    assert len(batches) <= 2


def test_a_revoked_key_is_refused_within_seconds_also_where_nothing_is_paid_for(service, rows):
    assert service.get("/v1/models", service.bob).status_code == 200
    service.keys.revoke(service.bob.split("_")[1])
    service.service.health.probe()
    assert service.get("/v1/models", service.bob).status_code == 401
