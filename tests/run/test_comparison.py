"""One failing method never loses the others, and a killed comparison ends, resumed, with the same table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from noiseproof.errors import BundleError, DataError, SettingError
from noiseproof.releases import bundles
from noiseproof.run import Plan, Watch, compare
from noiseproof.run.comparison import load_for
from tests.run.conftest import registered_from

FAULTY = ("steady", "raises", "greedy", "killed", "full-disk", "chatty", "copies", "unplayable")


def without_seconds(document):
    """What must not differ between two runs of a plan: all but the time it took, where it is, and the run's salt."""
    held = document if isinstance(document, dict) else document.to_json()
    for row in held["rows"]:
        row.pop("seconds")
        row.pop("fit_seconds", None)
    return {key: value for key, value in held.items() if key not in ("report", "run")}


class Heard(Watch):
    def __init__(self):
        self.rows, self.kept, self.troubles = [], [], []

    def finished(self, key, row, kept):
        (self.kept if kept else self.rows).append(key.name)

    def trouble(self, sentence):
        self.troubles.append(sentence)


@pytest.fixture
def plan(records, own_methods):
    return Plan(str(records), methods=("steady",), trials=5, epsilons=(1.0,), imports=(own_methods,), queries=20)


@pytest.fixture(scope="module")
def faulty(records, methods_home, tmp_path_factory):
    """A comparison in which methods fail in every way there is."""
    with registered_from(methods_home):
        plan = Plan(str(records), methods=FAULTY, trials=5, imports=("trying_methods",), queries=20)
        out = tmp_path_factory.mktemp("faulty") / "run"
        document = compare(plan, out, jobs=2)
    return document, out


def running_still(process):
    """Whether a process runs: one that only waits to be buried by its new parent does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def row_of(document, method):
    return next(row for row in document.rows if row.method == method)


def test_rows_come_in_the_order_asked_for_with_the_baseline_first(faulty):
    assert [row.method for row in faulty[0].rows] == ["none", *FAULTY]


def test_methods_that_work_have_accuracy_card_attack_and_bundle(faulty):
    document, out = faulty
    for method in ("none", "steady", "chatty"):
        row = row_of(document, method)
        assert row.status == "done"
        assert 0.5 <= row.accuracy <= 1
        assert row.card.method == method
        assert 0 <= row.attack.auc <= 1
        assert (out / row.bundle / "card.json").is_file()
    assert bundles.read_card(out / row_of(document, "none").bundle).audited is not None


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("raises", "ValueError"),
        ("greedy", "out of memory"),
        ("killed", "killed"),
        ("full-disk", "the disk is full"),
    ],
)
def test_a_method_that_fails_says_how_in_its_row_and_loses_no_other(faulty, method, words):
    row = row_of(faulty[0], method)
    assert row.status == "failed"
    assert words in row.error
    assert method in faulty[0].sentence


def test_no_error_shows_a_private_value(faulty):
    document, out = faulty
    for text in (document.model_dump_json(), (out / "report.html").read_text()):
        assert "Jane Doe" not in text


def test_synthetic_records_are_measured_by_a_model_trained_on_them(faulty):
    row = row_of(faulty[0], "copies")
    assert row.kind == "data"
    assert row.attack.attack == "nearest"
    assert row.attack.auc > 0.9  # the records themselves were released
    assert row.accuracy == pytest.approx(faulty[0].baseline, abs=0.15)


def test_a_broken_game_loses_the_audit_and_not_the_row(faulty):
    row = row_of(faulty[0], "unplayable")
    assert row.status == "done"
    assert row.audit is None
    assert "its audit failed" in row.problem
    assert row.accuracy >= 0.5
    assert "its audit failed" in (faulty[1] / "report.html").read_text()


def test_results_page_and_pictures_are_in_the_folder(faulty):
    document, out = faulty
    held = json.loads((out / "results.json").read_text())
    assert held["rows"] == document.to_json()["rows"]
    assert document.report == str(out / "report.html")
    assert {path.suffix for path in (out / "pictures").iterdir()} == {".png", ".svg"}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="children are found through /proc")
def test_killed_in_the_middle_and_resumed_it_ends_with_the_same_table(records, own_methods, tmp_path):
    """And with the table of a run that was not killed, whatever the number of workers."""
    command = [sys.executable, "-m", "noiseproof", "compare", "--data", str(records), "--methods", "steady,slow,second"]
    command += ["--trials", "5", "--import", own_methods, "--jobs", "1", "--queries", "20", "--json"]
    out = tmp_path / "killed"
    running = subprocess.Popen(
        [*command, "--out", str(out)],
        env={**os.environ, "NOISEPROOF_TEST_SLEEP": "600"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # Killed for sure in the middle: `slow` sleeps, the two before it are finished.
    limit = time.monotonic() + 300
    while not (out / "rows" / "steady-3.json").is_file():
        assert time.monotonic() < limit, "the comparison did not come to its second row"
        assert running.poll() is None
        time.sleep(0.1)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    running.send_signal(signal.SIGKILL)
    running.wait()
    assert not (out / "results.json").exists()
    while any(running_still(child) for child in children):
        assert time.monotonic() < limit, "a worker outlived its parent"
        time.sleep(0.1)

    kept = {name: (out / "rows" / f"{name}-3.json").stat().st_mtime_ns for name in ("none", "steady")}
    resumed = subprocess.run([*command, "--out", str(out), "--resume"], capture_output=True, text=True, check=True)
    assert {name: (out / "rows" / f"{name}-3.json").stat().st_mtime_ns for name in kept} == kept
    plan = Plan(str(records), methods=("steady", "slow", "second"), trials=5, imports=(own_methods,), queries=20)
    whole = compare(plan, tmp_path / "whole", jobs=2)
    assert without_seconds(json.loads(resumed.stdout)) == without_seconds(whole)


@pytest.mark.slow
def test_a_full_disk_is_told_and_the_table_still_comes(plan, tmp_path):
    """On a real file system of a few pages."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=12k", "tmpfs", str(small)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system is not allowed here")
    try:
        heard = Heard()
        document = compare(plan, small / "run", jobs=1, watch=heard)
    finally:
        subprocess.run(["umount", str(small)], check=True)
    assert [row.status for row in document.rows] == ["done"] * 2
    assert all("the disk is full" in row.problem for row in document.rows)
    assert any("No space left" in sentence for sentence in heard.troubles)
    assert document.report is None


def test_a_folder_of_something_else_is_left_alone(plan, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(BundleError, match="holds no comparison"):
        compare(plan, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_records_that_cannot_be_loaded_are_refused_before_anything_is_trained(plan, tmp_path):
    with pytest.raises(DataError, match="no-such-file"):
        compare(replace(plan, data="no-such-file.csv"), tmp_path / "run", jobs=1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"methods": ("dp-sdg",), "imports": ()}, "no method 'dp-sdg'"),
        ({"attack": "guess", "imports": ()}, "--attack"),
        ({"imports": ("no_such_module",)}, "no_such_module"),
    ],
)
def test_a_worker_refuses_what_it_cannot_run_before_it_loads_records(plan, change, words):
    with pytest.raises(SettingError, match=words):
        load_for(replace(plan, **change))
