"""Files as people have them: separators, decimal commas, encodings, Excel, dates, texts, ids, and all that is wrong at once."""

from __future__ import annotations

import datetime
import gzip
import json

import numpy as np
import pandas as pd
import pytest
import torch

from noiseproof.data import Schema, decode, load
from noiseproof.data.draft import draft
from noiseproof.data.formats import read_table
from noiseproof.data.tables import code, code_rows
from noiseproof.errors import DataError, SettingError

ROWS = 60


def _frame():
    generator = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "patient_id": [f"p{row % 30:03}" for row in range(ROWS)],
            "dose [mg]": np.round(generator.random(ROWS) * 10, 2),
            "visit": pd.date_range("2020-01-01", periods=ROWS).strftime("%d.%m.%Y"),
            "note": [f"feels better and better {row}" if row % 3 else "" for row in range(ROWS)],
            "gender": generator.choice(["männlich", "weiblich"], ROWS),
            "ill": generator.choice(["no", "yes"], ROWS),
        }
    )


SCHEMA = {
    "columns": {
        "dose [mg]": {"low": 0, "high": 10},
        "visit": {"low": "2020-01-01", "high": "2020-12-31", "date": "%d.%m.%Y"},
        "note": {"text": 16},
        "gender": {"categories": ["männlich", "weiblich"]},
    },
    "target": {"name": "ill", "classes": ["no", "yes"]},
    "skip": ["patient_id"],
}


def _comma(frame):
    return frame.assign(**{"dose [mg]": frame["dose [mg]"].map(lambda dose: str(dose).replace(".", ","))})


WAYS = {
    "plain.csv": lambda path: _frame().to_csv(path, index=False),
    "semicolon.csv": lambda path: _frame().to_csv(path, index=False, sep=";"),
    "comma.csv": lambda path: _comma(_frame()).to_csv(path, index=False, sep=";"),
    "tab.tsv": lambda path: _frame().to_csv(path, index=False, sep="\t"),
    "bar.csv": lambda path: _frame().to_csv(path, index=False, sep="|"),
    "packed.csv.gz": lambda path: path.write_bytes(
        gzip.compress(_comma(_frame()).to_csv(index=False, sep=";").encode())
    ),
    "marked.csv": lambda path: _frame().to_csv(path, index=False, encoding="utf-8-sig"),
    "sheet.xlsx": lambda path: _frame().to_excel(path, index=False),
    "dated.xlsx": lambda path: (
        _frame().assign(visit=pd.date_range("2020-01-01", periods=ROWS)).to_excel(path, index=False)
    ),
    "table.parquet": lambda path: _frame().to_parquet(path),
}


@pytest.mark.parametrize("name", list(WAYS))
def test_a_table_is_the_same_however_it_was_saved(tmp_path, name):
    WAYS[name](tmp_path / name)
    schema = Schema.model_validate(SCHEMA)
    expected = code(_frame(), schema, name="x")[0]
    found = code(read_table(tmp_path / name, schema), schema, name="x")[0]
    assert found.public == expected.public
    torch.testing.assert_close(found.features, expected.features)
    assert found.labels.equal(expected.labels)


def test_latin_1_is_read_by_option_and_by_schema_and_named_where_it_is_not(tmp_path):
    _frame().to_csv(tmp_path / "a.csv", index=False, encoding="latin-1")
    schema = Schema.model_validate(SCHEMA)
    with pytest.raises(DataError, match="--encoding latin-1"):
        load(tmp_path / "a.csv", schema=schema)
    by_option = load(tmp_path / "a.csv", schema=schema, encoding="latin-1")
    by_schema = load(tmp_path / "a.csv", schema=schema.model_copy(update={"encoding": "latin-1"}))
    assert by_option.train.fingerprint() == by_schema.train.fingerprint()
    assert not any("gender" in remark for remark in by_option.remarks)
    with pytest.raises(SettingError, match="no such encoding"):
        load(tmp_path / "a.csv", schema=schema, encoding="klingon")


def test_dates_are_days_between_public_ones_and_come_back_as_they_were_written():
    schema = Schema.model_validate({**SCHEMA, "columns": {"visit": SCHEMA["columns"]["visit"]}, "others": "ignore"})
    frame = _frame()
    made, remarks = code(frame, schema, name="x")
    days = torch.arange(ROWS) / 365
    torch.testing.assert_close(made.features[:, 0], days.float())
    assert decode(made.public, made.features, made.labels)["visit"].tolist() == frame["visit"].tolist()
    assert remarks == ()
    with pytest.raises(DataError, match=r"written as %d\.%m\.%Y but does not in 1 rows"):
        code(frame.assign(visit=["yesterday", *frame["visit"][1:]]), schema, name="x")
    late = code(frame.assign(visit=["01.01.2031", *frame["visit"][1:]]), schema, name="x")
    assert late[0].features[0, 0] == 1
    assert "visit" in late[1][0]


def test_texts_are_hashed_each_by_itself_and_cannot_come_back():
    schema = Schema.model_validate({**SCHEMA, "columns": {"note": {"text": 32}}, "others": "ignore"})
    made, _ = code(_frame(), schema, name="x")
    assert made.public.shape == (32,)
    assert made.features.min() >= 0
    assert made.features[0].abs().sum() == 0
    torch.testing.assert_close(made.features[1].norm(), torch.tensor(1.0))
    alone, _ = code(_frame().iloc[[1]], schema, name="x")
    assert alone.features[0].equal(made.features[1])
    with pytest.raises(SettingError, match="hashed text"):
        decode(made.public, made.features, made.labels)


def test_a_draft_skips_ids_and_free_text_and_reads_dates(tmp_path):
    frame = _frame().assign(record_no=range(ROWS))
    frame["note"] = [f"feels {row}" for row in range(ROWS)]
    many = pd.concat(
        [frame.assign(note=frame["note"] + str(k), record_no=frame["record_no"] + 100 * k) for k in range(5)]
    )
    schema = draft(many, "ill", name="x", skip_unusable=True)
    assert schema.skip == ("note", "record_no")
    assert schema.columns["visit"].low == datetime.date(2020, 1, 1)
    assert schema.columns["visit"].date == "%d.%m.%Y"
    again = Schema.model_validate(json.loads(schema.to_json()))
    assert again == schema
    made, _ = code(many, again, name="x")
    assert Schema.of(made.public).columns == schema.columns


@pytest.mark.parametrize("mark", ["?", "n/a", "NA", "-"])
def test_a_drafted_schema_reads_the_file_that_it_was_drafted_from_whatever_marks_its_gaps(tmp_path, mark):
    doses = [mark, mark, *_frame()["dose [mg]"][2:]]
    _frame().drop(columns="note").assign(**{"dose [mg]": doses}).to_csv(tmp_path / "a.csv", index=False)
    drafted = draft(read_table(tmp_path / "a.csv"), "ill", name="a.csv")
    made, _ = code(read_table(tmp_path / "a.csv", drafted), drafted, name="a.csv")
    assert drafted.columns["dose [mg]"].missing
    assert int((decode(made.public, made.features, made.labels)["dose [mg]"]).isna().sum()) == 2
    with pytest.raises(DataError, match="has 2 missing numbers"):
        load(tmp_path / "a.csv", target="ill")


@pytest.mark.parametrize("words", [("true", "false"), ("True", "FALSE"), ("True", "true"), ("False", "")])
def test_true_and_false_are_drafted_as_they_are_written(tmp_path, words):
    rows = [f"{words[row % 2]},{row},{'ab'[row % 3 > 0]}" for row in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["fits,age,ill", *rows]))
    drafted = draft(read_table(tmp_path / "a.csv"), "ill", name="a.csv")
    assert drafted.columns["fits"].categories == tuple(sorted(word for word in words if word))
    made, remarks = code(read_table(tmp_path / "a.csv", drafted), drafted, name="a.csv")
    assert not remarks
    fits = decode(made.public, made.features, made.labels)["fits"]
    assert fits.astype(object).where(fits.notna(), "").astype(str).tolist() == [*words] * 30


def test_decimal_commas_with_marks_for_gaps_are_drafted_as_numbers(tmp_path):
    rows = [f"{mark};{'ab'[row % 2]}" for row, mark in enumerate(["?", *(f"{row},5" for row in range(150))])]
    (tmp_path / "a.csv").write_text("\n".join(["weight;ill", *rows]))
    drafted = draft(read_table(tmp_path / "a.csv"), "ill", name="a.csv")
    assert (drafted.columns["weight"].low, drafted.columns["weight"].high) == (0.5, 149.5)
    made, _ = code(read_table(tmp_path / "a.csv", drafted), drafted, name="a.csv")
    assert int(decode(made.public, made.features, made.labels)["weight"].isna().sum()) == 1


def test_skipped_columns_are_no_features_and_are_named(tmp_path):
    _frame().to_csv(tmp_path / "a.csv", index=False)
    found = load(tmp_path / "a.csv", target="ill", skip=["note", "patient_id"])
    assert [column.name for column in found.train.public.columns] == ["dose [mg]", "visit", "gender"]
    assert "skipped columns: 'note', 'patient_id'." in found.remarks
    with pytest.raises(SettingError, match="no column 'height' to skip"):
        load(tmp_path / "a.csv", target="ill", skip=["height"])


def test_a_column_that_looks_like_a_persons_is_mentioned_and_declaring_it_helps(tmp_path):
    _frame().to_csv(tmp_path / "a.csv", index=False)
    schema = Schema.model_validate(SCHEMA)
    said = load(tmp_path / "a.csv", schema=schema).remarks
    assert any("--person patient_id" in remark for remark in said)
    declared = schema.model_copy(update={"skip": ()})
    found = load(tmp_path / "a.csv", schema=declared, person="patient_id")
    assert not any("--person" in remark for remark in found.remarks)
    assert found.train.unit == "person"


def test_all_problems_of_a_table_are_named_at_once_without_a_cell(tmp_path):
    frame = _frame()
    frame["dose [mg]"] = frame["dose [mg]"].astype(object)
    frame.loc[3, "dose [mg]"] = "secret"
    frame.loc[4, "visit"] = "secret"
    frame.loc[5:7, "gender"] = None
    frame.loc[8, "ill"] = "secret"
    frame["surplus"] = "secret"
    frame.to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(DataError, match="5 problems") as refused:
        load(tmp_path / "a.csv", schema=Schema.model_validate(SCHEMA))
    said = str(refused.value)
    assert "secret" not in said
    for words in ("'surplus'", "'dose [mg]'", "'visit'", "'gender' has 3 missing", "'ill' is none of"):
        assert words in said
    with pytest.raises(DataError, match="2 problems") as refused:
        load(tmp_path / "a.csv", target="surplus")
    assert "secret" not in str(refused.value)


def test_new_rows_are_coded_as_the_records_were_and_other_columns_are_named():
    schema = Schema.model_validate(SCHEMA)
    made, _ = code(_frame(), schema, name="x")
    rows = _frame().drop(columns=["ill"])[["gender", "note", "visit", "dose [mg]"]]
    assert code_rows(rows, made.public)[0].equal(made.features)
    with pytest.raises(DataError, match=r"no column 'gender'.*'sex' instead"):
        code_rows(rows.rename(columns={"gender": "sex"}), made.public)


def test_many_parts_of_one_class_each_can_be_stored(tmp_path):
    frame = _frame().sort_values("ill")
    frame.to_parquet(tmp_path / "a.parquet", row_group_size=10)
    schema = Schema.model_validate(SCHEMA)
    stored = load(tmp_path / "a.parquet", schema=schema, store=tmp_path / "stored").train
    assert stored.public == load(tmp_path / "a.parquet", schema=schema).train.public
