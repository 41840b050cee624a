"""Run the command line in this process, as a user would see it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from noiseproof.cli import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def noiseproof(capsys, monkeypatch):
    """`noiseproof("train", "dp-sgd", ...)` gives exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = 0
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run
