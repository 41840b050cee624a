"""`data` lists the named sets and drafts schemas."""

from __future__ import annotations

import json

from noiseproof.data import load


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


def test_a_draft_says_where_none_may_be_a_category_and_listed_it_is_one(noiseproof, tmp_path):
    table, schema = tmp_path / "people.csv", tmp_path / "people.json"
    table.write_text("drug,label\n" + "".join(f"{('None', 'aspirin')[i % 2]},{'ab'[i % 3 > 0]}\n" for i in range(200)))
    outcome = noiseproof("data", table, "--target", "label", "--draft-schema", schema)
    assert "read as missing in drug;" in outcome.err
    drafted = json.loads(schema.read_text())
    drafted["columns"]["drug"] = {"categories": ["None", "aspirin"]}
    del drafted["drafted"]
    schema.write_text(json.dumps(drafted))
    train = load(table, schema=schema, test_fraction=0).train
    assert train.features.mean(0).tolist() == [0.5, 0.5]
