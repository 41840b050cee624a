"""Files are there whole or not at all, and whoever is killed while writing one leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from noiseproof.errors import BundleError
from noiseproof.files import whole_file, write_whole
from noiseproof.releases import bundles

KILLED = """
import os, signal, sys
from noiseproof.files import whole_file
with whole_file(sys.argv[1]) as file:
    file.write(b"private " * 10_000)
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_writer_leaves_nothing_beside_the_old_file(tmp_path):
    write_whole(tmp_path / "note", "old")
    ended = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "note")], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert {one.name: one.read_text() for one in tmp_path.iterdir()} == {"note": "old"}


def test_a_file_replaces_another_with_the_mode_that_was_asked_for(tmp_path):
    write_whole(tmp_path / "note", "old")
    write_whole(tmp_path / "note", "new", mode=0o600)
    assert (tmp_path / "note").read_text() == "new"
    assert (tmp_path / "note").stat().st_mode & 0o777 == 0o600


def test_where_nameless_files_cannot_be_made_named_ones_do(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "O_TMPFILE")
    with pytest.raises(TypeError), whole_file(tmp_path / "note") as file:
        file.write("no bytes")
    assert list(tmp_path.iterdir()) == []
    write_whole(tmp_path / "note", "whole")
    assert [one.name for one in tmp_path.iterdir()] == ["note"]


CONTENTS = {bundles.SETTINGS: b'{"stays_inside": true}', bundles.CARD: b"{}", bundles.WEIGHTS: b"weights"}


def test_of_two_that_write_one_bundle_at_once_one_is_refused_and_the_bundle_is_whole(tmp_path, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()
    swap = bundles._swap

    def wait(*given):
        begun.set()
        assert go_on.wait(30)
        swap(*given)

    monkeypatch.setattr(bundles, "_swap", wait)
    first = threading.Thread(target=bundles.write, args=(tmp_path / "b", CONTENTS))
    first.start()
    assert begun.wait(30)
    with pytest.raises(BundleError, match="another process is writing"):
        bundles.write(tmp_path / "b", CONTENTS)
    go_on.set()
    first.join()
    assert [one.name for one in tmp_path.iterdir()] == ["b"]
    assert {one.name: one.read_bytes() for one in (tmp_path / "b").iterdir()} == CONTENTS


def test_what_a_killed_writer_of_a_bundle_left_is_in_sight_and_gone_after_the_next(tmp_path):
    left = tmp_path / "b.partial"
    left.mkdir(mode=0o755)
    (left / "weights.safetensors").write_bytes(b"half")
    (tmp_path / "b.replaced").mkdir()
    bundles.write(tmp_path / "b", CONTENTS)
    assert [one.name for one in tmp_path.iterdir()] == ["b"]
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o700
