"""Every parser of bytes that a stranger may have sent or left in a file, with something right for each, and ways to spoil it.

`python -m tests.fuzz` gives them to a fuzzer; `test_untrusted_bytes.py` tries each some times.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import socket
import sqlite3

import httpx
import numpy as np
import pandas as pd
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.torch import save, save_file

from noiseproof import train
from noiseproof.attacks import foreign
from noiseproof.audits.releases import read_release
from noiseproof.data import load
from noiseproof.data.dataset import Dataset, Public
from noiseproof.data.formats import read_table
from noiseproof.data.raw import read_idx
from noiseproof.data.schema import Schema, read_schema
from noiseproof.errors import NoiseproofError
from noiseproof.methods import registry
from noiseproof.methods.parameters.collection import Collection
from noiseproof.methods.parameters.publishing import read_network
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Secure
from noiseproof.privacy.events import GaussianDpEvent
from noiseproof.releases import bundles, signing
from noiseproof.releases.signing_keys import make_keys, read_private_key, read_public_key
from noiseproof.report import render_audit, render_release
from noiseproof.report.evidence import of_audit, of_bundle
from noiseproof.run import checkpoints
from noiseproof.run.checkpoints import pack, unpack
from noiseproof.run.journal import Journal
from noiseproof.run.results import Comparison
from noiseproof.serve.bodies import ARROW, JSON, NPY
from noiseproof.serve.client import Client, understood
from noiseproof.serve.ledger import Amount, Checkpoint, Database, History, Keys, Ledger, Spend
from noiseproof.serve.ledger.bindings import Noted
from noiseproof.serve.models import ServedModel

VALUES = [
    *(
        None,
        True,
        "",
        "\x00",
        "\ud800",
        "../../etc/passwd",
        [],
        {},
        [[]],
        {"": None},
        -1,
        0,
        0.5,
        2**63,
        2**64,
        10**400,
    ),
    *(-(10**400), 1e308, float("nan"), float("inf"), "1e400", "9" * 5000, [0] * 1000, "os.system", "a\nb"),
]
UNCHAINED = {"spending", "retries", "repeats", "sqlite_sequence"}
"""Tables of a ledger from which nothing follows that its chains do not say: sums, and answers that were paid for."""
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))


def mutated(chance, content):
    """Bytes that differ from some: cut, flipped, doubled, swapped, stuffed; or, of JSON, with another value somewhere."""
    if chance.random() < 0.5:
        with contextlib.suppress(ValueError, RecursionError):
            return json.dumps(changed(chance, json.loads(content))).encode()
    content = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(content) + 1)
        end = min(len(content), at + chance.randint(1, 64))
        how = chance.randrange(6)
        if how == 0:
            del content[at:]
        elif how == 1:
            del content[at:end]
        elif how == 2:
            content[at:at] = content[at:end] * chance.randint(1, 50)
        elif how == 3:
            content[at:end] = chance.randbytes(end - at)
        elif how == 4 and at < len(content):
            content[at] ^= 1 << chance.randrange(8)
        else:
            content[at:end] = chance.choice(
                [
                    b"[" * 50_000,
                    b'{"a":' * 50_000,
                    b"\xff\xff\xff\xff\xff\xff\xff\x7f",
                    b"\x00" * 8,
                    b"1e999",
                    b"NaN",
                    b'"',
                ]
            )
    return bytes(content)


def changed(chance, document):
    """A document with one value changed, left out or added."""
    if isinstance(document, dict) and document and chance.random() < 0.9:
        name = chance.choice(list(document))
        how = chance.random()
        if how < 0.1:
            return {key: value for key, value in document.items() if key != name}
        if how < 0.15:
            return {**document, chance.choice(["", "extra", "__class__"]): chance.choice(VALUES)}
        return {**document, name: changed(chance, document[name])}
    if isinstance(document, list) and document and chance.random() < 0.9:
        at = chance.randrange(len(document))
        return [*document[:at], changed(chance, document[at]), *document[at + 1 :]]
    return chance.choice(VALUES)


def served(bundle):
    """Load a bundle as a service does, and answer once."""
    model = ServedModel("m", bundles.load(bundle))
    model.answer(torch.full((1, *model.shape), 0.5), Secure())


def verified(envelope):
    """Check an envelope; what is found wrong with it is a refusal."""
    found = signing.verify(envelope, {"a": b"content"}, "urn:x", KEY.public_key())
    if not found.valid:
        raise NoiseproofError("; ".join(found.findings))


def parsers(folder):
    """By name: what a parser is given, and the parser."""
    chance = torch.Generator().manual_seed(0)
    records = Dataset("d", torch.rand(60, 4, generator=chance), torch.arange(60) % 3, Public((4,), ("a", "b", "c")))
    votes = registry()["votes"]().fit(Network("lu-mlp", (4,), 3), records, Budget(3.0, 1e-5, queries=50), rng=Secure())
    packed = bundles.pack(votes)

    def bundle(name, reseal, packed=packed):
        def parse(content):
            files = dict(packed)
            files[name] = content
            if reseal:
                settings = json.loads(files[bundles.SETTINGS])
                settings["digests"] = {one: bundles._digest(files[one]) for one in (bundles.WEIGHTS, bundles.CARD)}
                files[bundles.SETTINGS] = bundles._sealed(settings)
            there = folder / "bundle"
            shutil.rmtree(there, ignore_errors=True)
            there.mkdir()
            for one, bytes_ in files.items():
                (there / one).write_bytes(bytes_)
            served(there)

        return parse

    def settings(content):
        """Settings with a right digest of themselves, so that what is in them is looked at."""
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            document = json.loads(content)
            document["digests"] = {one: bundles._digest(packed[one]) for one in (bundles.WEIGHTS, bundles.CARD)}
            content = bundles._sealed(document)
        bundle(bundles.SETTINGS, False)(content)

    def in_file(name, parse):
        def write_and_parse(content):
            (folder / name).write_bytes(content)
            parse(folder / name)

        return write_and_parse

    image = ServedModel("image", votes)
    table = ServedModel("table", train("dp-sgd", table_set(folder), epsilon=3, epochs=1))
    row = {"age": 40, "sex": "f", "born": "1990-02-03"}
    frame = pd.DataFrame([row, row])
    import pyarrow as pa

    arrow = pa.BufferOutputStream()
    with pa.ipc.new_stream(arrow, pa.Schema.from_pandas(frame, preserve_index=False)) as stream:
        stream.write_table(pa.Table.from_pandas(frame, preserve_index=False))
    npy = folder / "rows.npy"
    np.save(npy, np.full((2, 4), 0.5, np.float32))

    ledger = folder / "ledger.db"
    with Database(str(ledger)) as database:
        Keys(database).create("ann", answers=30)
        each = Amount.cost("pure", 0.01)
        accounts = Ledger(database)
        accounts.open("m", release="r", capacity=each * 100)
        for _ in range(20):
            accounts.spend(Spend("m", "ann", each))
        head = History(database).checkpoint().signed(KEY).encode()
        database.into_one_file()
    envelope = signing.sign({"a": b"content"}, "urn:x", {"p": [1, {"q": "r"}]}, KEY).encode()

    def resigned(content):
        """An envelope whose payload somebody with the key signed, whatever is in it."""
        with contextlib.suppress(ValueError, TypeError, LookupError, AttributeError, RecursionError):
            document = json.loads(content)
            payload = base64.b64decode(document["payload"])
            signature = KEY.sign(signing.encoded(document["payloadType"], payload))
            document["signatures"][0]["sig"] = base64.b64encode(signature).decode()
            content = json.dumps(document).encode()
        verified(content)

    def verify(file):
        for suffix in ("-wal", "-shm"):
            file.with_name(file.name + suffix).unlink(missing_ok=True)
        with Database(str(file), create=False) as database:
            History(database).verify()
            list(History(database).export())

    def rows(content):
        there = with_rows(ledger, content)
        before, now = (json.loads(rows_of(one)) for one in (ledger, there))
        with Database(str(there), create=False) as database:
            held = all(result.holds for result in History(database).verify())
        assert not held or all(now[name] == before[name] for name in before.keys() - UNCHAINED), "nothing was found"

    def journal(file):
        Journal(file).close()

    with contextlib.closing(Journal(folder / "spent.jsonl")) as started:
        for _ in range(5):
            started.spend(GaussianDpEvent(1.0))
    schema = Schema.of(table.public).to_json().encode()
    noted = json.dumps({"ledger": "a", "model": "m", "sequence": 3, "head": "b", "at_most": [5]}).encode()
    checkpoint = pack({"w": torch.ones(3)}, {"step": 1, "more": [1, 2]})
    csv = frame.to_csv(index=False).encode()
    found = {
        "settings": (packed[bundles.SETTINGS], settings),
        "card": (packed[bundles.CARD], bundle(bundles.CARD, True)),
        "weights": (packed[bundles.WEIGHTS], bundle(bundles.WEIGHTS, True)),
        "changed settings": (packed[bundles.SETTINGS], bundle(bundles.SETTINGS, False)),
        "rows of numbers": (json.dumps({"inputs": [[0.1, 0.2, 0.3, 0.4]] * 2}).encode(), lambda b: image.read(b, JSON)),
        "rows by name": (json.dumps({"inputs": [row, row]}).encode(), lambda b: table.read(b, JSON)),
        "npy": (npy.read_bytes(), lambda b: image.read(b, NPY)),
        "Arrow": (arrow.getvalue().to_pybytes(), lambda b: table.read(b, ARROW)),
        "envelope": (envelope, verified),
        "signed payload": (envelope, resigned),
        "signed head": (head, lambda b: Checkpoint.read(b, KEY.public_key(), "the file")),
        "ledger": (ledger.read_bytes(), in_file("other.db", verify)),
        "rows of a ledger": (rows_of(ledger), rows),
        "binding": (noted, in_file("ledger.json", Noted.read)),
        "journal": ((folder / "spent.jsonl").read_bytes(), in_file("other.jsonl", journal)),
        "checkpoint": (checkpoint, lambda b: unpack(b, "the checkpoint")),
        "resealed checkpoint": (b'{"step": 1, "more": [1, 2]}', lambda b: unpack(resealed(b), "the checkpoint")),
        "schema": (schema, in_file("schema.json", read_schema)),
        "CSV": (csv, in_file("table.csv", lambda file: table._code(read_table(file)))),
    }
    return {**found, **of_files(folder, frame, packed), **of_answers()}


def resealed(values):
    """A checkpoint with these values, whatever they are, and a right digest of them."""
    text = values.decode(errors="replace")
    tensors = {"w": torch.ones(3)}
    return save(
        tensors, metadata={"format": checkpoints.FORMAT, "values": text, "digest": checkpoints._digest(tensors, text)}
    )


def rows_of(ledger):
    """All rows of a ledger, as JSON."""
    with contextlib.closing(sqlite3.connect(ledger)) as raw:
        names = [name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return json.dumps({name: raw.execute(f"SELECT * FROM {name}").fetchall() for name in names}).encode()


def with_rows(ledger, content):
    """A copy of a ledger with other rows, whatever they are, as somebody leaves it who may write to it."""
    there = ledger.with_name("copy.db")
    shutil.copyfile(ledger, there)
    right, given = json.loads(rows_of(ledger)), {}
    with contextlib.suppress(ValueError, RecursionError):
        given = json.loads(content)
    with contextlib.closing(sqlite3.connect(there)) as raw:
        raw.execute("PRAGMA ignore_check_constraints = ON")
        guards = raw.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in guards:
            raw.execute(f"DROP TRIGGER {name}")
        for name, rows in given.items() if isinstance(given, dict) else ():
            if name not in right or rows == right[name] or not isinstance(rows, list):
                continue
            raw.execute(f"DELETE FROM {name}")
            for row in rows:
                marks = ", ".join("?" * len(row)) if isinstance(row, list) else ""
                # What SQLite takes into no cell, nobody leaves there.
                with contextlib.suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
                    raw.execute(f"INSERT INTO {name} VALUES ({marks})", row)
        for _, guard in guards:
            raw.execute(guard)
        raw.commit()
    return there


def of_files(folder, frame, packed):
    """Files that others may have made: tables, arrays, networks, keys, results, documents."""

    def given(name, parse, refused=()):
        def write_and_parse(content):
            file = folder / "given" / name
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content)
            try:
                parse(file)
            except refused as error:
                raise NoiseproofError(f"{type(error).__name__}") from None

        return write_and_parse

    def made(name, make):
        file = folder / name
        make(file)
        return file.read_bytes()

    x, y = np.full((6, 4), 0.5, np.float32), np.arange(6) % 2
    arrays = {"x": x, "y": y, "class_names": np.array(["a", "b"]), "low": np.array(0.0), "high": np.array(1.0)}
    tensors = {"w": torch.ones(2, 3), "b": torch.zeros(3)}
    public = {"classes": ["a", "b"], "low": 0.0, "high": 1.0}
    schema = folder / "people.json"

    def stored(file):
        np.save(file.parent / "x.npy", x)
        np.save(file.parent / "y.npy", y)
        load(file.parent)

    def page(name):
        def render(content):
            there = folder / "page"
            there.mkdir(exist_ok=True)
            for one, right in {**packed, name: content}.items():
                (there / one).write_bytes(right)
            render_release(of_bundle(there))

        return render

    def private(file):
        file.chmod(0o600)
        read_private_key(file)

    private_key, public_key = make_keys(folder / "key.pem")
    comparison = json.dumps(
        {
            **{"data": "d", "baseline": None, "epsilons": [3.0], "delta": 1e-5, "neighbours": "add-or-remove"},
            **{"queries": 9, "plan": {}, "versions": {}, "run": ""},
            "rows": [
                {"method": "none", "epsilon": 3.0, "delta": 1e-5, "status": "done", "kind": "model", "seconds": 1.0}
            ],
            "about": {
                **{"name": "d", "records": 9, "test_records": 3, "shape": [4], "classes": 2, "kind": "table"},
                "bounds": "public",
            },
        }
    ).encode()
    said = {"epsilon": 0.5, "delta": 1e-5, "confidence": 0.95, "trials": 100, "game": "one canary"}
    document = json.dumps({"method": "dp-sgd", "verdict": "not refuted", "claimed": None, "audited": said}).encode()
    idx = bytes([0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, *range(6)])
    return {
        "npz": (made("a.npz", lambda file: np.savez(file, **arrays)), given("a.npz", load)),
        "Parquet": (made("a.parquet", frame.to_parquet), given("a.parquet", lambda file: read_table(file))),
        "gzipped CSV": (
            made("a.csv.gz", lambda file: frame.to_csv(file, index=False)),
            given("a.csv.gz", lambda file: read_table(file, read_schema(schema))),
        ),
        "idx": (idx, given("a.idx", read_idx)),
        "facts of stored arrays": (json.dumps(public).encode(), given("public.json", stored)),
        **{
            f"released {kind}": (made(f"r.{kind}", make), given(f"r.{kind}", read_release))
            for kind, make in {
                "json": lambda file: file.write_text(json.dumps({"a": [1.5, 2], "b": {"c": True}})),
                "csv": lambda file: frame.to_csv(file, index=False),
                "txt": lambda file: file.write_text("1 2.5, 3e4"),
                "npy": lambda file: np.save(file, x),
                "npz": lambda file: np.savez(file, **{"a": x, "b": y}),
                "safetensors": lambda file: save_file(tensors, file),
            }.items()
        },
        "state dict": (made("a.pt", lambda file: torch.save(tensors, file)), given("a.pt", read_network)),
        "network": (made("a.safetensors", lambda file: save_file(tensors, file)), given("a.safetensors", read_network)),
        "collection": (
            made(
                "a.collection",
                lambda file: Collection.of([tensors, {name: one + 1 for name, one in tensors.items()}]).save(file),
            ),
            given("a.collection", lambda file: Collection.open(file).mean()),
        ),
        "audit's document": (document, given("audit.json", lambda file: render_audit(of_audit(file)))),
        "bundle's settings for a page": (packed[bundles.SETTINGS], page(bundles.SETTINGS)),
        "bundle's card for a page": (packed[bundles.CARD], page(bundles.CARD)),
        "comparison": (comparison, given("results.json", lambda file: Comparison.read(file.parent).sentence)),
        "public key": (public_key.read_bytes(), given("key.pub", read_public_key)),
        "private key": (private_key.read_bytes(), given("key.pem", private)),
    }


HASTE = {"head_seconds": 0.1, "body_seconds": 0.1, "rate": 1e6, "wrong_keys": 1e6, "connections_by_address": 4096}
"""Settings of a service that is given much rubbish over its own connections."""


def of_connections(service):
    """What is sent to a service, beginning with HTTP's own head."""
    body = json.dumps({"inputs": [[0.1, 0.2, 0.3, 0.4]]})
    head = f"POST /v1/models/free/predictions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {service.ann}\r\n"
    right = f"{head}Content-Type: application/json\r\nIdempotency-Key: a\r\nContent-Length: {len(body)}\r\n\r\n{body}"
    address = service.http.base_url.host, service.http.base_url.port

    def send(content):
        said = b""
        with socket.create_connection(address, timeout=20) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(content)
            # A second request that is right, so that whatever came before is at an end.
            connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            while part := connection.recv(65536):
                said += part
        statuses = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", said)]
        assert all(status < 500 or status == 503 for status in statuses), said[:400]
        assert b"Traceback" not in said
        if 200 not in statuses[:1]:
            raise NoiseproofError(f"refused with {statuses[:1]}.")

    return right.encode(), send


def of_answers():
    """What a service, or whoever pretends to be one, answers."""
    body = json.dumps({"labels": ["a"], "probabilities": [[0.5, 0.5]], "remaining": 3}).encode()

    def ask(content):
        status, _, rest = content.partition(b"\n")
        after, _, rest = rest.partition(b"\n")
        code = int(status) if status.isdigit() and 100 <= int(status[:4]) < 600 else 503
        headers = {"Retry-After": after.decode("latin-1")} if after.isascii() and after.isalnum() else {}
        answer = httpx.MockTransport(lambda _: httpx.Response(code, headers=headers, content=rest))
        with Client("http://service", "np_a_b", retries=0, transport=answer) as client, understood():
            assert client.predict("m", [[0.5]])["labels"] is not None

    def rows(content):
        foreign._Endpoint("http://m/", rate=1.0, batch_size=1, field="instances", token=None, timeout=1.0)._rows(
            content, 1
        )

    return {
        "service's answer": (b"200\n1\n" + body, ask),
        "model's answer": (body, rows),
    }


def table_set(folder):
    """A small table with numbers, categories and dates."""
    file = folder / "people.csv"
    rows = [f"{20 + i % 60},{'mf'[i % 2]},19{50 + i % 40}-01-02,{['no', 'yes'][i % 3 == 0]}" for i in range(80)]
    file.write_text("\n".join(["age,sex,born,ill", *rows]))
    columns = {
        "age": {"low": 0, "high": 120},
        "sex": {"categories": ["f", "m"]},
        "born": {"low": "1900-01-01", "high": "2020-01-01", "date": "%Y-%m-%d"},
    }
    schema = folder / "people.json"
    schema.write_text(json.dumps({"target": {"name": "ill", "classes": ["no", "yes"]}, "columns": columns}))
    return load(file, schema=schema).train
