"""`data` lists the named sets and drafts schemas."""

from __future__ import annotations

import json


def test_every_named_set_is_listed_with_the_contracts_keys(noiseproof):
    rows = noiseproof("data", "--json").document
    assert {"digits", "breast-cancer", "mnist", "cifar10", "svhn", "adult", "location", "purchase", "texas"} <= {
        row["name"] for row in rows
    }
    for row in rows:
        assert {"name", "records", "features", "classes", "available", "path"} <= row.keys()
    assert next(row for row in rows if row["name"] == "digits")["available"]


def test_a_drafted_schema_proves_nothing_until_a_person_removes_its_mark(noiseproof, tmp_path):
    table, schema = tmp_path / "people.csv", tmp_path / "people.json"
    table.write_text("age,label\n" + "".join(f"{i % 70},{'ab'[i % 2]}\n" for i in range(200)))
    outcome = noiseproof("data", table, "--target", "label", "--draft-schema", schema)
    assert outcome.code == 0
    assert "replace its bounds" in outcome.err
    drafted = json.loads(schema.read_text())
    assert drafted["columns"]["age"]["high"] == 69
    assert schema.stat().st_mode & 0o777 == 0o600  # it holds exact values of records
    command = (
        "train",
        "dp-sgd",
        "--data",
        table,
        "--target",
        "label",
        "--schema",
        schema,
        "--set",
        "epochs=1",
        "--json",
    )
    card = noiseproof(*command).document["card"]
    assert (card["proven"], card["verdict"]) == (None, "nothing proven")
    assert drafted.pop("drafted") is True
    schema.write_text(json.dumps(drafted))
    assert noiseproof(*command).document["card"]["proven"] is not None
    assert noiseproof("data", table, "--target", "label", "--draft-schema", schema).code == 2
