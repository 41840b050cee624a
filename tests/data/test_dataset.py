"""What a data set is, and what importing the folder costs."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from noiseproof.data import Column, Dataset, Public
from noiseproof.errors import DataError


def _dataset(records: int = 5) -> Dataset:
    public = Public(shape=(2,), classes=("a", "b"))
    return Dataset("some", torch.rand(records, 2), torch.arange(records) % 2, public)


def test_features_that_do_not_fit_the_public_shape_are_refused():
    with pytest.raises(DataError, match="do not fit"):
        Dataset("some", torch.rand(3, 4), torch.zeros(3, dtype=torch.int64), Public(shape=(2,), classes=("a", "b")))


def test_features_without_as_many_labels_are_refused():
    with pytest.raises(DataError, match="do not fit"):
        Dataset("some", torch.rand(3, 2), torch.zeros(4, dtype=torch.int64), Public(shape=(2,), classes=("a", "b")))


def test_a_fingerprint_changes_with_any_record_and_with_nothing_else():
    dataset = _dataset()
    same = Dataset("other name", dataset.features.clone(), dataset.labels.clone(), dataset.public)
    labels = dataset.labels.clone()
    labels[3] = 1 - labels[3]
    changed = Dataset("some", dataset.features, labels, dataset.public)
    assert dataset.fingerprint() == same.fingerprint()
    assert dataset.fingerprint() != changed.fingerprint()


def test_records_are_never_shown():
    assert "tensor" not in repr(_dataset())


@pytest.mark.parametrize(
    ("column", "width"),
    [
        (Column("number", 0, 1), 1),
        (Column("number", 0, 1, missing=True), 2),
        (Column("category", categories=("a", "b", "c")), 3),
        (Column("category", categories=("a", "b", "c"), missing=True), 4),
    ],
)
def test_a_column_takes_one_feature_a_number_or_category_and_one_for_what_may_be_missing(column, width):
    assert column.width == width


def test_importing_the_folder_imports_no_table_or_clustering_library():
    heavy = "{'pandas', 'sklearn', 'pyarrow', 'dp_accounting'}"
    code = f"import sys, noiseproof.data; print(sorted({heavy} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
