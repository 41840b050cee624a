"""Tables coded and decoded by a schema, and schemas drafted from tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal

from noiseproof.data import Column, Public, decode, layout
from noiseproof.data.cells import texts
from noiseproof.data.draft import draft
from noiseproof.data.schema import ColumnSchema, Schema
from noiseproof.data.tables import code
from noiseproof.errors import DataError, SettingError

SCHEMA = Schema.model_validate(
    {
        "columns": {
            "age": {"low": 20, "high": 60, "integer": True},
            "dose": {"low": -1.5, "high": 2.5, "missing": True},
            "visits": {"low": 0, "high": 10, "integer": True, "missing": True},
            "colour": {"categories": ["red", "green", "blue"], "missing": True},
            "ward": {"categories": [7, 8]},
        },
        "target": {"name": "ill", "classes": ["no", "yes"]},
        "missing_values": ["?"],
    }
)
FRAME = pd.DataFrame(
    {
        "age": [20, 40, 60],
        "ill": ["no", "yes", "no"],
        "dose": [-1.5, np.nan, 0.5],
        "visits": [10.0, 5.0, np.nan],
        "colour": ["blue", None, "red"],
        "ward": [8, 7, 7],
    }
)


def _coded(frame=FRAME, schema=SCHEMA):
    return code(frame, schema, name="table")[0]


def _change(column, values):
    return FRAME.assign(**{column: values})


def test_numbers_are_scaled_by_the_bounds_and_categories_are_one_hot():
    dataset = _coded()
    expected = [
        # age, dose and its gap, visits and its gap, red green blue missing, wards 7 and 8
        [0.0, 0.0, 0, 1.0, 0, 0, 0, 1, 0, 0, 1],
        [0.5, 0.5, 1, 0.5, 0, 0, 0, 0, 1, 1, 0],
        [1.0, 0.5, 0, 0.5, 1, 1, 0, 0, 0, 1, 0],
    ]
    assert dataset.features.tolist() == expected
    assert dataset.labels.tolist() == [0, 1, 0]
    assert dataset.features.dtype == torch.float32
    assert dataset.labels.dtype == torch.int64


def test_what_is_public_comes_from_the_schema_in_the_order_of_the_file():
    public = _coded().public
    assert public.kind == "table"
    assert public.bounds == "public"
    assert public.order == ("age", "ill", "dose", "visits", "colour", "ward")
    assert public.classes == ("no", "yes")
    assert public.target == "ill"
    assert public.shape == (11,)


def test_what_is_public_does_not_depend_on_the_records():
    other = pd.DataFrame(
        {
            "age": [99, 1],
            "ill": ["yes", "no"],
            "dose": [9.0, 9.0],
            "visits": [1, 1],
            "colour": ["x", "x"],
            "ward": [7, 7],
        }
    )
    assert _coded(other).public == _coded().public


def test_the_layout_tells_which_features_a_column_has():
    places = {column.name: (place.start, place.stop) for column, place in layout(_coded().public.columns)}
    assert places == {"age": (0, 1), "dose": (1, 3), "visits": (3, 5), "colour": (5, 9), "ward": (9, 11)}


def test_values_outside_the_bounds_are_clipped_and_remarked_without_a_value():
    dataset, remarks = code(_change("age", [-1000, 40, 777]), SCHEMA, name="table")
    assert dataset.features[:, 0].tolist() == [0.0, 0.5, 1.0]
    assert remarks == (
        "1 column holds values outside the public bounds, which were clipped to them: 'age'. (For the owner's eyes: this "
        "depends on the records.)",
    )


def test_a_category_outside_the_list_is_coded_as_none_and_remarked_without_a_value():
    dataset, remarks = code(_change("colour", ["mauve", "red", "red"]), SCHEMA, name="table")
    assert dataset.features[0, 5:9].tolist() == [0, 0, 0, 0]
    assert len(remarks) == 1
    assert "'colour'" in remarks[0]
    assert "mauve" not in remarks[0]


def test_remarks_are_not_part_of_what_is_public():
    frame = _change("age", [-1000, 40, 777])
    assert code(frame, SCHEMA, name="table")[0].public.notes == ()


@pytest.mark.parametrize("mark", ["?", "NA", "", " ? ", None])
def test_marks_of_missing_values_have_the_slot_of_missing(mark):
    assert _coded(_change("colour", [mark, "red", "red"])).features[0, 5:9].tolist() == [0, 0, 0, 1]


def test_a_listed_category_is_a_category_even_if_it_looks_like_a_gap():
    schema = SCHEMA.model_copy(
        update={
            "columns": SCHEMA.columns
            | {"colour": SCHEMA.columns["ward"].model_copy(update={"categories": ("NA", "red")})}
        }
    )
    assert _coded(_change("colour", ["NA", "red", "red"]), schema).features[0, 5:7].tolist() == [1, 0]


def test_whole_numbers_read_as_floats_are_the_categories_they_look_like():
    assert _coded(_change("ward", [8.0, 7.0, 7.0])).features[:, 9:].tolist() == _coded().features[:, 9:].tolist()


@pytest.mark.parametrize("value", ["x", True, 7.0, 1.5, None])
def test_a_value_of_another_type_changes_the_category_of_no_other_record(value):
    """pandas makes a column of objects of it, in which 7, 7.0 and True are what comes first."""
    others = pd.Series([8.0, 7.0, 7.0, 1.0])
    schema = SCHEMA.model_copy(update={"columns": {"ward": ColumnSchema(categories=("7", "8", "1"), missing=True)}})
    coded = [
        _coded(pd.DataFrame({"ward": wards, "ill": ["no", "yes", "no", "no", "no"][-len(wards) :]}), schema).features
        for wards in (others, pd.Series([value, *others], dtype=object))
    ]
    assert torch.equal(coded[1][1:], coded[0])


def test_columns_the_schema_does_not_name_are_refused_or_ignored():
    frame = FRAME.assign(name=["secret-1", "secret-2", "secret-3"])
    with pytest.raises(DataError, match=r"does not name \('name'\)"):
        _coded(frame)
    ignoring = SCHEMA.model_copy(update={"others": "ignore"})
    assert torch.equal(_coded(frame, ignoring).features, _coded().features)
    assert "name" not in _coded(frame, ignoring).public.order


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (FRAME.drop(columns="dose"), "no column 'dose'"),
        (FRAME.drop(columns="ill"), "no column 'ill'"),
        (FRAME.iloc[:0], "no records"),
        (_change("age", [20, None, 30]), "'age' has 1 missing values"),
        (_change("ward", [7, None, None]), "'ward' has 2 missing values"),
        (_change("age", ["20", "secret", "30"]), "'age' is to hold numbers but holds text in 1 rows"),
        (_change("age", pd.to_datetime(["2020-01-01"] * 3)), "'age' is to hold numbers but holds text in 3 rows"),
        (_change("age", [20, np.inf, 30]), "'age' holds infinite numbers"),
        (_change("colour", [["secret"], ["secret"], ["secret"]]), "'colour' holds lists or objects"),
        (_change("ill", ["no", "secret", "yes"]), "'ill' is none of the 2 classes in 1 rows"),
        (_change("ill", ["no", None, "yes"]), "'ill' is missing in 1 rows"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_in_one_sentence_without_a_cell(frame, message):
    with pytest.raises(DataError, match=message) as refused:
        _coded(frame)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_decoding_gives_the_table_back_in_its_order_and_types():
    dataset = _coded()
    decoded = decode(dataset.public, dataset.features, dataset.labels)
    assert list(decoded.columns) == list(FRAME.columns)
    assert decoded["age"].dtype == np.int64
    assert decoded["visits"].dtype == "Int64"
    assert decoded["ward"].dtype == np.int64
    assert decoded["colour"].fillna("-").tolist() == ["blue", "-", "red"]
    assert decoded["ill"].tolist() == FRAME["ill"].tolist()
    assert decoded["age"].tolist() == FRAME["age"].tolist()
    assert decoded["visits"].fillna(-1).tolist() == [10, 5, -1]
    np.testing.assert_allclose(decoded["dose"], FRAME["dose"], atol=1e-6)


def test_decoding_rounds_what_lies_between_codes():
    dataset = _coded()
    generated = torch.tensor([[0.26, 0.5, 0.49, 2.0, 0.51, 0.2, 0.5, 0.4, 0.3, -1.0, 0.1]])
    decoded = decode(dataset.public, generated, torch.tensor([1]))
    assert decoded.iloc[0].drop(["dose", "visits"]).to_dict() == {"age": 30, "ill": "yes", "colour": "green", "ward": 8}
    assert decoded["dose"][0] == pytest.approx(0.5)
    assert decoded["visits"].isna()[0]


def test_a_category_that_was_in_no_list_is_decoded_as_missing():
    dataset = _coded(_change("ward", [9, 7, 8]))
    decoded = decode(dataset.public, dataset.features, dataset.labels)
    assert decoded["ward"].isna().tolist() == [True, False, False]


def test_no_records_are_decoded_as_an_empty_table():
    decoded = decode(_coded().public, torch.zeros(0, 11), torch.zeros(0, dtype=torch.int64))
    assert list(decoded.columns) == list(FRAME.columns)
    assert decoded.empty


def test_only_tables_can_be_decoded():
    from noiseproof.data import Public

    with pytest.raises(SettingError, match="only records of a table"):
        decode(Public((2,), ("a", "b")), torch.zeros(1, 2), torch.zeros(1))


def test_records_of_another_shape_cannot_be_decoded():
    with pytest.raises(DataError, match="do not fit"):
        decode(_coded().public, torch.zeros(1, 3), torch.zeros(1))


def test_truth_values_are_decoded_as_truth_values():
    schema = Schema.model_validate(
        {"columns": {"flag": {"categories": ["False", "True"]}}, "target": {"name": "t", "classes": ["False", "True"]}}
    )
    frame = pd.DataFrame({"flag": [True, False, True], "t": [False, True, True]})
    dataset = _coded(frame, schema)
    assert_frame_equal(decode(dataset.public, dataset.features, dataset.labels), frame)


def test_texts_are_the_same_whatever_type_a_value_was_read_as():
    assert (
        texts([1.0, 2.0, np.nan]).tolist()[:2] == texts([1, 2]).tolist() == texts([" 1", "2 "]).tolist() == ["1", "2"]
    )
    assert texts([1.5]).tolist() == ["1.5"]
    assert texts([True, False]).tolist() == ["True", "False"]


@st.composite
def _tables(draw):
    """A schema, and a table within it."""
    rows = draw(st.integers(2, 12))
    columns, cells = {}, {}
    for place in range(draw(st.integers(1, 5))):
        name = f"c{place}"
        missing = draw(st.booleans())
        if draw(st.booleans()):
            low = draw(st.integers(-1000, 1000))
            high = low + draw(st.integers(1, 2**22))
            whole = draw(st.booleans())
            columns[name] = {"low": low, "high": high, "integer": whole, "missing": missing}
            value = st.integers(low, high) if whole else st.floats(low, high)
        else:
            categories = draw(st.lists(st.text("abcxyz", min_size=1, max_size=3), min_size=1, max_size=5, unique=True))
            columns[name] = {"categories": categories, "missing": missing}
            value = st.sampled_from(categories)
        cells[name] = draw(st.lists(value | st.none() if missing else value, min_size=rows, max_size=rows))
    labels = ["no", "yes", *draw(st.lists(st.sampled_from(["no", "yes"]), min_size=rows - 2, max_size=rows - 2))]
    order = draw(st.permutations([*columns, "label"]))
    frame = pd.DataFrame({name: pd.Series(labels if name == "label" else cells[name], dtype=object) for name in order})
    return Schema.model_validate({"columns": columns, "target": {"name": "label", "classes": ["no", "yes"]}}), frame


@settings(deadline=None, derandomize=True, max_examples=60)
@given(_tables())
def test_coding_then_decoding_is_the_identity_within_bounds(table):
    schema, frame = table
    dataset, remarks = code(frame, schema, name="table")
    assert not remarks
    assert dataset.features.min() >= 0
    assert dataset.features.max() <= 1
    decoded = decode(dataset.public, dataset.features, dataset.labels)
    assert list(decoded.columns) == list(frame.columns)
    for name, column in schema.columns.items():
        gaps = frame[name].isna()
        assert decoded[name].isna().tolist() == gaps.tolist()
        before, after = frame[name][~gaps].tolist(), decoded[name][~gaps].tolist()
        if column.categories or column.integer:
            assert after == before
        else:
            np.testing.assert_allclose(after, before, atol=(column.high - column.low) * 1e-6)
    assert decoded["label"].tolist() == frame["label"].tolist()


@settings(deadline=None, derandomize=True, max_examples=25)
@given(_tables(), st.integers(0, 1000))
def test_every_record_is_coded_by_itself(table, pick):
    """So that neighbouring tables are coded as neighbouring data sets: the guarantee's ground."""
    schema, frame = table
    whole, _ = code(frame, schema, name="table")
    gone = pick % len(frame)
    kept = [place for place in range(len(frame)) if place != gone]
    rest = frame.iloc[kept]
    if rest["label"].nunique() < 2:
        return
    coded, _ = code(rest, schema, name="table")
    assert torch.equal(coded.features, whole.features[kept])
    assert torch.equal(coded.labels, whole.labels[kept])


ROWS = 240


def _drafted_frame(**columns) -> pd.DataFrame:
    return pd.DataFrame({**columns, "label": ["yes", "no"] * (ROWS // 2)})


def _drafted_column(values):
    return draft(_drafted_frame(x=values), "label", name="table").columns["x"]


def test_bounds_and_types_of_numbers_are_read():
    whole, fraction = _drafted_column(np.arange(ROWS)), _drafted_column(np.linspace(-1, 1, ROWS))
    assert (whole.low, whole.high, whole.integer, whole.missing) == (0, ROWS - 1, True, False)
    assert (fraction.low, fraction.high, fraction.integer) == (-1, 1, False)


def test_whole_numbers_with_gaps_are_whole_numbers_that_may_be_missing():
    column = _drafted_column([np.nan, *range(1, ROWS)])
    assert (column.low, column.high, column.integer, column.missing) == (1, ROWS - 1, True, True)


def test_a_constant_column_has_bounds_that_can_be_scaled_by():
    column = _drafted_column([3] * ROWS)
    assert column.low == 3 < column.high


@pytest.mark.parametrize(
    ("values", "categories", "missing"),
    [
        (["b", "a"] * (ROWS // 2), ("a", "b"), False),
        (["b", None] * (ROWS // 2), ("b",), True),
        (["b", " "] * (ROWS // 2), ("b",), True),
        ([True, False] * (ROWS // 2), ("False", "True"), False),
        (pd.Categorical(["b", "a"] * (ROWS // 2)), ("a", "b"), False),
        (["Mon", "May"] * (ROWS // 2), ("May", "Mon"), False),
    ],
)
def test_categories_are_read_in_order(values, categories, missing):
    column = _drafted_column(values)
    assert column.categories == categories
    assert column.missing is missing


@pytest.mark.parametrize(
    ("label", "classes"),
    [
        (["yes", "no"], ("no", "yes")),
        ([10, 9], (9, 10)),
        ([1.0, 0.0], (0, 1)),
        ([True, False], ("False", "True")),
    ],
)
def test_classes_are_read_in_order_and_whole_numbers_stay_so(label, classes):
    frame = pd.DataFrame({"x": range(ROWS), "label": label * (ROWS // 2)})
    assert draft(frame, "label", name="table").target.classes == classes


def test_a_draft_takes_the_usual_marks_among_numbers_for_missing_ones_and_writes_them_down():
    values = ["?", "N/a", "-", "NA", *map(str, range(5, ROWS + 1))]
    other = ["?", *["ward 1", "ward 2"] * (ROWS // 2)][:ROWS]
    frame = pd.DataFrame({"x": values, "y": other, "label": ["a", "b"] * (ROWS // 2)})
    found = draft(frame, "label", name="table")
    assert found.missing_values == ("-", "?", "N/a")
    assert (found.columns["x"].low, found.columns["x"].high, found.columns["x"].missing) == (5, ROWS, True)
    assert "?" in found.columns["y"].categories
    assert int(code(frame, found, name="table")[0].features[:, 1].sum()) == 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["31/12/2021", "1/2/20 10:30"] * (ROWS // 2), "'x' holds dates"),
        (pd.to_timedelta(np.arange(ROWS), unit="s"), "'x' holds durations"),
        ([f"secret {row}" for row in range(ROWS)], "'x' has more than 100 different texts"),
        (["secret", *map(str, range(1, ROWS))], "'x' holds numbers but text in 1 rows"),
        ([np.inf, *range(1, ROWS)], "'x' holds infinite numbers"),
        ([np.nan] * ROWS, "'x' is empty"),
        (["  "] * ROWS, "'x' is empty"),
        ([["secret"]] * ROWS, "'x' holds lists"),
    ],
)
def test_a_column_that_cannot_be_coded_is_refused_by_name_without_a_cell(values, message):
    with pytest.raises(DataError, match=message) as refused:
        _drafted_column(values)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ([0.5, 1.5], "holds fractions"),
        ([1, 1], "one class only"),
        (["secret", None], f"missing in {ROWS // 2} rows"),
    ],
)
def test_a_target_that_is_no_class_is_refused_without_a_cell(label, message):
    frame = pd.DataFrame({"x": range(ROWS), "label": label * (ROWS // 2)})
    with pytest.raises(DataError, match=message) as refused:
        draft(frame, "label", name="table")
    assert "secret" not in str(refused.value)


def test_a_target_with_a_class_a_record_is_refused():
    frame = pd.DataFrame({"x": range(1500), "label": range(1500)})
    with pytest.raises(DataError, match="more than 1000 classes"):
        draft(frame, "label", name="table")


def test_a_target_that_is_not_there_is_refused_with_what_is():
    with pytest.raises(SettingError, match="no column 'nothing' to predict; its columns are x, label"):
        draft(_drafted_frame(x=range(ROWS)), "nothing", name="table")


def test_a_table_of_the_target_alone_is_refused():
    with pytest.raises(DataError, match="no column besides the target"):
        draft(_drafted_frame(), "label", name="table")


def test_digits_are_counted_from_the_lower_bound_and_stay_within_the_bounds():
    columns = (Column("amount", 0, 100_000), Column("year", 1900, 2100), Column("heat", 35.25, 42.75, missing=True))
    public = Public(shape=(4,), classes=("no", "yes"), kind="table", columns=columns, target="ill")
    coded = torch.tensor([[0.0005512345, 0.561234, 0.2, 0.0], [0.87654321, 0.0, 1.0, 0.0], [0.0, 1.0, 0.5, 1.0]])
    found = decode(public, coded, torch.tensor([0, 1, 0]), digits=4)
    assert found["amount"].tolist() == [55.12, 87_650.0, 0.0]
    assert found["year"].tolist() == [2012.2, 1900.0, 2100.0]
    assert found["heat"].tolist()[:2] == [36.75, 42.75]
    assert np.isnan(found["heat"][2])
