"""The commands: keys, ledger, client and serve, as an operator and a client use them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from noiseproof.cli import main
from noiseproof.cli.client import _shaped
from noiseproof.serve.ledger import Database, Keys


@pytest.fixture
def noiseproof(capsys, monkeypatch):
    """`noiseproof("keys", "list")` gives exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        capsys.readouterr()
        code = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return SimpleNamespace(code=code, out=captured.out, err=captured.err)

    return run


@pytest.fixture
def fresh(tmp_path):
    """The file of a ledger that nobody has used."""
    Database(str(tmp_path / "ledger.db")).close()
    return tmp_path / "ledger.db"


@pytest.fixture
def ledger(service, rows):
    """The file of a ledger in use."""
    service.ask(rows(3), service.ann)
    service.ask(rows(2), service.bob)
    return str(service.database.url.database)


def test_a_key_is_made_listed_and_revoked(noiseproof, fresh):
    url = fresh
    made = json.loads(noiseproof("keys", "create", "ann", "--answers", 5, "--ledger", url, "--json").out)
    with Database(str(url)) as database:
        assert Keys(database).check(made["key"]).answers == 5
    (listed,) = json.loads(noiseproof("keys", "list", "--ledger", url, "--json").out)
    assert (listed["id"], listed["client"], listed["revoked_at"]) == (made["id"], "ann", None)
    assert noiseproof("keys", "revoke", made["id"], "--ledger", url).code == 0
    with Database(str(url)) as database:
        assert Keys(database).check(made["key"]) is None
    assert noiseproof("keys", "revoke", made["id"], "--ledger", url).code == 2
    assert made["key"] not in noiseproof("keys", "list", "--ledger", url).out


def test_the_key_alone_is_on_stdout(noiseproof, fresh):
    outcome = noiseproof("keys", "create", "ann", "--ledger", fresh)
    assert outcome.out.startswith("np_")
    assert len(outcome.out.split()) == 1


def test_a_ledger_is_shown_verified_and_exported(noiseproof, ledger, service, tmp_path):
    document = json.loads(noiseproof("ledger", "show", "--ledger", ledger, "--json").out)
    (account,), (data_set,) = document["accounts"], document["data_sets"]
    assert data_set["releases"] == 2
    assert data_set["warning"] in noiseproof("ledger", "show", "--ledger", ledger).out
    assert account["model"] == "paid"
    assert account["spent"] == {"measure": "gdp", "amounts": ["0.05"]}
    assert set(account["clients"]) == {"ann", "bob"}
    shown = noiseproof("ledger", "show", "--ledger", ledger).out
    assert "25.0%" in shown  # 5 of 20
    assert account["head"] in shown
    verified = noiseproof("ledger", "verify", "--ledger", ledger, "--noted", account["head"], "--json")
    assert (verified.code, json.loads(verified.out)["holds"]) == (0, True)
    lines = noiseproof("ledger", "export", "--ledger", ledger).out.splitlines()
    assert [json.loads(line) for line in lines] == list(service.history.export())
    out = tmp_path / "history.jsonl"
    assert json.loads(noiseproof("ledger", "export", "--ledger", ledger, "--out", out, "--json").out)["entries"] == 5
    assert out.stat().st_mode & 0o777 == 0o600  # it names clients
    assert out.read_text().splitlines() == lines


def test_a_ledger_that_was_changed_fails_the_check(noiseproof, ledger):
    outcome = noiseproof("ledger", "verify", "--ledger", ledger, "--noted", "0" * 64)
    assert outcome.code == 1
    assert "in no history" in outcome.out


def test_a_ledger_that_is_not_there_is_not_made_by_looking_at_it(noiseproof, tmp_path):
    bundle = ("serve", tmp_path)
    for command in (("ledger", "show"), ("ledger", "verify"), ("ledger", "export"), ("keys", "create", "ann"), bundle):
        outcome = noiseproof(*command, "--ledger", tmp_path / "none.db")
        assert outcome.code == 1
        assert command is bundle or "there is no ledger" in " ".join(outcome.err.split())
    assert list(tmp_path.glob("none.db*")) == []


def test_a_ledger_is_made_once_and_holds_data_sets_to_their_limits(noiseproof, tmp_path):
    url = tmp_path / "ledger.db"
    made = json.loads(noiseproof("ledger", "init", "--ledger", url, "--json").out)
    assert made["id"] in noiseproof("ledger", "init", "--ledger", url).out
    limited = noiseproof("ledger", "limit", "hospital", "--epsilon", 5, "--delta", 1e-5, "--ledger", url, "--json")
    assert json.loads(limited.out)["limit"] == {"epsilon": 5.0, "delta": 1e-5}
    assert noiseproof("ledger", "limit", "hospital", "--epsilon", -1, "--ledger", url).code == 2


def test_a_bundle_is_paid_for_by_the_ledger_that_paid_first(noiseproof, bundle, tmp_path, monkeypatch):
    monkeypatch.setattr("noiseproof.serve.server.run", lambda *_, **__: None)
    folder = bundle(40)
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    for url in (one, two):
        noiseproof("ledger", "init", "--ledger", url)
    served = noiseproof("serve", folder, f"again={folder}", "--ledger", one)
    assert served.code == 0
    assert "stays inside" in served.err
    refused = noiseproof("serve", folder, "--ledger", two)
    assert refused.code == 1
    assert "another ledger" in refused.err
    assert noiseproof("serve", folder, "--ledger", one).code == 0
    (account,) = json.loads(noiseproof("ledger", "show", "--ledger", one, "--json").out)["accounts"]
    assert account["model"] == folder.name


@pytest.mark.parametrize("suffix", ["json", "csv"])
def test_a_client_asks_from_the_command_line(noiseproof, service, rows, tmp_path, monkeypatch, suffix):
    monkeypatch.setenv("NOISEPROOF_KEY", service.ann)
    file = tmp_path / f"rows.{suffix}"
    if suffix == "csv":
        file.write_text("\n".join(",".join(map(str, row)) for row in rows(5)))
    else:
        file.write_text(json.dumps(rows(5)))
    outcome = noiseproof("client", "predict", service.address, "paid", "--inputs", file, "--batch", 2, "--json")
    document = json.loads(outcome.out)
    assert len(document["labels"]) == len(document["probabilities"]) == 5
    assert [receipt["answers"] for receipt in document["receipts"]] == [2, 2, 1]
    assert document["remaining"] == {"answers": 15}
    assert "costs nothing" in noiseproof("client", "predict", service.address, "free", "--inputs", file).out
    assert service.spent == 5


def test_the_lines_of_a_table_get_the_models_shape():
    assert _shaped([[1.0, 2.0, 3.0, 4.0], [5.0]], [1, 2, 2]) == [[[[1.0, 2.0], [3.0, 4.0]]], [5.0]]


def test_ids_of_keys_are_shown_whole_on_a_narrow_terminal(noiseproof, fresh, monkeypatch):
    url = fresh
    id = json.loads(noiseproof("keys", "create", "hospital-a", "--ledger", url, "--json").out)["id"]
    monkeypatch.setenv("COLUMNS", "80")
    assert id in noiseproof("keys", "list", "--ledger", url).out


@pytest.mark.parametrize("content", ["", "a,b\n1,2", "{}", "[", "[]", "[" * 100_000])
def test_a_file_without_records_is_refused(noiseproof, service, tmp_path, content):
    file = tmp_path / "rows.json"
    file.write_text(content)
    outcome = noiseproof("client", "predict", service.address, "paid", "--inputs", file, "--key", service.ann)
    assert outcome.code == 1
    assert "Traceback" not in outcome.err


def test_what_the_service_says_is_said(noiseproof, service, rows, tmp_path):
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(rows(1)))
    outcome = noiseproof("client", "predict", service.address, "paid", "--inputs", file, "--key", "wrong")
    assert outcome.code == 1
    assert "Bearer" in outcome.err
    outcome = noiseproof("client", "predict", "http://127.0.0.1:1", "paid", "--inputs", file, "--key", "wrong")
    assert outcome.code == 1
    assert "cannot be reached" in " ".join(outcome.err.split())


def test_what_cannot_be_served_is_refused_before_anything_listens(noiseproof, tmp_path):
    ledger = ("--ledger", tmp_path / "ledger.db")
    assert "no bundle" in " ".join(noiseproof("serve", tmp_path / "none", *ledger).err.split())
    outcome = noiseproof("serve", tmp_path / "none", *ledger, "--rate", 0)
    assert outcome.code == 2
    outcome = noiseproof("serve", tmp_path / "none", "--ledger", "mysql://h/d")
    assert outcome.code != 0
    outcome = noiseproof("serve", "a/b", "c/b", *ledger)
    assert outcome.code == 2
    assert "two bundles" in outcome.err
