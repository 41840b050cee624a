"""Persons' ids are in nothing that any command or service writes, prints, logs or raises: neither texts nor numbers."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile

import httpx
import numpy as np
import pandas as pd
import pytest
import torch

import noiseproof as npf
from noiseproof.cli import main
from noiseproof.errors import NoiseproofError
from tests.twin import worlds
from tests.twin.scan import files_under, ids_in

PERSON = [{**worlds.EXTREMES[1], "age": float(age)} for age in range(40, 49)]
"""Somebody with nine rows."""


def number_id(owner: int) -> int:
    """As a national register numbers people; in two's complement, in text and as a float it is told from all else."""
    return 73_061_542_290_001 + 10_007 * owner


NAMES = {"texts": worlds.text_id, "numbers": number_id}
DATA = "DATA"
QUICK = ("--no-baseline", "--json", DATA)

WAY = (
    ("train", "dp-sgd", "--set", "epochs=1", "--checkpoint", "kept", "--every", "1", "--out", "model", *QUICK),
    ("train", "votes", "--queries", "40", "--out", "paid", *QUICK),
    ("train", "teachers", "--set", "epochs=1", "--queries", "40", "--out", "taught", *QUICK),
    ("train", "functional", "--store", "stored", "--out", "from-store", *QUICK),
    ("train", "noisy-gradient", "--set", "epochs=1", "--out", "published", *QUICK),
    ("choose", "functional", "functional:ridge=0.1", "--out", "chosen", "--json", DATA),
    ("synth", "marginals", "--set", "steps=5", "--out", "made.csv", "--json", DATA),
    ("synth", "moments", "--out", "made.parquet", "--no-quality", "--json", DATA),
    ("attack", "model", "--attack", "loss", "--out", "attack.json", "--roc", "roc.png", "--json", DATA),
    ("audit", "functional", "--unit", "person", "--trials", "50", "--out", "audit.json", "--json"),
    ("audit", "functional", "--end-to-end", "--trials", "20", "--resume", "runs", "--json", DATA),
    (
        "compare",
        "--methods",
        "functional,votes",
        "--trials",
        "5",
        "--fits",
        "1",
        "--out",
        "compared",
        "--jobs",
        "1",
        DATA,
    ),
    ("report", "compared", "--out", "compared.html"),
    ("data", "people.csv", "--target", "label", "--person", "patient", "--draft-schema", "draft.json", "--json"),
    ("data", "people.csv", "--target", "label", "--person", "patient", "--draft-schema", "own.json", "--private"),
    ("canaries", "insert", "people.csv", "--schema", "people.json", "--count", "20", "--out", "canaries"),
    ("keys", "signing", "vendor.pem"),
    ("sign", "model", "--key", "vendor.pem"),
    ("ledger", "init"),
    ("predict", "paid", "rows.csv", "--json"),
    ("predict", "model", "rows.csv", "--out", "scored.csv"),
    ("ledger", "show", "--json"),
    ("ledger", "export", "--out", "history.jsonl"),
    ("ledger", "backup", "--out", "ledger-backup.db"),
    ("card", "model", "--json"),
    ("report", "model", "--ledger", "noiseproof-ledger.db", "--out", "model.html"),
    ("report", "model", "--out", "model.pdf"),
    ("verify", "model", "--key", "vendor.pem.pub", "--json"),
)
"""What somebody may do with a table of persons, in this order."""


@pytest.fixture(scope="module", params=["texts", pytest.param("numbers", marks=pytest.mark.slow)])
def used(request, tmp_path_factory):
    """A folder after everything was done with it, what was said, the ids, and the files that the test wrote itself."""
    folder, name = tmp_path_factory.mktemp("ids") / "world", NAMES[request.param]
    given = worlds.write_persons(folder, PERSON, name)
    people = pd.read_csv(folder / "people.csv")
    people.head(5).drop(columns=["label", "patient"]).to_csv(folder / "rows.csv", index=False)
    own = [folder / file for file in ("people.csv", "people.json", "rows.csv")]
    said = {}
    for number, step in enumerate(WAY):
        words = tuple(word for each in step for word in (given if each == DATA else (each,)))
        left = worlds.run(folder, words)
        said |= {f"{number} {step[0]} {key}": left[key] for key in ("stdout", "stderr")}
    said |= asked_over_http(folder, name)
    return folder, said, sorted(set(people["patient"].tolist())), own


def asked_over_http(folder, name):
    """What a real service says to good and bad requests, some of which hold ids, and what it logs."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"sqlite:///{folder / 'noiseproof-ledger.db'}"
    from noiseproof.serve.ledger import Database, Keys

    with Database(url) as database:
        key = Keys(database).create("hospital", operator=True)
    serve = [sys.executable, "-m", "noiseproof", "serve", "paid", "model", "taught", "--ledger", url]
    serve += ["--port", str(port), "--workers", "1"]
    log = folder / "service.log"
    one, row = name(3), {"age": 50, "hours": 10, "city": "a"}
    asked = [
        {"inputs": [[0.1, 0.2, 1.0, 0.0, 0.0]]},
        {"rows": [row]},
        {"rows": [{**row, "patient": one}]},
        {"rows": [{**row, "age": one}]},
        {"rows": [{**row, "city": one}]},
        {"rows": [{str(one): 1}]},
        {"inputs": [[one, 1]]},
        {"inputs": one},
        [one],
    ]
    found = {}
    with log.open("wb") as file:
        process = subprocess.Popen(serve, cwd=folder, stdout=file, stderr=file, env={**os.environ, "HOME": str(folder)})
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            wait_until_ready(http, process, log)
            http.headers["Authorization"] = f"Bearer {key}"
            for model in ("paid", "model", "taught", "no-such"):
                for number, body in enumerate(asked):
                    answer = http.post(f"/v1/models/{model}/predictions", json=body)
                    found[f"{model} {number}"] = answer.content
                    assert answer.status_code < 500, answer.text
            broken = f'{{"inputs": "{one}'.encode()
            found["broken"] = http.post("/v1/models/model/predictions", content=broken).content
            found["unknown"] = http.get("/v1/models", headers={"Authorization": f"Bearer {one}"}).content
            found["path"] = http.get(f"/v1/models/{one}", params={"patient": one}).content
            for path in ("", "/paid", "/paid/budget", "/paid/clients", "/model"):
                found[f"get {path}"] = http.get(f"/v1/models{path}").content
            for path in ("/metrics", "/openapi.json", "/"):
                found[f"get {path}"] = http.get(path).content
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    return found


def wait_until_ready(http, process, log):
    until = time.monotonic() + 120
    while time.monotonic() < until:
        with contextlib.suppress(httpx.TransportError):
            if http.get("/readyz").status_code == 200:
                return
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def test_no_id_is_in_anything_that_was_written_said_or_logged(used):
    folder, said, ids, own = used
    files = files_under(folder, but=own)
    assert {
        "noiseproof-ledger.db",
        "service.log",
        "model/card.json",
        "paid/weights.safetensors",
        "history.jsonl",
    } <= set(files)
    assert any(name.endswith("groups.npy") for name in files)
    assert any("kept" in name for name in files)
    assert b"predictions" in files["service.log"]
    assert ids_in(files, ids) == []
    assert ids_in(said, ids) == []


def test_the_scan_finds_an_id_wherever_it_is_packed(used):
    """Else that nothing is found would say nothing."""
    _, _, ids, _ = used
    one, packed, archive = ids[7], io.BytesIO(), io.BytesIO()
    np.savez_compressed(packed, x=np.zeros(3), groups=np.array([one]))
    pd.DataFrame({"a": [one]}).to_parquet(archive)
    nested = io.BytesIO()
    with zipfile.ZipFile(nested, "w", zipfile.ZIP_DEFLATED) as outer:
        outer.writestr("inner.npz", packed.getvalue())
    planted = {
        "npz": packed.getvalue(),
        "nested": nested.getvalue(),
        "parquet": archive.getvalue(),
        "json": json.dumps({"note": f"of {one}"}).encode(),
        "hash": pd.util.hash_array(np.array([str(one)], object)).tobytes(),
        f"file-{one}.txt": b"",
    }
    if isinstance(one, int):
        planted |= {"tensor": torch.tensor([1, one, 2]).numpy().tobytes(), "float": np.array([one], float).tobytes()}
    assert ids_in({**planted, "innocent": b"nothing at all"}, ids) == list(planted)


@pytest.mark.parametrize("kind", NAMES)
def test_no_id_is_in_a_remark_on_ids_among_categories(kind, tmp_path):
    given = worlds.write_persons(tmp_path / "one", PERSON, NAMES[kind])
    file = tmp_path / "one" / given[1]
    people = pd.read_csv(file)
    people.assign(city=people["patient"]).to_csv(file, index=False)
    left = worlds.run(tmp_path / "one", ("train", "functional", *QUICK[:-1], "--out", "model"), given)
    assert b"outside the public list" in left["stderr"]
    assert ids_in(left, set(people["patient"].tolist())) == []


SPOILT = {
    "missing": lambda frame: frame.assign(patient=frame["patient"].where(frame.index != 3, "")),
    "ids as dates": lambda frame: frame.assign(age="on " + frame["patient"]),
    "ids as classes": lambda frame: frame.assign(label=frame["patient"]),
    "one row": lambda frame: frame.iloc[:1],
    "one person": lambda frame: frame.assign(patient=frame["patient"][0]),
}


@pytest.mark.parametrize("spoil", SPOILT)
@pytest.mark.parametrize("kind", NAMES)
def test_no_id_is_in_an_error(kind, spoil, tmp_path, capfd, monkeypatch):
    given = worlds.write_persons(tmp_path / "one", PERSON, NAMES[kind])
    file = tmp_path / "one" / given[1]
    people = pd.read_csv(file, dtype=str)
    SPOILT[spoil](people).to_csv(file, index=False)
    monkeypatch.chdir(tmp_path / "one")
    with pytest.raises(SystemExit) as stop:
        main(["train", "dp-sgd", "--set", "epochs=1", "--json", *given])
    assert stop.value.code
    said = "".join(capfd.readouterr())
    assert said
    assert ids_in({"said": said.encode()}, set(people["patient"])) == []


@pytest.mark.parametrize("kind", NAMES)
def test_no_id_is_in_an_exception_of_the_library(kind):
    ids = [NAMES[kind](place % 7) for place in range(30)]
    x, y = torch.rand(30, 2), torch.arange(30) % 2
    for groups in (ids[:-1], [None, *ids[1:]], [1.5, "a", *ids[2:]]):
        with pytest.raises(NoiseproofError) as raised:
            npf.data.from_arrays(x, y, groups=groups, classes=2, low=0, high=1)
        assert ids_in({"said": repr(raised.value).encode()}, set(ids)) == []
