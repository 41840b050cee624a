"""Downloads from a server of the test's own: whole, checked and atomic, or not at all."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from noiseproof.data.named import Download, cache_folder, fetch, verify
from noiseproof.errors import DataError
from noiseproof.progress import Progress, Task

CONTENT = bytes(range(256)) * 4000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/none":
            self.send_error(404)
            return
        self.send_response(200)
        if self.path != "/unsized":
            self.send_header("Content-Length", str(len(CONTENT) + (1000 if self.path == "/cut" else 0)))
        self.end_headers()
        self.wfile.write(CONTENT)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


class _Recorded(Progress):
    def __init__(self):
        self.total, self.done = 0, 0

    def task(self, description: str, total: int) -> Task:
        recorded = self
        recorded.total = total

        class Recording(Task):
            def advance(self, steps: int = 1, **status: float | str) -> None:
                recorded.done += steps

        return Recording()


def test_a_file_with_the_known_digest_is_kept_and_progress_is_told(server, tmp_path):
    progress = _Recorded()
    path = fetch(Download("a.bin", f"{server}/a", DIGEST), tmp_path / "new" / "folder", progress=progress)
    assert path.read_bytes() == CONTENT
    assert progress.total == progress.done == len(CONTENT)
    assert [found.name for found in path.parent.iterdir()] == ["a.bin"]


def test_a_server_that_tells_no_size_is_fine(server, tmp_path):
    assert fetch(Download("a.bin", f"{server}/unsized", DIGEST), tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("page", "digest", "message"),
    [
        ("/a", "0" * 64, "is not the file it should be"),
        ("/none", DIGEST, "could not be fetched"),
        ("/cut", None, "could not be fetched"),
    ],
)
def test_a_wrong_missing_or_cut_download_leaves_nothing_behind(server, tmp_path, page, digest, message):
    with pytest.raises(DataError, match=message):
        fetch(Download("a.bin", server + page, digest), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_download_leaves_an_older_file_alone(server, tmp_path):
    (tmp_path / "a.bin").write_bytes(b"older")
    with pytest.raises(DataError):
        fetch(Download("a.bin", f"{server}/a", "0" * 64), tmp_path)
    assert (tmp_path / "a.bin").read_bytes() == b"older"


def test_no_server_gives_one_sentence(tmp_path):
    with pytest.raises(DataError, match="could not be fetched") as refused:
        fetch(Download("a.bin", "http://127.0.0.1:9/a"), tmp_path)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_gives_one_sentence(server, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match="could not be fetched"):
        fetch(Download("a.bin", f"{server}/a"), tmp_path / "file" / "folder")


def test_where_no_digest_is_known_the_first_one_is_written_down_and_held_to(server, tmp_path):
    download = Download("a.bin", f"{server}/a")
    path = fetch(download, tmp_path)
    assert (tmp_path / "a.bin.sha256").read_text().split() == [DIGEST, "a.bin"]
    verify(download, path)
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(DataError, match="changed since it was fetched"):
        verify(download, path)


def test_a_file_is_held_to_its_known_digest(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(CONTENT)
    verify(Download("a.bin", "unused", DIGEST), path)
    with pytest.raises(DataError, match="changed since it was fetched"):
        verify(Download("a.bin", "unused", "0" * 64), path)


def test_a_file_whose_written_digest_is_lost_is_refused(tmp_path):
    (tmp_path / "a.bin").write_bytes(CONTENT)
    with pytest.raises(DataError, match="lost the digest"):
        verify(Download("a.bin", "unused"), tmp_path / "a.bin")


def test_the_cache_follows_the_users_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "noiseproof"
    for ignored in ("", "relative/folder"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_folder() == Path.home() / ".cache" / "noiseproof"
