"""Requests that a clever stranger, or a client with a key, sends to break the service: refused, without cost, never 500."""

from __future__ import annotations

import gzip
import json
import socket

import pytest

BODY = json.dumps({"inputs": [[0.1, 0.2, 0.3, 0.4]]}).encode()


def send(service, raw):
    """The status that raw bytes are answered with; 0 where the connection is just closed."""
    port = int(service.address.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(raw)
        answer = connection.recv(64)
    return int(answer.split(b" ", 2)[1]) if answer else 0


def post(service, *lines, body=BODY, path=b"/v1/models/paid/predictions", key=True, length=True):
    head = [b"POST " + path + b" HTTP/1.1", b"Host: x", b"Connection: close", b"Content-Type: application/json"]
    if key:
        head.append(b"Authorization: Bearer " + service.ann.encode())
    if length:
        head.append(b"Content-Length: " + str(len(body)).encode())
    return send(service, b"\r\n".join([*head, *lines]) + b"\r\n\r\n" + body)


ATTACKS = {
    "a length of thousands of digits": ({"length": False}, [b"Content-Length: " + b"9" * 5000], {400}),
    "a length beyond all memory": ({"length": False}, [b"Content-Length: 999999999999"], {413}),
    "a negative length": ({"length": False}, [b"Content-Length: -1"], {400}),
    "two lengths": ({}, [b"Content-Length: 7"], {400}),
    "a length and chunks": ({}, [b"Transfer-Encoding: chunked"], {400}),
    "a compressed bomb": ({"body": gzip.compress(b"0" * 10_000_000)}, [b"Content-Encoding: gzip"], {400}),
    "a compressed transfer": ({"length": False}, [b"Transfer-Encoding: gzip"], {400}),
    "a chunk of negative size": ({"length": False, "body": b"-1\r\n"}, [b"Transfer-Encoding: chunked"], {400}),
    "a chunk beyond all memory": (
        {"length": False, "body": b"FFFFFFFFFFFFFFFFF\r\n"},
        [b"Transfer-Encoding: chunked"],
        {400},
    ),
    "a flood of headers": ({}, [b"X-%d: 1" % number for number in range(5000)], {413}),
    "one header without end": ({}, [b"X: " + b"a" * 100_000], {413}),
    "a key in the address": ({"key": False, "path": b"/v1/models/paid/predictions?key=np_a_b"}, [], {401}),
    "a second key": ({}, [b"Authorization: Bearer np_a_b"], {401, 200}),
    "an escaped name": ({"path": b"/v1/models/%70aid/predictions"}, [], {200}),
    "a name with a slash": ({"path": b"/v1/models/..%2fpaid/predictions"}, [], {404}),
    "a name with a null": ({"path": b"/v1/models/paid%00/predictions"}, [], {404}),
    "a name that is no text": ({"path": b"/v1/models/%ff%fe/predictions"}, [], {404}),
    "a name without end": ({"path": b"/v1/models/" + b"a" * 20_000 + b"/predictions"}, [], {404}),
    "a name larger than a head": ({"path": b"/v1/models/" + b"a" * 100_000}, [], {413}),
    "another type": ({}, [b"Content-Type: text/plain"], {415, 200}),
    "an idempotency key of control characters": ({}, [b"Idempotency-Key: a\x01b"], {400, 422}),
    "an idempotency key that is too long": ({}, [b"Idempotency-Key: " + b"a" * 201], {422}),
    "a folded header": ({}, [b"X: a", b" b"], {400, 200}),
    "a trace from nowhere": ({}, [b"traceparent: 00-zz-zz-zz", b"X-Request-Id: a b"], {200}),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_request_made_to_break_it_is_answered_as_documented(service, name):
    options, lines, expected = ATTACKS[name]
    status = post(service, *lines, **options)
    assert status in expected
    assert service.spent == (status == 200)
    assert service.ask([[0.1, 0.2, 0.3, 0.4]]).status_code == 200  # and it goes on


def test_nothing_of_a_refused_request_is_in_the_log_or_in_the_answer(service, caplog):
    with caplog.at_level("INFO", "noiseproof.serve"):
        told = service.http.post(
            "/v1/models/paid/predictions?key=np_secret_secret",
            content=b'{"inputs": [["secret"]]}',
            headers={
                "Authorization": "Bearer np_secret_secret",
                "Idempotency-Key": "secret",
                "X-Request-Id": "secret id",
            },
        )
    assert told.status_code == 401
    assert "secret" not in told.text + str(told.headers) + caplog.text


def test_one_idempotency_key_of_two_clients_is_two_requests(service):
    row = [[0.1, 0.2, 0.3, 0.4]]
    header = {"Idempotency-Key": "same"}
    first, other = service.ask(row, service.ann, **header), service.ask(row, service.bob, **header)
    assert first.json()["receipt"]["id"] != other.json()["receipt"]["id"]
    assert service.ask(row, service.ann, **header).content == first.content
    assert service.spent == 2


def test_what_one_client_asked_before_is_not_known_to_another(start):
    service = start(memoise=True)
    row = [[0.1, 0.2, 0.3, 0.4]]
    assert [service.ask(row, key).json()["cost"]["answers"] for key in (service.ann, service.bob, service.ann)] == [
        1,
        1,
        0,
    ]
