"""Whatever texts and numbers a statement is given, both databases keep them as they are; no value is read as SQL or JSON."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from noiseproof.serve.ledger.statements import Insertion, Statement, Together
from noiseproof.serve.ledger.tables import grants, models, spending

QUICK = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
# PostgreSQL keeps no zero byte, and nobody half a character; neither comes so far.
TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    [
        "",
        "'",
        '"',
        "\\",
        '{"a"}',
        "%s",
        "%(model)s",
        ":model",
        "= ANY(:model)",
        "NULL",
        "\\u0000",
        "a\nb",
        "{",
        "}",
        ",",
    ]
)
NUMBERS = st.integers(-(2**63), 2**63 - 1)


@pytest.mark.parametrize("together", [False, True])
@QUICK
@given(names=st.lists(TEXTS, unique=True, min_size=1, max_size=6), number=NUMBERS)
def test_rows_are_read_back_as_they_were_written_and_found_by_a_list_of_names(database, together, names, number):
    kept = {"release": "r", "measure": "gdp", "orders": "[]", "sequence": number}
    with database.writing(together=together) as connection:
        Statement("DELETE FROM models").run(connection)
        Insertion(models).run(connection, [{"model": name, **kept, "head": name[::-1], "folded": 0} for name in names])
        read = Statement("SELECT model, sequence, head FROM models WHERE model = ANY(:names) ORDER BY model")
        for asked in (names, names[:1], []):
            found = read.run(connection, names=asked).fetchall()
            assert {(*row,) for row in found} == {(name, number, name[::-1]) for name in asked}
        one = (
            Statement("SELECT head FROM models WHERE model = :name FOR UPDATE")
            .run(connection, name=names[0])
            .fetchall()
        )
        assert [(*row,) for row in one] == [(names[0][::-1],)]


@QUICK
@given(TEXTS, TEXTS, NUMBERS, NUMBERS)
def test_a_row_that_is_there_gets_the_columns_that_change_and_no_others(database, client, other, first, second):
    put, row = Insertion(spending, "answers"), {"model": "m", "client": client, "span": "hour", "start": first}
    with database.writing() as connection:
        for table in ("spending", "models"):
            Statement(f"DELETE FROM {table}").run(connection)
        account = {
            "model": "m",
            "release": other,
            "measure": "gdp",
            "orders": "[]",
            "sequence": 0,
            "head": other,
            "folded": 0,
        }
        Insertion(models).run(connection, [account])
        for answers in (first, second):
            put.run(connection, [{**row, "answers": answers}])
        found = Statement("SELECT client, start, answers FROM spending").run(connection).fetchall()
        assert [(*one,) for one in found] == [(client, first, second)]


@QUICK
@given(TEXTS, TEXTS, TEXTS, NUMBERS)
def test_a_statement_and_insertions_that_are_sent_as_one_do_what_they_do_one_by_one(
    database, head, client, kind, number
):
    both = Together(
        Statement("UPDATE models SET sequence = :sequence, head = :head WHERE model = :model"),
        Insertion(spending),
        Insertion(grants),
    )
    grant = {"kind": kind, "subject": client, "content": head, "made_at": number, "hash": kind}
    with database.writing() as connection:
        for table in ("spending", "models"):
            Statement(f"DELETE FROM {table}").run(connection)
        account = {
            "model": "m",
            "release": "r",
            "measure": "gdp",
            "orders": "[]",
            "sequence": 0,
            "head": "",
            "folded": 0,
        }
        Insertion(models).run(connection, [account])
        ((before,),) = Statement("SELECT COALESCE(MAX(sequence), 0) FROM grants").run(connection)
        sums = [
            {"model": "m", "client": client, "span": span, "start": 0, "answers": number} for span in ("a", kind + "b")
        ]
        both.run(
            connection, {"model": "m", "sequence": number, "head": head}, sums, [{"sequence": before + 1, **grant}]
        )
        assert [(*row,) for row in Statement("SELECT sequence, head FROM models").run(connection)] == [(number, head)]
        read = Statement("SELECT client, span, answers FROM spending").run(connection).fetchall()
        assert {(*row,) for row in read} == {(client, "a", number), (client, kind + "b", number)}
        last = Statement("SELECT kind, subject, content, made_at FROM grants WHERE sequence = :at")
        assert [(*row,) for row in last.run(connection, at=before + 1)] == [(kind, client, head, number)]
