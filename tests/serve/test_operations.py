"""Health, readiness, metrics and the page; and that nothing tells more than it should."""

from __future__ import annotations

from noiseproof.errors import LedgerError


def test_alive_and_ready(service):
    assert service.http.get("/healthz").json() == {"status": "ok"}
    assert service.http.get("/readyz").json() == {"status": "ready"}


def test_alive_but_not_ready_while_the_ledger_is_away(service, monkeypatch):
    def away(*_):
        raise LedgerError("away")

    monkeypatch.setattr("noiseproof.serve.ledger.Database.writing", away)
    monkeypatch.setattr("noiseproof.serve.ledger.Database.reading", away)
    service.service.health.probe()
    assert service.http.get("/healthz").status_code == 200
    response = service.http.get("/readyz")
    assert response.status_code == 503
    assert response.json()["type"] == "urn:noiseproof:problem:ledger-unavailable"
    assert b"noiseproof_ledger_up 0.0" in service.service.metrics.render()


def test_metrics_count_requests_and_answers_and_name_no_clients(service, rows):
    service.ask(rows(3))
    service.ask(rows(30))
    text = service.get("/metrics", service.operator).text
    assert 'noiseproof_answers_total{model="paid"} 3.0' in text
    route = "/v1/models/{name}/predictions"
    assert f'noiseproof_requests_total{{model="paid",route="{route}",status="200"}} 1.0' in text
    assert f'noiseproof_requests_total{{model="paid",route="{route}",status="403"}} 1.0' in text
    assert 'noiseproof_answers_left{model="paid"} 17.0' in text
    assert "noiseproof_ledger_up 1.0" in text
    assert "ann" not in text


def test_metrics_tell_how_long_commits_take_how_many_requests_they_pay_for_and_how_many_wait(service, rows):
    for _ in range(3):
        service.ask(rows(1))
    text = service.get("/metrics", service.operator).text
    assert "noiseproof_commit_seconds_count 3.0" in text
    assert "noiseproof_batch_requests_sum 3.0" in text
    assert "noiseproof_requests_waiting 0.0" in text


def test_addresses_that_are_not_there_and_methods_that_are_not_allowed_are_problems(service):
    for response in (service.http.get("/nothing"), service.http.get("/docs"), service.http.put("/v1/models")):
        assert response.status_code in (404, 405)
        assert response.headers["content-type"] == "application/problem+json"
    assert service.http.get("/v1/models/paid/predictions").headers["allow"] == "POST"


def test_every_answer_has_an_id_and_forbids_what_a_browser_need_not_do(service):
    for path in ("/", "/healthz", "/nothing", "/v1/models"):
        headers = service.http.get(path).headers
        assert headers["x-request-id"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "server" not in headers


def test_the_page_asks_nothing_of_other_hosts(service):
    for path, kind in (("/", "text/html"), ("/console.js", "text/javascript"), ("/console.css", "text/css")):
        response = service.http.get(path)
        assert response.headers["content-type"].startswith(kind)
        assert "http://" not in response.text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in response.text


def test_the_openapi_document_has_every_address_and_its_problems(service):
    document = service.http.get("/openapi.json").json()
    operations = {(path, verb) for path, item in document["paths"].items() for verb in item}
    assert ("/v1/models/{name}/predictions", "post") in operations
    assert len(operations) == 13
    responses = document["paths"]["/v1/models/{name}/predictions"]["post"]["responses"]
    assert set(responses) >= {"200", "400", "401", "403", "404", "413", "415", "422", "429", "503"}
