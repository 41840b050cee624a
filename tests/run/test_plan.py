"""Finished rows are kept for the same run only, and a run's name says nothing about the records."""

from __future__ import annotations

import stat

import pytest

from noiseproof.errors import SettingError
from noiseproof.run import Row
from noiseproof.run.plan import PRIVATE, Folder, Plan, RowKey

KEY = RowKey("a", 3.0)
ROW = Row(method="a", epsilon=3.0, delta=1e-5, status="done", accuracy=0.5, seconds=1.0)


def opened(path, *, resume=False, fingerprint="f", **change):
    folder = Folder(path, resume=resume)
    folder.begin(Plan(**change), fingerprint, {"torch": "1"})
    return folder


def test_a_comparisons_folder_is_its_owners_alone(tmp_path):
    """Exact accuracies and attacks: the page says for whom it is, and so must the folder."""
    opened(tmp_path / "run")
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


def test_a_row_is_kept_for_the_same_run(tmp_path):
    opened(tmp_path / "run").keep(KEY, ROW)
    assert opened(tmp_path / "run", resume=True).kept(KEY) == ROW
    assert opened(tmp_path / "run", resume=True, methods=("a",), epsilons=(3.0, 5.0)).kept(KEY) == ROW


@pytest.mark.parametrize("change", [{"fingerprint": "other"}, {"seed": 1}, {"delta": 1e-6}, {"trials": 100}])
def test_a_row_of_other_records_or_settings_is_not(tmp_path, change):
    opened(tmp_path / "run").keep(KEY, ROW)
    assert opened(tmp_path / "run", resume=True, **change).kept(KEY) is None


def test_without_resume_nothing_is_kept(tmp_path):
    opened(tmp_path / "run").keep(KEY, ROW)
    assert opened(tmp_path / "run").kept(KEY) is None


def test_an_earlier_run_is_removed_only_when_the_next_begins(tmp_path):
    opened(tmp_path / "run").keep(KEY, ROW)
    Folder(tmp_path / "run", resume=False)
    assert opened(tmp_path / "run", resume=True).kept(KEY) == ROW


def test_failures_and_torn_files_run_again(tmp_path):
    folder = opened(tmp_path / "run")
    folder.keep(KEY, ROW.model_copy(update={"status": "failed"}))
    assert folder.kept(KEY) is None
    folder.keep(KEY, ROW)
    path = folder.rows / "a-3.json"
    path.write_text(path.read_text()[:40])
    assert folder.kept(KEY) is None


def test_the_runs_name_cannot_be_computed_from_the_records_alone(tmp_path):
    one, two = opened(tmp_path / "one"), opened(tmp_path / "two")
    assert one.run != two.run
    assert stat.S_IMODE((tmp_path / "one" / PRIVATE).stat().st_mode) == 0o600


# A plan says what to run, refuses what makes no sense, and survives the way to another process.


KNOWN = {"none": False, "a": False, "b": True}


def test_proven_stands_for_all_methods_with_a_proof():
    assert Plan(methods=("proven",)).rows(KNOWN) == (RowKey("none", 3.0), RowKey("b", 3.0))
    assert [key.method for key in Plan(methods=("a", "proven")).rows(KNOWN)] == ["none", "a", "b"]


def test_without_methods_all_that_are_registered_run_and_the_baseline_once():
    keys = Plan(epsilons=(1.0, 3.0)).rows(KNOWN)
    assert keys == (RowKey("none", 1.0), RowKey("a", 1.0), RowKey("b", 1.0), RowKey("a", 3.0), RowKey("b", 3.0))


def test_the_baseline_runs_though_it_was_not_asked_for():
    assert Plan(methods=("b",)).rows(KNOWN) == (RowKey("none", 3.0), RowKey("b", 3.0))


def test_rows_of_different_tasks_have_different_files():
    keys = Plan(epsilons=(0.5, 1.0, 1.5)).rows(dict.fromkeys(("none", "a", "a-1"), True))
    assert len({key.name for key in keys}) == len(keys)


@pytest.mark.parametrize(
    "change",
    [
        {"epsilons": ()},
        {"epsilons": (0.0,)},
        {"epsilons": (1.0, 1.0)},
        {"delta": 1.0},
        {"neighbours": "cousins"},
        {"methods": ("a", "a")},
        {"queries": 0},
        {"trials": 4},
        {"fits": 0},
    ],
)
def test_what_makes_no_sense_is_refused(change):
    with pytest.raises(SettingError):
        Plan(**change)


def test_an_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(SettingError, match="there are none, a"):
        Plan(methods=("c",)).rows({"none": False, "a": True})
