"""Arrays, tensors and torch datasets of the user's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from noiseproof.data import from_arrays, from_torch
from noiseproof.errors import DataError, SettingError

LABELS = [0, 1, 1, 0]


def _vectors(low=0.0, high=1.0):
    return np.linspace(low, high, 12).reshape(4, 3)


def test_with_bounds_and_classes_given_everything_is_public():
    dataset = from_arrays(_vectors(-3, 5), LABELS, classes=["no", "yes"], low=-3, high=5)
    assert dataset.public.bounds == "public"
    assert dataset.public.notes == ()
    assert dataset.public.classes == ("no", "yes")
    np.testing.assert_allclose(dataset.features, _vectors(), atol=1e-7)


def test_bounds_may_be_given_one_a_feature_and_values_outside_are_clipped():
    dataset = from_arrays([[0, 10, 5], [2, -10, 50]], [0, 1], classes=2, low=[0, -10, 0], high=[1, 10, 10])
    assert dataset.features.tolist() == [[0, 1, 0.5], [1, 0, 1]]


def test_what_is_not_given_is_read_off_the_records_and_said():
    dataset = from_arrays(_vectors(-3, 5), LABELS)
    assert dataset.public.bounds == "data"
    assert any("bounds" in note for note in dataset.public.notes)
    assert any("classes" in note for note in dataset.public.notes)
    assert dataset.features.min(0).values.tolist() == [0, 0, 0]
    assert dataset.features.max(0).values.tolist() == [1, 1, 1]


def test_values_that_lie_in_the_unit_interval_stay_what_they_are_but_are_not_called_public():
    values = _vectors(0.2, 0.8)
    dataset = from_arrays(values, LABELS, classes=2)
    np.testing.assert_allclose(dataset.features, values, atol=1e-7)
    assert dataset.public.bounds == "data"


def test_a_constant_feature_is_coded_as_a_constant():
    dataset = from_arrays([[7.0, 1.0], [7.0, 3.0]], [0, 1])
    assert dataset.features.tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize("shape", [(4, 8, 6), (4, 8, 6, 3), (4, 3, 8, 6), (4, 1, 8, 6), (4, 8, 6, 1)])
def test_images_of_bytes_have_public_bounds_and_their_channels_first(shape):
    values = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    dataset = from_arrays(values, LABELS, classes=2)
    channels = 3 if 3 in shape else 1
    assert dataset.public.kind == "image"
    assert dataset.public.shape == (channels, 8, 6)
    assert dataset.public.bounds == "public"
    expected = np.moveaxis(values, 3, 1) if shape[-1] in (1, 3) else values.reshape(dataset.features.shape)
    np.testing.assert_allclose(dataset.features, expected / 255.0, atol=1e-7)


def test_truth_values_have_public_bounds():
    dataset = from_arrays(np.eye(4, dtype=bool), LABELS, classes=2)
    assert dataset.public.bounds == "public"
    assert dataset.features.tolist() == np.eye(4).tolist()


def test_large_offsets_do_not_lose_digits():
    dataset = from_arrays(np.array([[1e15], [1e15 + 4]]), [0, 1], classes=2, low=1e15, high=1e15 + 8)
    assert dataset.features.flatten().tolist() == [0, 0.5]


@pytest.mark.parametrize(
    ("labels", "classes", "names", "coded"),
    [
        ([3, 5, 5, 3], None, ("3", "5"), [0, 1, 1, 0]),
        (["b", "a", "a", "b"], None, ("a", "b"), [1, 0, 0, 1]),
        (["b", "a", "a", "b"], ["b", "a", "c"], ("b", "a", "c"), [0, 1, 1, 0]),
        ([0.0, 1.0, 1.0, 0.0], 2, ("0", "1"), LABELS),
        ([[0], [1], [1], [0]], 2, ("0", "1"), LABELS),
        ([False, True, True, False], 2, ("0", "1"), LABELS),
    ],
)
def test_labels_are_places_in_the_list_of_classes(labels, classes, names, coded):
    dataset = from_arrays(_vectors(), labels, classes=classes)
    assert dataset.public.classes == names
    assert dataset.labels.tolist() == coded


def test_the_callers_arrays_are_left_alone():
    values = _vectors(-3, 5).astype(np.float32)
    before = values.copy()
    from_arrays(values, LABELS, classes=2, low=-3, high=5).features.zero_()
    np.testing.assert_array_equal(values, before)


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (np.array([[np.nan, 1], [1, 1]]), [0, 1], "NaN or infinite in 1 records"),
        (np.array([[np.inf, 1], [np.nan, 1]]), [0, 1], "NaN or infinite in 2 records"),
        (np.array([["secret"], ["secret"]]), [0, 1], "not numbers"),
        (np.array([[1j], [2j]]), [0, 1], "not numbers"),
        (np.zeros(4), LABELS, "must be vectors or images"),
        (np.zeros((4, 0)), LABELS, "must be vectors or images"),
        (_vectors(), [0, 1], "4 records but 2 labels"),
        (np.zeros((0, 3)), [], "no records"),
        (_vectors(), [0, 0, 0, 0], "one class only"),
        (_vectors(), [0.5, 1, 1, 0], "fractions or NaN"),
        (_vectors(), np.eye(4), "one class or number a record"),
        (_vectors(), np.array([1j, 0, 0, 1j]), "neither numbers nor texts"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_without_a_value(features, labels, message):
    with pytest.raises(DataError, match=message) as refused:
        from_arrays(features, labels)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("labels", "classes"), [([0, 1, 2, 5], 3), ([0, 1, -1, 0], 2), (["secret", "b", "b", "b"], ["a", "b"])]
)
def test_labels_outside_the_classes_are_refused_with_their_number(labels, classes):
    with pytest.raises(DataError, match=r"^1 labels of arrays are outside its") as refused:
        from_arrays(_vectors(), labels, classes=classes)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"low": 0},
        {"high": 1},
        {"low": 1, "high": 1},
        {"low": 0, "high": np.inf},
        {"low": [0, 0], "high": 1},
        {"classes": ["a", "a"]},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(SettingError):
        from_arrays(_vectors(), LABELS, **settings)


class _Items(torch.utils.data.Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, place):
        return self.items[place]


def test_a_tensor_dataset_and_any_other_give_the_same():
    features, labels = torch.rand(2500, 4), torch.arange(2500) % 3
    whole = from_torch(torch.utils.data.TensorDataset(features, labels), classes=3, low=0, high=1)
    items = from_torch(_Items([(features[i], int(labels[i])) for i in range(2500)]), classes=3, low=0, high=1)
    direct = from_arrays(features, labels, classes=3, low=0, high=1)
    assert whole.fingerprint() == items.fingerprint() == direct.fingerprint()


def test_a_torch_dataset_may_have_texts_for_labels_and_arrays_for_features():
    dataset = from_torch(_Items([(np.array([0.0, 1.0]), "b"), (np.array([1.0, 0.0]), "a")]), low=0, high=1)
    assert dataset.public.classes == ("a", "b")
    assert dataset.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "no records"),
        ([torch.rand(3), torch.rand(3)], "pairs of features and a label"),
        ([(torch.rand(3), 0), (torch.rand(4), 1)], "tensors or arrays of one shape"),
        ([(object(), 0), (object(), 1)], "tensors or arrays of one shape"),
    ],
)
def test_torch_datasets_that_do_not_fit_are_refused(items, message):
    with pytest.raises(DataError, match=message):
        from_torch(_Items(items))


def test_more_classes_than_can_be_meant_are_refused_before_they_are_named():
    for many in (10**9, 10**400):
        with pytest.raises(SettingError, match="more classes than"):
            from_arrays(_vectors(), LABELS, classes=many, low=0, high=1)
