"""On a Ray cluster tasks give what they give here, also when a machine dies."""

from __future__ import annotations

import builtins
import json
import os
import subprocess
import sys

import pytest

from noiseproof.errors import MissingPartError, SettingError
from noiseproof.parallel import cluster, tasks
from tests.parallel import work
from tests.run.launch import ROOT


def test_without_ray_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name == "ray":
            raise ImportError
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingPartError, match=r"noiseproof\[cluster\]"):
        tasks.collect(work.square, [1], ray="auto")


def test_a_cluster_that_does_not_answer_is_told_in_a_sentence(monkeypatch):
    class Ray:
        @staticmethod
        def is_initialized():
            return False

        @staticmethod
        def init(**_):
            raise ConnectionError

    monkeypatch.setitem(sys.modules, "ray", Ray)
    with pytest.raises(SettingError, match="no Ray cluster answers at 'auto'"):
        cluster.connect("auto")


@pytest.mark.slow
def test_a_collection_outlives_a_node_that_is_killed_half_way(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "tests.parallel.three_nodes", str(tmp_path)],
        cwd=ROOT,
        # Ray's workers step back behind everything else on a machine; here they are what is waited for.
        env={**os.environ, "OMP_NUM_THREADS": "1", "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["nodes"] == 3
    assert 6 <= found["killed at"] < 12
    assert found["left"] == 2
    assert found["trained"] == 12
    assert found["same weights"]
    assert found["same shadows"]
    assert found["same rows"]
    assert len(found["bundles"]) == 2 * 3
