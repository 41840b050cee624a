"""`noiseproof ledger` and `noiseproof keys`: an operator backs up, moves, signs, verifies and rotates, in sentences."""

from __future__ import annotations

import json
import shutil

import pytest

from noiseproof.cli.ledger import shown_address
from noiseproof.serve.ledger import Amount, Database, Keys, Ledger, Spend, heads

EACH = Amount.cost("gdp", 0.01)


@pytest.fixture
def ledger(tmp_path):
    file = tmp_path / "ledger.db"
    with Database(str(file)) as database:
        Ledger(database).open("m", release="r", capacity=EACH * 10, weights="w")
        for _ in range(3):
            Ledger(database).spend(Spend("m", "ann", EACH))
    return file


@pytest.fixture
def run(capsys):
    from noiseproof.cli import main

    def run(*arguments):
        capsys.readouterr()
        code = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, " ".join(captured.err.split())

    return run


def test_a_ledger_is_backed_up_and_moved(run, ledger, tmp_path):
    out, moved = tmp_path / "backup.db", tmp_path / "moved.db"
    code, told, _ = run("ledger", "backup", "--out", out, "--ledger", ledger, "--json")
    assert (code, json.loads(told)) == (0, {"entries": 5, "out": str(out)})
    assert run("ledger", "backup", "--out", out, "--ledger", ledger)[0] == 2  # nothing is written over
    code, _, error = run("ledger", "restore", out, "--ledger", moved)
    assert code == 1
    assert "nobody knows what was spent of m since the backup" in error
    code, told, error = run("ledger", "restore", out, "--ledger", moved, "--nothing-since", "--revoke-keys", "--json")
    assert (code, json.loads(told)["counted"]) == (0, {})
    assert run("ledger", "verify", "--ledger", moved)[0] == 0


def test_a_signed_head_is_kept_in_a_file_and_in_another_ledger_and_verified_from(run, ledger, tmp_path):
    key, head, other = tmp_path / "operator.pem", tmp_path / "head.json", tmp_path / "other.db"
    run("keys", "signing", key)
    run("ledger", "init", "--ledger", other)
    signed = ("ledger", "sign", "--key", key, "--out", head, "--into", other, "--ledger", ledger)
    code, told, _ = run(*signed, "--json")
    assert (code, json.loads(told)["entries"]) == (0, 5)
    verify = ("ledger", "verify", "--ledger", ledger, "--key", f"{key}.pub", "--json")
    code, told, _ = run(*verify, "--anchor", head, "--anchor", other, "--since", head)
    assert (code, json.loads(told)["models"][0]["entries"]) == (0, 0)
    with Database(str(ledger)) as database:
        Ledger(database).spend(Spend("m", "ann", EACH))
    assert run(*signed, "--since", head, "--force")[0] == 0
    code, _, error = run("ledger", "verify", "--ledger", ledger, "--anchor", head)
    assert code == 2
    assert "give --key" in error
    assert "looks whole by itself" in run("ledger", "verify", "--ledger", ledger)[2]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_a_head_is_signed_by_a_command_whose_key_stays_where_it_is(run, ledger, tmp_path):
    key, head = tmp_path / "operator.pem", tmp_path / "head.json"
    run("keys", "signing", key)
    signer = f"openssl pkeyutl -sign -rawin -inkey {key} -in {{payload}}"
    sign = ("ledger", "sign", "--signer", signer, "--out", head, "--ledger", ledger)
    code, _, error = run(*sign)
    assert code == 2
    assert "--signer together with --public" in error
    assert run(*sign, "--public", f"{key}.pub")[0] == 0
    assert run("ledger", "verify", "--ledger", ledger, "--key", f"{key}.pub", "--anchor", head)[0] == 0
    assert run(*sign, "--public", f"{key}.pub", "--since", head, "--force")[0] == 0


@pytest.mark.parametrize(
    "url", ["postgresql://user:secret@127.0.0.1:1/none", "postgresql://user@127.0.0.1:1/none?password=secret"]
)
def test_a_password_on_the_command_line_is_refused_where_ps_would_show_it(run, monkeypatch, url):
    monkeypatch.setattr("sys.argv", ["noiseproof", "ledger", "show", "--ledger", url])
    code, _, error = run("ledger", "show", "--ledger", url)
    assert code == 2
    assert "shown by `ps`" in error
    assert "secret" not in error
    monkeypatch.setattr("sys.argv", ["noiseproof", "ledger", "show"])
    monkeypatch.setenv("NOISEPROOF_LEDGER", url)
    assert "ps" not in run("ledger", "show")[2]
    assert shown_address("budgets.db") == "budgets.db"
    assert "secret" not in shown_address(url)
    assert shown_address(url).startswith("postgresql://user")


def test_a_head_is_fetched_from_an_address_that_stands_on_the_command_line(run, ledger, tmp_path, monkeypatch):
    run("keys", "signing", tmp_path / "key.pem")
    run("ledger", "sign", "--key", tmp_path / "key.pem", "--out", tmp_path / "head.json", "--ledger", ledger)
    monkeypatch.setattr(heads, "_download", lambda url: (tmp_path / "head.json").read_bytes())
    verify = ("ledger", "verify", "--ledger", str(ledger), "--key", str(tmp_path / "key.pem.pub"), "--anchor")
    sign = (
        "ledger",
        "sign",
        "--ledger",
        str(ledger),
        "--key",
        str(tmp_path / "key.pem"),
        "--out",
        "new.json",
        "--since",
    )
    monkeypatch.chdir(tmp_path)
    for address, code in (("https://notary.example/head.json", 0), ("https://me:secret@notary.example/head.json", 2)):
        for asked in ((*verify, address), (*sign, address)):
            monkeypatch.setattr("sys.argv", ["noiseproof", *asked])
            found, _, error = run(*asked)
            assert (found, "secret" in error) == (code, False), error


def test_a_key_is_rotated_and_rights_change_only_by_a_flag(run, ledger):
    at = ("--ledger", ledger, "--json")
    made = json.loads(run("keys", "create", "ann", "--answers", 5, "--per", "month", "--expires", 90, *at)[1])
    assert (made["answers"], made["period"]) == (5, "month")
    code, _, error = run("keys", "create", "ann", "--answers", "all", *at)
    assert code == 2
    assert "--change-rights" in error
    assert json.loads(run("keys", "create", "ann", *at)[1])["answers"] == 5
    new = json.loads(run("keys", "rotate", made["id"], *at)[1])
    with Database(str(ledger)) as database:
        assert Keys(database).check(made["key"]) is None
        assert Keys(database).check(new["key"]).answers == 5
    changed = run("keys", "create", "ann", "--answers", "all", "--change-rights", *at)
    assert json.loads(changed[1])["answers"] is None
    assert json.loads(run("keys", "create", "ann", "--answers", 2, "--model", "m", "--change-rights", *at)[1])
    assert run("keys", "create", "bob", "--answers", "few", *at)[0] == 2


def test_a_budget_is_closed_for_good(run, ledger):
    assert run("ledger", "close", "m", "--ledger", ledger)[0] == 0
    with Database(str(ledger)) as database:
        assert Ledger(database).balance("m").left == EACH * 0
        Ledger(database).open("m", release="r", capacity=EACH * 10, weights="w")
        assert Ledger(database).balance("m").left == EACH * 0
    assert run("ledger", "verify", "--ledger", ledger)[0] == 0
    assert run("ledger", "role", "serving", "--ledger", ledger)[0] == 2
