"""Bad inputs, one a line: each gets one sentence, shows no cell, and changes, makes and loses no file."""

from __future__ import annotations

import gzip
import hashlib
import json
import zipfile

import numpy as np
import pandas as pd
import pytest

ROWS = 60
SCHEMA = {
    "columns": {"age": {"low": 0, "high": 120}, "ward": {"categories": ["a", "b"]}},
    "target": {"name": "ill", "classes": ["no", "yes"]},
    "skip": ["patient"],
}


def _frame(**changed):
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "patient": [f"p{row // 2}" for row in range(ROWS)],
            "age": generator.integers(18, 90, ROWS),
            "ward": generator.choice(["a", "b"], ROWS),
            "ill": generator.choice(["no", "yes"], ROWS),
        }
    )
    return frame.assign(**changed)


def _csv(**changed):
    return _frame(**changed).to_csv(index=False)


def _one(value, kind=object):
    """A column's values with one of them put in the fourth row."""
    return lambda name: [*_frame()[name].astype(kind).tolist()[:3], value, *_frame()[name].astype(kind).tolist()[4:]]


def _schema(**changed):
    return json.dumps({**SCHEMA, **changed})


def _npz(**arrays):
    def write(path):
        np.savez(path, **arrays)

    return write


TRAIN = ("train", "dp-sgd", "--data", "people.csv", "--schema", "schema.json", "--out", "out", "--no-baseline")
BARE = ("train", "dp-sgd", "--data", "people.csv", "--target", "ill", "--out", "out", "--no-baseline")

# name: (files that differ from a good table and its schema, the command, words of the sentence)
BAD = {
    # Files
    "no file": ({}, ("train", "dp-sgd", "--data", "nobody.csv", "--out", "out"), "no file"),
    "a folder": ({}, ("train", "dp-sgd", "--data", ".", "--out", "out"), "folder"),
    "empty": ({"people.csv": ""}, TRAIN, "is empty"),
    "only blanks": ({"people.csv": "\n\n"}, TRAIN, "is empty"),
    "only a header": ({"people.csv": "patient,age,ward,ill\n"}, TRAIN, "only a header"),
    "another ending": ({"people.doc": "x"}, (*TRAIN[:3], "people.doc"), "cannot be read"),
    "a pickle": ({"people.pkl": b"\x80\x04secret"}, (*TRAIN[:3], "people.pkl"), "cannot be read"),
    "latin-1": ({"people.csv": _csv(ward="secretä").encode("latin-1")}, TRAIN, "--encoding"),
    "no such encoding": ({}, (*TRAIN, "--encoding", "klingon"), "no such encoding"),
    "utf-16": ({"people.csv": _csv().encode("utf-16")}, TRAIN, "--encoding"),
    "a broken gz": (
        {"people.csv.gz": gzip.compress(_csv().encode())[:40]},
        (*TRAIN[:3], "people.csv.gz", *TRAIN[4:]),
        "corrupt",
    ),
    "no gz at all": ({"people.csv.gz": _csv()}, (*TRAIN[:3], "people.csv.gz", *TRAIN[4:]), "corrupt"),
    "long rows": ({"people.csv": _csv() + "p,1,a,no,secret,secret\n"}, TRAIN, "more cells than its header"),
    "long rows, others ignored": (
        {"people.csv": _csv() + "p,1,a,no,secret,secret\n", "schema.json": _schema(others="ignore")},
        TRAIN,
        "more cells than its header",
    ),
    "an open quote": ({"people.csv": _csv() + '"secret,1,a,no\n'}, TRAIN, "quote left open"),
    "a column twice": ({"people.csv": "age,age,ward,ill\n1,2,a,no\n"}, TRAIN, "more than one column named 'age'"),
    "a nameless column": ({"people.csv": ",age,ward,ill\n1,2,a,no\n"}, TRAIN, "without a name"),
    "a broken sheet": ({"people.xlsx": b"secret"}, (*TRAIN[:3], "people.xlsx", *TRAIN[4:]), "corrupt"),
    "a broken Parquet file": ({"people.parquet": b"secret"}, (*TRAIN[:3], "people.parquet", *TRAIN[4:]), "corrupt"),
    "a broken npz": ({"people.npz": b"secret"}, (*TRAIN[:3], "people.npz", "--out", "out"), "corrupt"),
    "another zip": (
        {"people.npz": lambda path: zipfile.ZipFile(path, "w").close()},
        (*TRAIN[:3], "people.npz"),
        "must hold arrays",
    ),
    "arrays of two lengths": (
        {"a.npz": _npz(x=np.eye(4), y=np.zeros(3))},
        (*TRAIN[:3], "a.npz"),
        "4 records but 3 labels",
    ),
    "arrays of objects": (
        {"a.npz": _npz(x=np.array([{"a": "secret"}, 1], dtype=object), y=np.zeros(2))},
        (*TRAIN[:3], "a.npz"),
        "Python objects",
    ),
    "NaN in arrays": ({"a.npz": _npz(x=np.full((4, 2), np.nan), y=[0, 1, 0, 1])}, (*TRAIN[:3], "a.npz"), "NaN"),
    "fractions as classes": ({"a.npz": _npz(x=np.eye(4), y=[0.5, 1, 0, 1])}, (*TRAIN[:3], "a.npz"), "regression"),
    "one record": ({"people.csv": "patient,age,ward,ill\np,1,a,no\n"}, TRAIN, "one class only"),
    # Cells, by a schema
    "text among numbers": ({"people.csv": _csv(age=_one("secret")("age"))}, TRAIN, "'age' is to hold numbers"),
    "an infinite number": ({"people.csv": _csv(age=_one(np.inf, float)("age"))}, TRAIN, "infinite"),
    "a number too large": ({"people.csv": _csv(age=_one("1e400")("age"))}, TRAIN, "infinite"),
    "digits with underscores": ({"people.csv": _csv(age=_one("1_000")("age"))}, TRAIN, "'age' is to hold numbers"),
    "bytes that are no text": ({"people.csv": bytes(range(256)) * 20}, TRAIN, "--encoding"),
    "a gap": ({"people.csv": _csv(age=_one(None)("age"))}, TRAIN, "'age' has 1 missing"),
    "a gap in categories": ({"people.csv": _csv(ward=_one(None)("ward"))}, TRAIN, "'ward' has 1 missing"),
    "an unknown class": ({"people.csv": _csv(ill=_one("secret")("ill"))}, TRAIN, "none of the 2 classes"),
    "a missing target": ({"people.csv": _csv(ill=_one(None)("ill"))}, TRAIN, "missing in 1 rows"),
    "one class": ({"people.csv": _csv(ill="no")}, TRAIN, "one class only"),
    "an unnamed column": ({"people.csv": _csv(secret_column=1)}, TRAIN, "does not name"),
    "an absent column": ({"people.csv": _frame().drop(columns="age").to_csv(index=False)}, TRAIN, "no column 'age'"),
    "an absent target": ({"people.csv": _frame().drop(columns="ill").to_csv(index=False)}, TRAIN, "no column 'ill'"),
    "several things at once": (
        {"people.csv": _csv(age=_one("secret")("age"), ill=_one("secret")("ill"), more=1)},
        TRAIN,
        "3 problems",
    ),
    "a missing person": (
        {"people.csv": _csv(patient=_one(None)("patient")), "schema.json": _schema(skip=[])},
        (*TRAIN, "--person", "patient"),
        "empty in 1 rows",
    ),
    # Cells, without a schema
    "no target": ({}, ("train", "dp-sgd", "--data", "people.csv", "--out", "out"), "say which column"),
    "a target that is no column": ({}, (*BARE[:4], "--target", "height"), "no column 'height'"),
    "an index without a name": ({"people.csv": _frame().to_csv()}, BARE, "without a name"),
    "free text without a schema": (
        {
            "people.csv": pd.concat([_frame(note=[f"secret {k} {r}" for r in range(ROWS)]) for k in range(2)]).to_csv(
                index=False
            )
        },
        BARE,
        "different texts",
    ),
    "an empty column": ({"people.csv": _csv(nothing="")}, BARE, "'nothing' is empty"),
    "two ways of writing dates": (
        {"people.csv": _csv(day=["2020-01-01", "31.12.2021"] * (ROWS // 2))},
        BARE,
        "several ways",
    ),
    "a skipped column that is none": ({}, (*BARE, "--skip", "height"), "'height' to skip"),
    "many whole numbers": ({"people.csv": _csv(ill=range(ROWS))}, BARE, "--task"),
    "fractions to predict": ({"people.csv": _csv(ill=np.linspace(0, 1, ROWS))}, BARE, "--task regression"),
    "a person that is none": ({}, (*BARE, "--person", "nobody"), "whose a row is"),
    "the target as person": ({}, (*TRAIN, "--person", "ill"), "is the target"),
    # Schemas
    "no schema": ({}, (*TRAIN[:5], "nothing.json"), "no schema file"),
    "no JSON": ({"schema.json": "{"}, TRAIN, "not valid JSON"),
    "a name twice": ({"schema.json": '{"columns": {}, "columns": {}}'}, TRAIN, "twice"),
    "no columns": ({"schema.json": _schema(columns={})}, TRAIN, "columns"),
    "low above high": ({"schema.json": _schema(columns={"age": {"low": 2, "high": 1}})}, TRAIN, "low must be less"),
    "one bound": ({"schema.json": _schema(columns={"age": {"low": 2}})}, TRAIN, "needs low and high"),
    "an infinite bound": ({"schema.json": '{"columns": {"age": {"low": 0, "high": Infinity}}}'}, TRAIN, "finite"),
    "a date and a number": (
        {"schema.json": _schema(columns={"age": {"low": "2020-01-01", "high": 3}})},
        TRAIN,
        "both dates",
    ),
    "a date format that is none": (
        {"schema.json": _schema(columns={"age": {"low": "2020-01-01", "high": "2021-01-01", "date": "%Q"}})},
        TRAIN,
        "as strptime has it",
    ),
    "a date format without a year": (
        {"schema.json": _schema(columns={"age": {"low": "2020-01-01", "high": "2021-01-01", "date": "%d.%m."}})},
        TRAIN,
        "as strptime has it",
    ),
    "a list for a schema": ({"schema.json": "[]"}, TRAIN, "does not fit"),
    "a schema nested without end": ({"schema.json": "[" * 100_000}, TRAIN, "too deeply"),
    "a bound of five thousand digits": (
        {"schema.json": _schema().replace("120", "1" + "0" * 5000)},
        TRAIN,
        "a number that is too long",
    ),
    "NaN for a bound": ({"schema.json": _schema().replace("120", "NaN")}, TRAIN, "finite"),
    "a schema in UTF-16": ({"schema.json": _schema().encode("utf-16")}, TRAIN, "text file of JSON"),
    "a text of too many parts": (
        {"schema.json": _schema(columns={"ward": {"text": 10**12}})},
        TRAIN,
        "less than or equal",
    ),
    "a category twice": ({"schema.json": _schema(columns={"ward": {"categories": ["a", "a"]}})}, TRAIN, "differ"),
    "a word nobody knows": ({"schema.json": _schema(colums={})}, TRAIN, "colums"),
    "the target as a feature": (
        {"schema.json": _schema(columns={"ill": {"low": 0, "high": 1}})},
        TRAIN,
        "target is not to be",
    ),
    "used and skipped": ({"schema.json": _schema(skip=["age"])}, TRAIN, "skipped and used"),
    "another target": ({}, (*TRAIN, "--target", "ward"), "the schema's target is"),
    "bounds for classes": ({}, (*TRAIN, "--task", "regression"), "give its bounds"),
    # Options
    "epsilon 0": ({}, (*TRAIN, "--epsilon", "0"), "epsilon"),
    "a negative epsilon": ({}, (*TRAIN, "--epsilon", "-1"), "epsilon"),
    "NaN for epsilon": ({}, (*TRAIN, "--epsilon", "nan"), "finite"),
    "NaN for delta": ({}, (*TRAIN, "--delta", "nan"), "delta must lie"),
    "NaN for a setting": ({}, (*TRAIN, "--set", "epochs=nan"), "finite"),
    "a negative seed": ({}, (*TRAIN, "--seed", "-1"), "0 or more"),
    "a negative weight": ({}, (*TRAIN, "--set", "class_weights=-1,1"), "class_weights"),
    "balanced weights without shares": ({}, (*TRAIN, "--set", "class_weights=balanced"), "shares"),
    "a threshold of 2": ({}, (*TRAIN, "--set", "threshold=2"), "less than 1"),
    "everything skipped": ({}, (*TRAIN, "--skip", "age", "--skip", "ward"), "nothing to learn from"),
    "the target skipped": ({}, (*TRAIN, "--skip", "ill"), "cannot be skipped"),
    "out below a file": ({}, (*TRAIN[:7], "people.csv/out"), "people.csv"),
    "out is the schema": ({}, (*TRAIN[:7], "schema.json", "--force"), "would be lost"),
    "a comparison of an unknown method": (
        {},
        ("compare", "--data", "people.csv", "--schema", "schema.json", "--methods", "proven,magic", "--out", "new"),
        "no method 'magic'",
    ),
    "a comparison of no fits": ({}, ("compare", "--fits", "0", "--out", "new"), "at least once"),
    "an epsilon left out of several": ({}, ("compare", "--epsilon", "1,,3", "--out", "new"), "takes a number"),
    "a comparison over the table": (
        {},
        ("compare", "--data", "people.csv", "--out", "people.csv"),
        "holds no comparison",
    ),
    "a candidate's setting without a value": ({}, ("choose", "dp-sgd:lr", "functional"), "NAME=VALUE"),
    "a choice of half a training": (
        {},
        ("choose", "dp-sgd", "functional", "--data", "people.csv", "--schema", "schema.json", "--runs", "0.5"),
        "above 1",
    ),
    "no rows to make": (
        {},
        ("synth", "marginals", "--data", "people.csv", "--schema", "schema.json", "--rows", "0"),
        "greater than 0",
    ),
    "delta 1": ({}, (*TRAIN, "--delta", "1"), "delta"),
    "other neighbours": ({}, (*TRAIN, "--neighbours", "nearby"), "neighbours"),
    "an audit of no trials": ({}, ("audit", "dp-sgd", "--trials", "0"), "trials"),
    "a whole audit of no trials": ({}, ("audit", "dp-sgd", "--end-to-end", "--trials", "0"), "20 trials"),
    "no such method": ({}, ("train", "magic", "--data", "people.csv"), "no method 'magic'"),
    "no such setting": ({}, (*TRAIN, "--set", "magic=1"), "magic"),
    "a setting without a value": ({}, (*TRAIN, "--set", "epochs"), "NAME=VALUE"),
    "a setting of another kind": ({}, (*TRAIN, "--set", "epochs=many"), "epochs"),
    "no such network": ({}, (*TRAIN, "--network", "perceptron"), "no network"),
    "no such recipe": ({}, (*TRAIN, "--recipe", "cake"), "recipe"),
    "out is the data": ({}, (*TRAIN[:7], "people.csv", "--force"), "would be lost"),
    "out exists": ({"out": "somebody's"}, TRAIN, "exists"),
    "no bundle": ({}, ("predict", "nothing", "people.csv"), "nothing"),
    "a bundle of something else": ({}, ("predict", "people.csv", "people.csv"), "people.csv"),
    "a draft over the table": (
        {},
        ("data", "people.csv", "--target", "ill", "--draft-schema", "people.csv"),
        "would be lost",
    ),
    "a draft of nothing": ({}, ("data", "nobody.csv", "--target", "ill", "--draft-schema", "new.json"), "no file"),
    "a store without a schema": (
        {},
        ("train", "dp-sgd", "--data", "people.csv", "--target", "ill", "--store", "stored"),
        "with a schema",
    ),
    "bounds for no price": (
        {},
        ("data", "people.csv", "--schema", "people.json", "--buy-bounds", "new.json"),
        "--epsilon",
    ),
    "bounds that are public already": (
        {
            "public.json": b'{"columns": {"age": {"low": 0, "high": 99}}, "target": {"name": "ill", "classes": ["no", "yes"]}}'
        },
        ("data", "people.csv", "--schema", "public.json", "--buy-bounds", "new.json", "--epsilon", "1"),
        "nothing to be bought",
    ),
    "resuming nothing": ({}, (*TRAIN, "--resume"), "--checkpoint"),
    "records of no generator": ({}, ("synth", "dp-sgd", "--data", "people.csv"), "makes no synthetic records"),
}


def _digests(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_there_are_sixty_and_more():
    assert len(BAD) >= 60


@pytest.mark.parametrize("name", list(BAD))
def test_a_bad_input_gets_one_sentence_and_nothing_is_lost(noiseproof, tmp_path, monkeypatch, name):
    files, command, words = BAD[name]
    monkeypatch.chdir(tmp_path)
    for file, content in {"people.csv": _csv(), "schema.json": _schema(), **files}.items():
        if callable(content):
            content(tmp_path / file)
        else:
            (tmp_path / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    before = _digests(tmp_path)
    outcome = noiseproof(*command)
    assert outcome.code in (1, 2)
    assert outcome.out == ""
    assert outcome.err.count("error:") == 1
    assert words in outcome.err
    assert "secret " not in outcome.err.replace("secret_column", "")
    assert "Traceback" not in outcome.err
    assert "unexpected" not in outcome.err
    assert _digests(tmp_path) == before
