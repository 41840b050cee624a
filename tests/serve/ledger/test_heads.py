"""A signed head that is kept elsewhere shows what was cut off or rewritten, and where to verify from."""

from __future__ import annotations

import http.server
import json
import threading

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from noiseproof.errors import LedgerError
from noiseproof.serve.ledger import Amount, Checkpoint, Database, History, Keys, Ledger, Spend, heads

EACH = Amount.cost("gdp", 0.01)
KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([i]) * 32) for i in (1, 2))
PUBLIC = KEY.public_key()


@pytest.fixture
def ledger(database):
    ledger = Ledger(database)
    ledger.open("m", release="r", capacity=EACH * 100)
    Keys(database).create("ann", answers=50)
    spend(ledger, 5)
    return ledger


def spend(ledger, times, client="ann"):
    for _ in range(times):
        ledger.spend(Spend("m", client, EACH))


def problems(database, **given):
    return [problem for result in History(database).verify(**given) for problem in result.problems]


def signed(database, since=None):
    return Checkpoint.read(History(database).checkpoint(since).signed(KEY), PUBLIC, "it")


def forget(database, table, rows):
    with database.writing() as connection:
        guard = f"{table}_no_delete" if database.dialect == "sqlite" else f"{table}_no_change ON {table}"
        connection.execute(text(f"DROP TRIGGER {guard}"))
        connection.execute(text(f"DELETE FROM {table} WHERE {rows}"))


def test_a_head_that_is_still_there_holds_and_one_that_was_cut_off_does_not(ledger, database):
    early = signed(database)
    spend(ledger, 4)
    late = signed(database)
    assert problems(database, anchors=[early, late]) == []
    forget(database, "entries", "sequence > 8")
    assert any("entry 11, which was noted, is missing" in problem for problem in problems(database, anchors=[late]))
    assert not any("noted" in problem for problem in problems(database, anchors=[early]))


def test_grants_that_were_cut_off_lack_what_was_signed(ledger, database):
    head = signed(database)
    forget(database, "grants", f"sequence = {head.grants[0]}")
    assert any("which was noted, is missing" in problem for problem in problems(database, anchors=[head]))


def test_verifying_from_a_signed_head_reads_what_came_after_it_alone_and_finds_what_is_wrong_there(ledger, database):
    start = signed(database)
    spend(ledger, 3)
    spend(ledger, 2, "bob")
    (result,) = History(database).verify(since=start)
    assert (result.holds, result.entries, result.answers) == (True, 6, 5)
    later = signed(database, start)
    assert later.standings == signed(database).standings
    with database.writing() as connection:
        connection.execute(text("UPDATE balances SET spent = spent + 1 WHERE client = ''"))
    assert problems(database, since=later) == ["the balances are not what the history adds up to."]
    with pytest.raises(LedgerError, match="nobody should vouch"):
        History(database).checkpoint(start)


def test_verifying_from_a_head_holds_clients_to_their_rights_over_the_whole_history(ledger, database):
    start = signed(database)
    with database.writing() as connection:
        connection.execute(text("UPDATE clients SET answers = NULL"))
    spend(Ledger(database), 46)  # one that has read no rights before
    assert any("more answers than it ever had" in problem for problem in problems(database, since=start))


def test_a_head_of_another_ledger_or_by_another_key_is_not_believed(ledger, database, tmp_path):
    with Database(str(tmp_path / "other.db")) as other:
        Ledger(other).open("m", release="r", capacity=EACH)
        foreign = signed(other)
    assert any("of another ledger" in problem for problem in problems(database, anchors=[foreign]))
    document = History(database).checkpoint().signed(OTHER)
    with pytest.raises(LedgerError, match="another key"):
        Checkpoint.read(document, PUBLIC, "it")


def test_balances_that_were_changed_beside_the_signature_are_not_believed(ledger, database):
    document = json.loads(History(database).checkpoint().signed(KEY))
    document["balances"]["m"]["ann"][1] = [0]
    with pytest.raises(LedgerError, match=r"balances.json is not what was signed"):
        Checkpoint.read(json.dumps(document), PUBLIC, "it")


def test_heads_are_kept_in_files_in_urls_answers_and_in_other_ledgers(ledger, database, tmp_path):
    checkpoint = History(database).checkpoint()
    document = checkpoint.signed(KEY)
    (tmp_path / "head.json").write_text(document)

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(document.encode())

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        places = [str(tmp_path / "head.json"), f"http://127.0.0.1:{server.server_port}/", str(tmp_path / "other.db")]
        with Database(places[2]) as other:
            with pytest.raises(LedgerError, match="keeps no head"):
                heads.fetch(places[2], PUBLIC, ledger.id)
            heads.keep(other, checkpoint, document)
        found = [heads.fetch(place, PUBLIC, ledger.id) for place in places]
        server.shutdown()
        thread.join()
    assert found == [[Checkpoint.read(document, PUBLIC, "it")]] * 3
    with pytest.raises(LedgerError, match="does not answer"):
        heads.fetch("http://127.0.0.1:1/", PUBLIC, ledger.id)
    with Database(places[2]) as other, other.writing() as connection:
        connection.execute(text("UPDATE anchors SET document = '{}'"))
    with pytest.raises(LedgerError, match="does not hold"):
        heads.fetch(places[2], PUBLIC, ledger.id)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.sampled_from(["head", "balances"]), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    st.binary(max_size=200)
    | _JSON.map(json.dumps)
    | st.fixed_dictionaries({"head": _JSON, "balances": _JSON}).map(json.dumps)
)
def test_what_is_no_signed_head_is_refused_in_one_sentence(document):
    with pytest.raises(LedgerError, match=r"^it is "):
        Checkpoint.read(document, PUBLIC, "it")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(_JSON)
def test_what_the_key_signed_and_is_no_head_is_refused_in_one_sentence(content):
    from noiseproof.releases import signing

    balances = json.dumps(content, sort_keys=True)
    head = {"ledger": content, "made_at": content, "grants": content, "models": content}
    envelope = signing.sign({"balances.json": balances.encode()}, heads.PREDICATE, head, KEY)
    document = json.dumps({"head": json.loads(envelope), "balances": content})
    with pytest.raises(LedgerError, match=r"^it "):
        Checkpoint.read(document, PUBLIC, "it")
