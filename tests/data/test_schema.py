"""Schemas: what they say, and what is refused in one sentence."""

from __future__ import annotations

import json

import pytest

from noiseproof.data import Column, read_schema
from noiseproof.data.schema import Schema, built_in
from noiseproof.errors import SettingError

GOOD = {
    "columns": {
        "age": {"low": 0, "high": 120, "integer": True},
        "colour": {"categories": ["red", "blue"], "missing": True},
        "ward": {"categories": [1, 2, 3]},
    },
    "target": {"name": "ill", "classes": ["no", "yes"]},
}


def _write(path, content) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_a_schema_file_gives_the_public_columns_in_order(tmp_path):
    schema = read_schema(_write(tmp_path / "s.json", GOOD))
    assert schema.features() == (
        Column("age", 0, 120, integer=True),
        Column("colour", categories=("red", "blue"), missing=True),
        Column("ward", categories=("1", "2", "3"), integer=True),
    )
    assert schema.classes == ("no", "yes")
    assert schema.names == ("age", "colour", "ward", "ill")


def test_a_schema_survives_being_written_and_read(tmp_path):
    schema = Schema.model_validate(GOOD)
    assert read_schema(_write(tmp_path / "s.json", schema.to_json())) == schema


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": {}}, "columns"),
        ({"columns": {"age": {"low": 0}}}, "needs low and high, or categories"),
        ({"columns": {"age": {"low": 1, "high": 1}}}, "low must be less than high"),
        ({"columns": {"age": {"low": 0, "high": 1, "categories": ["a"]}}}, "not two of them"),
        ({"columns": {"age": {"categories": ["a", "a "]}}}, "categories must differ"),
        ({"columns": {"age": {"lo": 0, "high": 1}}}, "columns.age.lo"),
        ({"columns": {"ill": {"low": 0, "high": 1}}}, "target is not to be among the columns"),
        ({"target": {"name": "ill", "classes": ["no"]}}, "at least two classes"),
        ({"target": {"name": "ill", "classes": ["no", "yes"], "low": 0, "high": 1}}, "no classes"),
        ({"target": {"name": "ill", "low": 0}}, "low and high"),
        ({"target": {"name": "ill", "low": 2, "high": 1}}, "the lesser"),
        ({"target": {"name": "ill", "low": -1, "high": 1, "task": "count"}}, "at least 0"),
        ({"target": {"name": "ill", "classes": ["no", "yes"], "shares": [1.0]}}, "for each class"),
        ({"target": {"name": "ill", "classes": ["no", "yes"], "shares": [1.0, 0.0]}}, "for each class"),
        ({"target": {"name": "ill", "classes": ["no", "yes"], "shares": [0.9, 0.3]}}, "add up to 1"),
        ({"target": {"name": "ill", "low": 0, "high": 1, "shares": [1.0]}}, "only classes have shares"),
        ({"person": "ill"}, "person is not to be"),
        ({"person": "age"}, "person is not to be"),
        ({"target": {"name": "ill", "classes": ["no", "no"]}}, "classes must differ"),
        ({"others": "keep"}, "others"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_with_the_place(tmp_path, change, message):
    with pytest.raises(SettingError, match=message) as refused:
        read_schema(_write(tmp_path / "s.json", GOOD | change))
    assert "\n" not in str(refused.value)


def test_a_schema_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(SettingError, match="there is no schema file"):
        read_schema(tmp_path / "none.json")


def test_a_folder_is_no_schema(tmp_path):
    with pytest.raises(SettingError, match="cannot be read"):
        read_schema(tmp_path)


def test_text_that_is_no_json_is_refused_with_its_line(tmp_path):
    with pytest.raises(SettingError, match=r"not valid JSON \(line 2\)"):
        read_schema(_write(tmp_path / "s.json", "{\n columns: 1}"))


def test_a_column_named_twice_is_refused_rather_than_overwritten(tmp_path):
    column = '"a": {"low": 0, "high": 1}'
    text = f'{{"columns": {{{column}, {column}}}, "target": {{"name": "t", "classes": ["x", "y"]}}}}'
    with pytest.raises(SettingError, match="names 'a' twice"):
        read_schema(_write(tmp_path / "s.json", text))


def test_infinite_bounds_are_refused(tmp_path):
    text = '{"columns": {"a": {"low": 0, "high": Infinity}}, "target": {"name": "t", "classes": ["x", "y"]}}'
    with pytest.raises(SettingError, match=r"columns\.a\.high"):
        read_schema(_write(tmp_path / "s.json", text))


def test_another_categorical_column_can_be_the_target():
    schema = Schema.model_validate(GOOD).with_target("ward")
    assert schema.target.name == "ward"
    assert schema.integer_classes
    assert schema.classes == ("1", "2", "3")
    assert schema.columns["ill"].categories == ("no", "yes")
    assert "ward" not in schema.columns


def test_columns_with_gaps_cannot_be_the_target():
    with pytest.raises(SettingError, match="cannot be the target"):
        Schema.model_validate(GOOD).with_target("colour")


def test_a_number_can_be_the_target_within_its_bounds():
    schema = Schema.model_validate(GOOD).with_target("age")
    assert schema.target.task == "regression"
    assert schema.target.bounds == (GOOD["columns"]["age"]["low"], GOOD["columns"]["age"]["high"])
    assert schema.with_task("count", (0, 5)).target.bounds == (0, 5)


def test_a_target_that_is_no_column_is_refused():
    with pytest.raises(SettingError, match="no column 'height'"):
        Schema.model_validate(GOOD).with_target("height")


def test_adults_built_in_schema_has_the_documented_lists():
    adult = built_in("adult")
    sizes = {column.name: len(column.categories) for column in adult.features() if not column.numeric}
    assert sizes == {
        "workclass": 8,
        "education": 16,
        "marital_status": 7,
        "occupation": 14,
        "relationship": 6,
        "race": 5,
        "sex": 2,
        "native_country": 41,
    }
    assert {column.name for column in adult.features() if column.missing} == {
        "workclass",
        "occupation",
        "native_country",
    }
    assert adult.classes == ("<=50K", ">50K")


def test_the_built_in_bounds_of_breast_cancer_are_those_its_documentation_prints():
    import re

    from sklearn.datasets import load_breast_cancer

    rows = re.findall(
        r"^(.+) \((mean|standard error|worst)\):\s+([\d.]+)\s+([\d.]+)$", load_breast_cancer().DESCR, re.M
    )
    forms = {"mean": "mean {}", "standard error": "{} error", "worst": "worst {}"}
    columns = built_in("breast-cancer").columns
    assert len(rows) == len(columns) == 30
    for name, statistic, low, high in rows:
        column = columns[forms[statistic].format(name)]
        assert column.low == pytest.approx(float(low), abs=0.00101)
        assert column.high == pytest.approx(float(high), abs=0.00101)
