"""What networks see of a record, and the records that generated slots stand for."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.image import imread
from torch.nn import functional

from noiseproof.data.dataset import Public
from noiseproof.data.schema import ColumnSchema
from noiseproof.data.tables import decode
from noiseproof.errors import DataError, SettingError
from noiseproof.methods.losses import coding
from noiseproof.methods.losses.coding import MOST_SLOTS, Coding, check_records, edges
from noiseproof.privacy import Card
from noiseproof.releases.release import DataRelease


def test_every_column_has_one_slot_and_unlisted_categories_none(table):
    coding = Coding(table.public)
    coded = coding.encode(table.features)
    parts = coded.split(list(coding.sizes), dim=1)
    assert all(torch.equal(part.sum(1), torch.ones(len(table))) for part in parts)
    unlisted = table.features[:1].clone()
    unlisted[:, 1:4] = 0
    assert coding.encode(unlisted).sum() == len(coding.sizes) - 1


def test_decoding_gives_back_the_slots_and_stays_within_the_public_bounds(table):
    coding = Coding(table.public)
    coded = coding.encode(table.features)
    decoded = coding.decode(coded, torch.Generator().manual_seed(0))
    assert torch.equal(coding.encode(decoded), coded)
    frame = decode(table.public, decoded, table.labels)
    assert frame["age"].between(17, 90).all()
    assert set(frame["city"]) <= {"a", "b", "never"}
    zero = coded[:, coding.sizes[0] + coding.sizes[1]] == 1
    assert (frame["money"][zero.numpy()] == 0).all()


def test_edges_are_public_and_fine_near_zero():
    found = edges()
    assert bool((found.diff() > 0).all())
    assert float(found[0]) == 2.0**-12
    assert len(found) == 23


def test_pictures_stay_as_they_are(pictures):
    coding = Coding(pictures.public)
    assert torch.equal(coding.encode(pictures.features), pictures.features)
    outside = torch.full((1, 1, 8, 8), 2.0)
    assert float(coding.decode(outside, torch.Generator()).max()) == 1.0


def test_too_few_records_and_too_many_slots_are_refused_in_words(table):
    with pytest.raises(DataError, match="needs 50 or more"):
        check_records(table.take(torch.arange(49)))
    check_records(table.take(torch.arange(50)))
    wide = ColumnSchema(categories=tuple(range(MOST_SLOTS + 1))).column("id")
    with pytest.raises(SettingError, match="categories and bins"):
        Coding(Public(shape=(wide.width,), classes=("a", "b"), kind="table", columns=(wide,), target="y"))


def test_slots_are_drawn_by_their_probabilities(table):
    # A share of 20,000 draws is off by 5.5 standard deviations once in 26 million.
    coding = Coding(table.public)
    probabilities = torch.cat([torch.full((20_000, size), 1 / size) for size in coding.sizes], dim=1)
    slots = coding.encode(coding.decode(probabilities, torch.Generator().manual_seed(1)))
    shares = slots.mean(0).split(list(coding.sizes))
    for part in shares:
        expected = 1 / len(part)
        assert float((part - expected).abs().max()) <= 5.5 * (expected * (1 - expected) / 20_000) ** 0.5 + 1e-9


def test_missing_numbers_have_a_slot_of_their_own(table):
    coding = Coding(table.public)
    money = coding.encode(table.features).split(list(coding.sizes), dim=1)[2]
    missing = decode(table.public, table.features, table.labels)["money"].isna().to_numpy()
    assert torch.equal(money[:, -1] == 1, torch.tensor(missing.tolist()))
    assert functional.one_hot(money.argmax(1), coding.sizes[2]).float().equal(money)


def test_whole_numbers_keep_their_values_and_have_coarse_slots_besides(table):
    coding = Coding(table.public)
    assert coding.sizes[0] == 74
    assert coding.coarse_sizes[0] == len(edges()) + 1
    ages = decode(table.public, table.features, table.labels)["age"].to_numpy()
    drawn = coding.decode(coding.encode(table.features), torch.Generator().manual_seed(0))
    assert (decode(table.public, drawn, table.labels)["age"].to_numpy() == ages).all()
    coarse = coding.coarsen(coding.encode(table.features)).split(list(coding.coarse_sizes), dim=1)
    assert all(torch.equal(part.sum(1), torch.ones(len(table))) for part in coarse)
    expected = torch.bucketize(table.features[:, 0].contiguous(), edges(), right=True)
    assert torch.equal(coarse[0].argmax(1), expected)


# Synthetic records on disk.


CARD = Card(method="dp-gan", place="losses", neighbours="add-or-remove", randomness="reproducible", why="a test")


def test_a_table_is_written_as_it_came_with_its_card_beside_it(table, tmp_path):
    for name in ("made.csv", "made.parquet"):
        out = tmp_path / name
        written = coding.write(DataRelease(table, CARD, {}), out)
        assert written == [out, tmp_path / f"{name}.card.json"]
        frame = pd.read_csv(out) if name.endswith("csv") else pd.read_parquet(out)
        assert list(frame.columns) == ["age", "city", "money", "same", "income"]
        assert len(frame) == len(table)
        assert Card.from_json(written[1].read_text()) == CARD


def test_pictures_come_with_a_contact_sheet(pictures, tmp_path):
    written = coding.write(DataRelease(pictures, CARD, {}), tmp_path / "made.npz")
    with np.load(written[0]) as arrays:
        assert arrays["x"].shape == (400, 1, 8, 8)
        assert list(arrays["class_names"]) == ["upper", "lower"]
    assert imread(written[2]).shape[:2] == (10 * 10 * 3, 2 * 10 * 3)


def test_the_sheet_has_one_column_a_class(pictures):
    sheet = coding.contact_sheet(pictures.take(torch.arange(2)), rows=1)
    assert float(sheet[1:5, 1:9].mean()) > float(sheet[5:9, 1:9].mean())
    assert float(sheet[1:5, 11:19].mean()) < float(sheet[5:9, 11:19].mean())


@pytest.mark.parametrize(("name", "words"), [("made.npz", "csv"), ("folder/made.csv", "folder"), ("made.txt", "csv")])
def test_a_file_that_could_not_be_written_is_refused_at_once(table, tmp_path, name, words):
    with pytest.raises(SettingError, match=words):
        coding.check_target(tmp_path / name, table)


def test_nothing_is_written_over_unless_it_is_said_so(table, tmp_path):
    made = DataRelease(table, CARD, {})
    for name in ("made.csv", "made.csv.card.json", "made.csv.png"):
        (tmp_path / name).write_text("{}")
        with pytest.raises(SettingError, match="exists"):
            coding.write(made, tmp_path / "made.csv")
        assert (tmp_path / name).read_text() == "{}"
        (tmp_path / name).unlink()
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(SettingError, match="is a folder"):
        coding.write(made, tmp_path / "folder.csv", force=True)
    coding.write(made, tmp_path / "made.csv")
    with pytest.raises(SettingError, match="exists"):
        coding.write(made, tmp_path / "made.csv")
    assert len(coding.write(made, tmp_path / "made.csv", force=True)) == 2


def test_synthetic_records_are_replaced_by_newer_ones_by_force(table, tmp_path):
    for rows in (20, 10):
        coding.write(DataRelease(table.take(torch.arange(rows)), CARD, {}), tmp_path / "made.csv", force=True)
    assert len(pd.read_csv(tmp_path / "made.csv")) == 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made.csv", "made.csv.card.json"]
