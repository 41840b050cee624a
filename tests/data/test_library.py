"""Where named sets are looked for, what is fetched, and the catalogue."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from noiseproof.data import catalogue, library, load
from noiseproof.data.library import cache_folder, fetch, verify
from noiseproof.data.named import Download, named_sets
from noiseproof.errors import DataError
from noiseproof.progress import Progress, Task


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Two data folders and a cache of the test's own, and no network."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    monkeypatch.setenv("NOISEPROOF_DATA", os.pathsep.join([str(one), str(tmp_path / "absent"), str(two)]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return one, two, tmp_path / "cache" / "noiseproof"


def _serve(monkeypatch, names, folder, *, known: bool = False):
    """Let sets be fetched from a folder instead of the network, with digests known beforehand or not."""
    served = {}
    for name in names:
        found = named_sets()[name]
        downloads = []
        for each in found.downloads:
            path = folder / each.file
            digest = hashlib.sha256(path.read_bytes()).hexdigest() if known else None
            downloads.append(Download(each.file, path.as_uri(), digest))
        served[name] = replace(found, downloads=tuple(downloads))
    monkeypatch.setattr(library, "named_sets", lambda: served)


def _location(path, records=40):
    bits = np.random.default_rng(0).integers(0, 2, (records, 446))
    np.savez(path, x_packed=np.packbits(bits, axis=1), n_features=446, y=np.arange(records) % 30)


def _bangkok(path, records=40):
    bits = np.random.default_rng(0).integers(0, 2, (records, 446))
    rows = (f'"{place % 30 + 1}",' + ",".join(map(str, row)) for place, row in enumerate(bits))
    path.write_text("\n".join(rows) + "\n")


def _records(split):
    return len(split.train) + len(split.test)


def _entry(name):
    return next(entry for entry in catalogue() if entry["name"] == name)


def test_the_first_folder_that_has_the_files_wins(folders):
    one, two, cache = folders
    (cache / "location").mkdir(parents=True)
    _location(cache / "location" / "location30.npz", 60)
    assert _records(load("location")) == 60
    _location(two / "location30.npz", 50)
    assert _records(load("location")) == 50
    _location(one / "location30.npz", 40)
    assert _records(load("location")) == 40


def test_a_set_may_have_a_folder_of_its_own(folders):
    (folders[1] / "location").mkdir()
    _location(folders[1] / "location" / "location30.npz")
    assert _entry("location")["path"] == str(folders[1] / "location" / "location30.npz")


def test_half_a_layout_is_no_find(folders):
    (folders[0] / "adult-train.csv").write_text("age\n1\n")
    assert not _entry("adult")["available"]


def test_what_is_absent_and_cannot_be_fetched_gives_one_sentence_with_how_to_get_it(folders, monkeypatch):
    _serve(monkeypatch, ["purchase"], folders[2])
    with pytest.raises(DataError) as refused:
        load("purchase")
    message = str(refused.value)
    assert "dataset_purchase.tgz of https://github.com/privacytrustlab/datasets" in message
    assert "NOISEPROOF_DATA" in message
    assert "\n" not in message
    assert not list(folders[2].rglob("*.tgz*"))


@pytest.mark.parametrize("known", [True, False])
def test_what_is_absent_is_fetched_once_and_held_to_its_digest(folders, monkeypatch, tmp_path, known):
    server = tmp_path / "server"
    server.mkdir()
    _bangkok(server / "bangkok")
    with tarfile.open(server / "dataset_location.tgz", "w:gz") as archive:
        archive.add(server / "bangkok", "bangkok")
    _serve(monkeypatch, ["location"], server, known=known)
    first = load("location")
    (server / "dataset_location.tgz").unlink()
    assert load("location").train.fingerprint() == first.train.fingerprint()
    fetched = folders[2] / "location" / "dataset_location.tgz"
    assert _entry("location")["path"] == str(fetched)
    fetched.write_bytes(fetched.read_bytes() + b"changed")
    with pytest.raises(DataError, match="changed since it was fetched"):
        load("location")


def test_variants_of_a_set_share_what_was_fetched(folders, monkeypatch, tmp_path):
    server = tmp_path / "server"
    server.mkdir()
    rng = np.random.default_rng(0)
    text = "".join(" ".join(map(str, rng.choice(700, 12, replace=False))) + "\n" for _ in range(300))
    (server / "retail.dat.gz").write_bytes(gzip.compress(text.encode()))
    _serve(monkeypatch, ["retail", "retail-2", "retail-10"], server)
    load("retail-2")
    (server / "retail.dat.gz").unlink()
    assert load("retail-10").train.fingerprint() == load("retail").train.fingerprint()


def test_the_catalogue_names_every_set_and_how_to_get_it(folders):
    entries = catalogue()
    assert [set(entry) for entry in entries] == [
        {"name", "records", "features", "classes", "available", "path", "how"}
    ] * len(entries)
    names = {entry["name"] for entry in entries}
    images = {"digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "svhn"}
    assert names == images | {"breast-cancer", "adult", "location", "purchase", "texas", "retail"}
    assert all(entry["how"] for entry in entries)
    assert {entry["name"] for entry in entries if entry["available"]} == {"digits", "breast-cancer"}


def test_the_catalogue_reads_and_fetches_nothing(folders, monkeypatch):
    def never(*_args, **_options):
        raise AssertionError

    monkeypatch.setattr(library, "fetch", never)
    (folders[0] / "mnist.npz").write_bytes(b"not a real file")
    entry = _entry("mnist")
    assert (entry["available"], entry["records"], entry["features"], entry["classes"]) == (True, 70_000, 784, 10)


def test_the_catalogue_tells_the_size_of_the_copy_that_is_there(folders):
    assert _entry("location")["records"] == 5010
    _location(folders[0] / "location30.npz", 40)
    assert _entry("location")["records"] == 40


def test_sizes_in_the_catalogue_are_those_that_are_loaded(folders):
    for name in ("digits", "breast-cancer"):
        split, entry = load(name), _entry(name)
        assert entry["records"] == len(split.train) + len(split.test)
        assert entry["features"] == split.train.features[0].numel()
        assert entry["classes"] == split.train.classes


def test_downloads_without_a_publicly_known_digest_are_at_least_encrypted():
    for found in named_sets().values():
        for download in found.downloads:
            assert download.url.startswith("https://") or download.sha256 is not None
            assert download.sha256 is None or len(download.sha256) == 64


def test_every_set_that_can_be_fetched_has_a_layout_for_what_is_fetched():
    for found in named_sets().values():
        if found.downloads:
            files = tuple(download.file for download in found.downloads)
            layouts = [layout for layout in found.layouts if layout.files == files]
            assert len(layouts) == 1
            # And it is found again in the cache.
            assert found.folder in layouts[0].folders


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
