"""A role made for serving can spend, and cannot grant, revive or rewrite anything."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import ProgrammingError

from noiseproof.errors import LedgerError, SettingError
from noiseproof.serve.ledger import Amount, Answers, Database, History, Keys, Ledger, Promise, Retry, Spend, retirement
from noiseproof.serve.ledger.database import parse_url
from noiseproof.serve.ledger.roles import grant_role

EACH = Amount.cost("pure", 0.01)


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_role_for_serving_serves_and_no_more(url):
    with Database(url) as owner:
        with owner.writing() as connection:
            connection.execute(text("DROP ROLE IF EXISTS serving"))
            connection.execute(text("CREATE ROLE serving LOGIN"))
        with pytest.raises(LedgerError, match="no role 'nobody'"):
            grant_role(owner, "nobody")
        grant_role(owner, "serving")
        key = Keys(owner).create("ann", answers=5)
    serving = url.replace("//postgres:", "//serving:")
    with Database(serving, create=False) as database:
        ledger, keys = Ledger(database), Keys(database)
        ledger.open("m", release="r", capacity=EACH * 10, weights="w")
        ledger.draw("d", release="r", promise=Promise(1.0, 1e-5, "add-or-remove"))
        id = keys.check(key).id
        ledger.spend(Spend("m", "ann", EACH, key=id, retry=Retry("k", "q")))
        Answers(database).keep("m", "ann", "k", "first")
        Answers(database).remember("m", "ann", {"q": "a"})
        Answers(database).sweep(0)
        retirement.retire(database, "m")
        for forbidden in (
            lambda: keys.create("eve"),
            lambda: keys.revoke(id),
            lambda: ledger.limit_data_set("d", 99, 0),
        ):
            with pytest.raises(LedgerError, match="may not do that"):
                forbidden()
        assert all(result.holds for result in History(database).verify())
    engine = create_engine(parse_url(serving))
    for statement in (
        "UPDATE entries SET answers = 0",
        "DELETE FROM entries",
        "TRUNCATE entries CASCADE",
        "UPDATE grants SET content = ''",
        "UPDATE keys SET revoked_at = NULL",
        "UPDATE clients SET operator = 1",
        "INSERT INTO allowances VALUES ('ann', 'm', 99, NULL)",
        "UPDATE properties SET value = ''",
        "INSERT INTO properties VALUES ('backup', '')",
        "DELETE FROM retired",
        "UPDATE models SET release = 'x'",
        "ALTER TABLE entries DISABLE TRIGGER entries_no_change",
        "DROP TRIGGER entries_no_change ON entries",
        "CREATE OR REPLACE FUNCTION keep_history() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$",
        "DROP TABLE repeats",
    ):
        with pytest.raises(ProgrammingError), engine.begin() as connection:
            connection.execute(text(statement))
    engine.dispose()


def test_a_file_has_no_roles(tmp_path):
    with Database(str(tmp_path / "ledger.db")) as database, pytest.raises(SettingError, match="no roles"):
        grant_role(database, "serving")
