"""Nothing is destroyed: no input, no file that exists, no half of a file; and words come out as they went in."""

from __future__ import annotations

import io
import os
import resource
import signal
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from noiseproof.cli import output

QUICK = ("--set", "generator-steps=2", "--no-quality")


@pytest.fixture
def people(tmp_path):
    generator = np.random.default_rng(0)
    frame = pd.DataFrame({"age": generator.integers(18, 90, 300), "income": generator.choice(["low", "high"], 300)})
    frame.to_csv(tmp_path / "people.csv", index=False)
    return tmp_path / "people.csv"


@pytest.mark.parametrize("name", ["people.csv", "./people.csv", "link.csv"])
@pytest.mark.parametrize("force", [(), ("--force",)])
def test_records_are_never_written_over_whatever_they_are_called(noiseproof, people, monkeypatch, name, force):
    monkeypatch.chdir(people.parent)
    os.symlink("people.csv", "link.csv")
    before = people.read_bytes()
    outcome = noiseproof("synth", "dp-gan", "--data", people, "--target", "income", "--out", name, *QUICK, *force)
    assert outcome.code == 2
    assert "would be lost" in outcome.err or "exists" in outcome.err
    assert people.read_bytes() == before
    assert not (people.parent / "people.csv.card.json").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("synth", "dp-gan", "--data", "people.csv", "--target", "income", *QUICK, "--out", "there.csv"),
        ("train", "dp-sgd", "--data", "people.csv", "--target", "income", "--set", "epochs=1", "--out", "there.csv"),
        ("data", "people.csv", "--target", "income", "--draft-schema", "there.csv"),
    ],
)
def test_a_file_that_exists_is_replaced_only_by_force(noiseproof, people, monkeypatch, command):
    monkeypatch.chdir(people.parent)
    there = people.with_name("there.csv")
    there.write_text("somebody's")
    outcome = noiseproof(*command)
    assert outcome.code == 2
    assert "there.csv exists" in outcome.err
    assert there.read_text() == "somebody's"
    if command[0] == "data":
        assert noiseproof(*command, "--force").code == 0
        assert "drafted" in there.read_text()


def test_a_bundle_is_replaced_only_by_force(noiseproof, people, tmp_path):
    train = ("train", "dp-sgd", "--data", people, "--target", "income", "--no-baseline", "--set", "epochs=1")
    assert noiseproof(*train, "--out", tmp_path / "model").code == 0
    card = (tmp_path / "model" / "card.json").read_bytes()
    outcome = noiseproof(*train, "--out", tmp_path / "model")
    assert (outcome.code, "exists" in outcome.err) == (2, True)
    assert (tmp_path / "model" / "card.json").read_bytes() == card
    assert noiseproof(*train, "--out", tmp_path / "model", "--force").code == 0


def test_a_ledger_is_not_exported_over_itself(noiseproof, tmp_path):
    noiseproof("ledger", "new", "--ledger", tmp_path / "ledger.db")
    (tmp_path / "ledger.db").touch()
    outcome = noiseproof(
        "ledger", "export", "--ledger", tmp_path / "ledger.db", "--out", tmp_path / "ledger.db", "--force"
    )
    assert outcome.code != 0


def test_a_full_disk_leaves_no_file(people, tmp_path):
    def small_files_only():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    command = (
        "synth",
        "dp-gan",
        "--data",
        people,
        "--target",
        "income",
        "--rows",
        5000,
        "--out",
        tmp_path / "made.csv",
    )
    ran = subprocess.run(
        [sys.executable, "-m", "noiseproof", *map(str, (*command, *QUICK))],
        preexec_fn=small_files_only,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "error: the operating system says" in ran.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["people.csv"]


@pytest.mark.parametrize("words", ["pip install 'noiseproof[serve]'", "dose [mg]", "[/x] [bold]", "[link=a]b[/link]"])
def test_brackets_survive_in_every_place_of_a_table_and_in_sentences(monkeypatch, words):
    said = io.StringIO()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(output, name, Console(file=said, width=60))
    output.show(words, (words, "b"), [(words, 1)], caption=words)
    output.say(words)
    output.note(words)
    assert said.getvalue().replace("\n", " ").count(words.split()[-1]) == 6


def test_a_progress_bar_says_brackets_as_they_are(monkeypatch):
    said = io.StringIO()
    monkeypatch.setattr(output, "stderr", Console(file=said, width=100, force_terminal=True))
    with output.RichProgress().task("storing [/x] dose [mg].csv", 1) as task:
        task.advance(1, status="[/y]")
    assert "[/x] dose [mg].csv" in said.getvalue()
