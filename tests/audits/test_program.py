"""A stranger's program is run on two neighbouring files: liars are refuted, and nothing it does is shown or believed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from noiseproof.audits import AuditError, Program, audit_program
from noiseproof.audits.neighbouring import check_pair, without_row
from noiseproof.audits.observed import tell_apart
from noiseproof.audits.releases import read_release
from noiseproof.audits.two_worlds import counting_bound
from noiseproof.errors import DataError, SettingError
from noiseproof.privacy import Claim

VENDOR = Path(__file__).parents[2] / "examples" / "vendor" / "mean_income.py"
CLAIM = Claim(epsilon=2.0, delta=0.0, source="the vendor")
COUNTS = "#!/bin/sh\nwc -l < $1 > $2.txt\n"


@pytest.fixture
def files(tmp_path):
    """A file of 60 people, and one without the last of them."""
    rows = [f"{20 + i},{1000 * i}\n" for i in range(59)] + ["45,100000\n"]
    (tmp_path / "people.csv").write_text("age,income\n" + "".join(rows))
    return tmp_path / "people.csv", without_row(tmp_path / "people.csv", 59, tmp_path / "others.csv")


@pytest.fixture
def script(tmp_path):
    """A program of a few lines of shell."""

    def write(lines, **options):
        path = tmp_path / "program.sh"
        path.write_text(lines)
        return Program(f"sh {path} {{data}} {{release}}", **options)

    return write


def test_a_program_without_noise_is_refuted_and_the_result_says_so(files, script):
    claim = CLAIM.model_copy(update={"epsilon": 0.5})
    found = audit_program(script(COUNTS), *files, claim, trials=20)
    assert found.verdict == "refuted"
    assert found.epsilon == pytest.approx(found.power.largest)
    assert "no noise" in found.notes[0]
    document = json.loads(json.dumps(found.to_json()))
    assert document["power"]["claimed"] == 0.5
    assert document["verdict"] == "refuted"


def test_worlds_that_release_the_same_refute_nothing(files, script):
    found = audit_program(script("echo 1 > $2.txt"), *files, CLAIM, trials=20)
    assert (found.epsilon, found.verdict) == (0.0, "nothing proven")


def test_neither_the_name_nor_the_age_of_a_file_tells_which_it_is(files, script, tmp_path):
    seen = tmp_path / "seen.txt"
    lines = f"#!/bin/sh\nbasename $1 >> {seen}\nstat -c %Y $1 >> {seen}\necho 1 > $2.json\n"
    audit_program(script(lines), *files, CLAIM, trials=20, jobs=1)
    assert set(seen.read_text().split()) == {"data.csv", "0"}


@pytest.mark.parametrize(
    ("lines", "failure", "words"),
    [
        ("echo SECRET >&2; cat $1 >&2; exit 3", "crash", "ended with exit code 3"),
        ("kill -9 $$", "crash", "was killed"),
        ("sleep 60 & sleep 60", "hang", "gave no answer in 0.5 seconds"),
        ("true", "kind", "wrote 0 files"),
        ("echo 1 > $2.json; echo 2 > $2.csv", "kind", "wrote 2 files"),
        ("ln -s /etc/passwd $2.txt", "kind", "wrote 1 files"),
        ("echo SECRET > $2.json", "kind", "no json that can be read"),
        ("cat $1 > $2.pickle", "kind", "ends in '.pickle'"),
        ("head -c 100 /dev/urandom > $2.npz", "kind", "no npz that can be read"),
        ("head -c 100 /dev/urandom > $2.safetensors", "kind", "no safetensors that can be read"),
    ],
)
def test_a_program_that_fails_gives_one_sentence_without_anything_of_its_own_and_no_bound(
    files, script, lines, failure, words
):
    with pytest.raises(AuditError, match=words) as caught:
        audit_program(script(lines, timeout=0.5 if failure == "hang" else 60.0), *files, CLAIM, trials=20)
    assert caught.value.failure == failure
    assert "SECRET" not in str(caught.value)
    assert "no bound was computed" in str(caught.value)


def test_a_program_that_fails_for_one_of_the_files_alone_is_no_silent_trial(files, script):
    with pytest.raises(AuditError, match="on the file with the record"):
        audit_program(script("grep -q 100000 $1 && exit 1; echo 1 > $2.txt"), *files, CLAIM, trials=20)


def test_what_a_hanging_program_started_ends_with_it(files, script, tmp_path):
    marker = tmp_path / "alive"
    with pytest.raises(AuditError):
        audit_program(script(f"(sleep 2; touch {marker}) & sleep 60", timeout=0.3), *files, CLAIM, trials=20, jobs=1)
    time.sleep(2.2)
    assert not marker.exists()


def test_an_audit_goes_on_from_what_is_kept_and_runs_nothing_twice(files, script, tmp_path):
    ran, kept = tmp_path / "ran", tmp_path / "kept"
    lines = f"echo . >> {ran}; [ $(wc -l < {ran}) -eq 15 ] && exit 1; echo $$ > $2.txt"
    with pytest.raises(AuditError):
        audit_program(script(lines), *files, CLAIM, trials=20, jobs=1, folder=kept)
    done = len(list(kept.glob("run-*")))
    assert done == 14
    assert kept.stat().st_mode & 0o777 == 0o700
    assert len(ran.read_text().split()) == 15
    audit_program(script(lines), *files, CLAIM, trials=20, jobs=1, folder=kept)
    assert len(ran.read_text().split()) == 15 + 40 - done
    assert not list(kept.glob("scratch-*"))
    for other in ({"trials": 30}, {"seed": 1}):
        with pytest.raises(SettingError, match="holds another audit"):
            audit_program(script(lines), *files, CLAIM, folder=kept, **{"trials": 20, **other})


@pytest.mark.slow
def test_two_audits_cannot_work_in_one_folder_at_once_and_an_interrupted_one_leaves_no_program(files, tmp_path):
    kept, marker = tmp_path / "kept", tmp_path / "late"
    program = tmp_path / "slow.sh"
    program.write_text(f"sleep 1.5; touch {marker}; echo 1 > $2.txt")
    command = ["audit", "--program", f"sh {program} {{data}} {{release}}", "--data", str(files[0]), "--neighbour"]
    command += [str(files[1]), "--epsilon", "1", "--trials", "20", "--jobs", "1", "--resume", str(kept)]
    # Where tests run in the background the signal is ignored by all that they start.
    hears = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); import noiseproof.cli as c; c.main()"
    first = subprocess.Popen([sys.executable, "-c", hears, *command], stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 60
        while not list(kept.glob("scratch-*")) and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(SettingError, match="another audit is at work"):
            audit_program(Program(f"sh {program} {{data}} {{release}}"), *files, CLAIM, trials=20, folder=kept)
        first.send_signal(signal.SIGINT)
        said = first.communicate(timeout=60)[1]
    finally:
        first.kill()
        first.communicate()
    assert first.returncode == 130
    assert "run the same command again to go on" in said
    marker.unlink(missing_ok=True)
    time.sleep(1.7)
    assert not marker.exists()


def test_a_score_of_ones_own_is_printed_by_a_command(files, script, tmp_path):
    score = tmp_path / "score.sh"
    score.write_text("cat $1")
    found = audit_program(script(COUNTS, score=f"sh {score} {{release}}"), *files, CLAIM, trials=20)
    assert found.bound.counted == 10
    assert found.epsilon > 0
    score.write_text("echo SECRET")
    with pytest.raises(AuditError, match="score that is no number") as caught:
        audit_program(script(COUNTS, score=f"sh {score} {{release}}"), *files, CLAIM, trials=20)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("sh x.sh {data}", "lacks {release}"),
        ("no-such-program {data} {release}", "no program 'no-such-program'"),
        ("'unclosed {data} {release}", "no command line"),
    ],
)
def test_a_command_line_that_cannot_be_run_is_refused_before_anything_runs(command, words):
    with pytest.raises(SettingError, match=words):
        Program(command)


def test_files_that_differ_in_more_than_one_record_are_no_neighbours(files, tmp_path):
    people, others = files
    assert check_pair(people, others, "add-or-remove").paths == (others, people)
    assert check_pair(others, people, "add-or-remove").paths == (others, people)
    with pytest.raises(SettingError, match="one record replaced"):
        check_pair(people, others, "replace-one")
    for text, words in (("age,income\n1,2\n", "records that"), ("age,wage\n", "different columns")):
        (tmp_path / "c.csv").write_text(text)
        with pytest.raises(SettingError, match=words):
            check_pair(people, tmp_path / "c.csv", "add-or-remove")
    np.savez(tmp_path / "a.npz", x=np.eye(3), y=np.arange(3))
    np.savez(tmp_path / "b.npz", x=np.eye(3)[:2], y=np.arange(2))
    assert check_pair(tmp_path / "a.npz", tmp_path / "b.npz", "add-or-remove").paths[1] == tmp_path / "a.npz"
    with pytest.raises(SettingError, match="different kinds"):
        check_pair(people, tmp_path / "a.npz", "add-or-remove")
    with pytest.raises(SettingError, match="no record 60"):
        without_row(people, 60, tmp_path / "d.csv")


def test_every_kind_of_release_is_read_as_its_numbers(tmp_path):
    from safetensors.numpy import save_file

    (tmp_path / "a.json").write_text('{"mean": 2.5, "parts": [1, null, true], "name": "x"}')
    (tmp_path / "a.csv").write_text("x,word\n1,a\n2,b\n")
    (tmp_path / "a.txt").write_text("1.5, 2\n3\n")
    np.save(tmp_path / "a.npy", np.arange(4).reshape(2, 2))
    np.savez(tmp_path / "a.npz", x=np.arange(1000.0))
    save_file({"w": np.ones(3, np.float32)}, tmp_path / "a.safetensors")
    found = {kind: read_release(tmp_path / f"a.{kind}") for kind in ("json", "csv", "txt", "npy", "npz", "safetensors")}
    assert found["json"]["release.mean"] == 2.5
    assert found["json"]["release.parts.2"] == 1.0
    assert found["csv"]["x.1"] == 2.0
    assert found["csv"]["rows"] == 2.0
    assert (found["csv"]["x: mean"], found["csv"]["x: most"]) == (1.5, 2.0)
    assert found["txt"]["release.2"] == 3.0
    assert found["npy"]["weights"].tolist() == [0, 1, 2, 3]
    assert set(found["npz"]) == {"values", "bytes", "weights"}
    assert len(found["safetensors"]["weights"]) == 3
    (tmp_path / "deep.json").write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(DataError, match="no json"):
        read_release(tmp_path / "deep.json")


def test_the_learned_score_finds_what_two_noisy_numbers_say_together():
    """Two Laplace answers at epsilon 2.5 each: either alone refutes at most 2.5."""
    rng = np.random.default_rng(0)
    worlds = [
        [{"a": row[:1], "b": row[1:], "weights": row} for row in world + rng.laplace(scale=0.4, size=(1000, 2))]
        for world in (0, 1)
    ]
    told = tell_apart((worlds[0][:400], worlds[1][:400]), ())
    scores = [np.array([told.score(run) for run in world[400:]]) for world in worlds]
    assert 2.6 < counting_bound((scores[0], scores[1]), delta=0.0, choosing=told.scores).epsilon < 5.0


@pytest.mark.slow
@pytest.mark.parametrize(("option", "refuted"), [(" --fast", True), ("", False)])
def test_a_vendor_that_claims_2_and_has_5_is_refuted_and_one_that_has_2_is_not(files, option, refuted):
    """At 500 trials the bound on the liar is above 2 in 99 audits of 100; on the honest one it is at most 2 in 95."""
    started = time.monotonic()
    program = Program(f"{sys.executable} -S -E {VENDOR} {{data}} {{release}}.json{option}")
    found = audit_program(program, *files, CLAIM)
    assert (found.verdict == "refuted") == refuted
    assert found.epsilon < (5.0 if refuted else 2.0)
    assert found.power.found_from["Laplace"] < 5.0
    assert time.monotonic() - started < 600
