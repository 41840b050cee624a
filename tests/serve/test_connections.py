"""Half-sent requests and strangers: they are not waited for, do not stop others, and do not fill the log."""

from __future__ import annotations

import random
import socket
import time
from types import SimpleNamespace

import pytest
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from noiseproof.errors import NoiseproofError
from noiseproof.serve import logs
from tests import untrusted


@pytest.fixture(autouse=True)
def quiet_before():
    logs._muted.clear()


def connect(service, sent=b""):
    port = int(service.address.rpartition(":")[2])
    connection = socket.create_connection(("127.0.0.1", port), timeout=20)
    connection.sendall(sent)
    return connection


def heard(connection):
    """All that comes until the other side closes; nothing where it just goes away."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    connection.close()
    return b"".join(parts)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /heal",
        b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        # A second request on a connection that was answered once.
        b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\nGET /heal",
    ],
)
def test_a_head_that_does_not_arrive_in_time_is_not_waited_for(start, sent):
    service = start(head_seconds=0.3)
    answer = heard(connect(service, sent))
    assert b"HTTP/1.1 408" in answer
    assert b"too-slow" in answer


def test_a_body_that_does_not_arrive_in_time_costs_nothing(start):
    service = start(body_seconds=0.3)
    head = f"POST /v1/models/paid/predictions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.ann}\r\n"
    sent = f"{head}Content-Type: application/json\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{{".encode()
    assert b"HTTP/1.1 408" in heard(connect(service, sent))
    assert service.spent == 0


def test_who_holds_many_half_sent_requests_gets_no_more_and_others_are_answered(start, rows, caplog, monkeypatch):
    still = SimpleNamespace(perf_counter=lambda: 1.0, strftime=time.strftime, gmtime=time.gmtime)
    monkeypatch.setattr(logs, "time", still)
    service = start(connections_by_address=20, head_seconds=5.0)
    with caplog.at_level("INFO", "noiseproof.serve"):
        held = [connect(service, b"POST /v1/models/paid/pred") for _ in range(60)]
        refused = [one for one in held[20:] if b"HTTP/1.1 429" in heard(one)]
        assert len(refused) >= 39
        lines = [line for line in caplog.messages if "connection refused" in line]
        assert len(lines) == 1  # at most one a second, and the next says how many were left out
        for one in held[:20]:
            one.close()
    until = time.monotonic() + 10
    while time.monotonic() < until:
        try:
            assert service.ask(rows(1)).status_code == 200
            break
        except Exception:
            time.sleep(0.1)
    assert service.spent == 1


def test_a_head_without_end_is_refused_before_it_fills_the_memory(service):
    connection = connect(service, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: ")
    try:
        for _ in range(64):
            connection.sendall(b"x" * 4096)
    except OSError:
        pass  # it was refused in the middle
    assert b"HTTP/1.1 200" not in heard(connection)


def test_what_is_no_http_is_a_problem(service):
    answer = heard(connect(service, b"\x16\x03\x01\x02\x00garbage\r\n\r\n"))
    assert b"HTTP/1.1 400" in answer
    assert b"application/problem+json" in answer


def test_wrong_keys_from_an_address_are_limited_and_logged_and_a_right_one_is_not_held_up(start, rows, caplog):
    service = start(wrong_keys=0.01)
    assert service.ask(rows(1)).status_code == 200  # a key that is known to be right
    with caplog.at_level("INFO", "noiseproof.serve"):
        statuses = [service.get("/v1/models", f"np_{number:016x}_x").status_code for number in range(8)]
    assert statuses[:1] == [401]
    assert statuses[-1] == 429
    (line,) = [line for line in caplog.messages if "wrong key" in line]
    assert '"address":"127.0.0.1"' in line
    assert service.ask(rows(1)).status_code == 200
    assert service.get("/v1/models", service.bob).status_code == 429  # nobody knows yet whether it is right


def test_others_messages_are_lines_of_json_and_written_once_a_second(caplog, monkeypatch):
    import logging

    still = SimpleNamespace(perf_counter=lambda: 1.0, strftime=time.strftime, gmtime=time.gmtime)
    monkeypatch.setattr(logs, "time", still)
    relay = logs.Relay()
    with caplog.at_level("INFO", "noiseproof.serve"):
        for _ in range(50):
            relay.emit(logging.LogRecord("uvicorn.error", logging.WARNING, "x", 1, "Invalid HTTP request.", None, None))
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("{")


def test_headers_behind_a_body_are_not_kept(service, monkeypatch):
    kept = []
    monkeypatch.setattr(HttpToolsProtocol, "on_header", lambda *line: kept.append(line))
    chunked = b"POST /v1/models HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
    connection = connect(service, chunked + b"X-Trailer: 1\r\n" * 1000 + b"Connection: close\r\n\r\n")
    assert connection.recv(12) == b"HTTP/1.1 405"
    connection.close()
    assert len(kept) == 2


def test_a_client_that_sends_many_large_bodies_at_once_is_held_to_its_share_and_others_are_not(start, rows):
    service = start(body=1000, body_seconds=5.0)
    head = f"POST /v1/models/paid/predictions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.ann}\r\n"
    begun = f"{head}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{".encode()
    held = [connect(service, begun) for _ in range(8)]
    until = time.monotonic() + 5
    while service.service.room._taken["ann"] < 8000 and time.monotonic() < until:
        time.sleep(0.01)
    refused = service.ask(rows(1))
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
    assert service.ask(rows(1), service.bob).status_code == 200
    for one in held:
        one.close()
    while service.ask(rows(1)).status_code == 429 and time.monotonic() < until:
        time.sleep(0.01)
    assert service.ask(rows(1)).status_code == 200
    assert service.service.room._taken == {}


def test_whatever_bytes_arrive_they_are_answered_or_refused_and_nothing_fails_inside(start, caplog):
    service = start(**untrusted.HASTE)
    right, send = untrusted.of_connections(service)
    send(right)
    refused = 0
    with caplog.at_level("INFO", "noiseproof.serve"):
        for tried in range(60):
            try:
                send(untrusted.mutated(random.Random(tried), right))
            except NoiseproofError:
                refused += 1
    assert refused > 0
    assert not [line for line in caplog.messages if "failed" in line]
    assert service.spent == 0
