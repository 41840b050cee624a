"""Budgets, clients and spending are what the ledger says, in answers, in what adds up, and as epsilon."""

from __future__ import annotations

import pytest

from noiseproof.privacy import gaussian_dp


def test_a_budget_tells_what_is_spent_and_left_of_the_models_and_of_ones_own(service, rows):
    service.ask(rows(2), service.bob)
    service.ask(rows(4), service.ann)
    budget = service.get("/v1/models/paid/budget", service.bob).json()
    assert budget["client"] == "bob"
    assert budget["basis"] == "proven"
    everyone, own = budget["everyone"], budget["own"]
    assert (everyone["answers_spent"], everyone["answers_left"], everyone["answers_limit"]) == (6, 14, 20)
    assert (own["answers_spent"], own["answers_left"], own["answers_limit"]) == (2, 1, 3)
    assert everyone["spent"] == {"measure": "gdp", "amounts": ["0.06"], "orders": None}
    assert everyone["epsilon"]["spent"] == pytest.approx(gaussian_dp.epsilon_of(0.06**0.5, 1e-5))
    assert everyone["epsilon"]["limit"] == pytest.approx(gaussian_dp.epsilon_of(0.2**0.5, 1e-5))


def test_a_client_that_has_not_asked_yet_has_its_limit_before_it(service):
    own = service.get("/v1/models/paid/budget", service.bob).json()["own"]
    assert (own["answers_spent"], own["answers_limit"]) == (0, 3)
    own = service.get("/v1/models/paid/budget", service.ann).json()["own"]
    assert (own["answers_spent"], own["answers_limit"]) == (0, 20)


def test_a_model_without_a_price_has_no_budget(service):
    budget = service.get("/v1/models/free/budget").json()
    assert (budget["everyone"], budget["own"]) == (None, None)
    assert service.get("/v1/models/free/clients", service.operator).json()["clients"] == []


def test_operators_see_who_spent_what(service, rows):
    service.ask(rows(2), service.bob)
    service.ask(rows(4), service.ann)
    clients = service.get("/v1/models/paid/clients", service.operator).json()["clients"]
    assert [(one["client"], one["answers_spent"], one["answers_limit"]) for one in clients] == [
        ("ann", 4, 20),
        ("bob", 2, 3),
    ]


def test_spending_over_time_is_everybodys_for_operators_and_else_ones_own(service, rows):
    service.ask(rows(2), service.bob)
    service.ask(rows(4), service.ann)
    for key, answers in ((service.operator, 6), (service.bob, 2), (service.ann, 4)):
        for period in ("hour", "day", "week", "month"):
            spending = service.get(f"/v1/models/paid/spending?period={period}", key).json()
            assert len(spending["starts"]) == len(spending["answers"]) == 60
            assert sum(spending["answers"]) == answers
    assert service.get("/v1/models/paid/spending?period=aeon").status_code == 422


@pytest.mark.parametrize("what", ["budget", "spending"])
def test_a_client_that_no_database_can_hold_is_no_client(service, what):
    """PostgreSQL refuses a zero byte, which was answered as a ledger that is away."""
    assert service.get(f"/v1/models/paid/{what}?client=%00", service.operator).status_code == 422


def test_models_are_listed_with_price_and_verdict_and_a_card_in_full(service):
    listed = service.get("/v1/models").json()
    assert (listed["client"], listed["operator"]) == ("ann", False)
    paid, free = listed["models"]
    assert paid["price"] == {"measure": "gdp", "amounts": ["0.01"], "orders": None}
    assert (paid["kind"], free["kind"], free["price"]) == ("prediction", "model", None)
    card = service.get("/v1/models/paid").json()["card"]
    assert card["proven"]["epsilon"] == 3.0
    assert card["verdict"] == paid["verdict"] == "proven"
    for missing in ("/v1/models/none", "/v1/models/none/budget", "/v1/models/none/spending"):
        assert service.get(missing).status_code == 404
