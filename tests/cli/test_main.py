"""What holds of every command: help with an example, one sentence for an error, quick to start."""

from __future__ import annotations

import subprocess
import sys

import pytest

from noiseproof import __version__, cli

COMMANDS = [
    "compare",
    "report",
    "methods",
    "data",
    "account",
    "calibrate",
    "train",
    "attack",
    "audit",
    "study",
    "bench",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_an_example(noiseproof, command):
    outcome = noiseproof(command, "--help")
    assert outcome.code == 0
    assert "Example" in outcome.out


def test_the_version_is_the_packages(noiseproof):
    assert noiseproof("--version").out.strip() == __version__


def test_an_unknown_command_or_option_is_bad_usage(noiseproof):
    assert noiseproof("trian").code == 2
    assert noiseproof("train", "dp-sgd", "--epsilom", "1").code == 2
    assert noiseproof("account").code == 2


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from noiseproof.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'scipy', 'pandas', 'sklearn', 'dp_accounting', 'matplotlib'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.rstrip().endswith("HEAVY []")


def test_an_unforeseen_error_tells_its_kind_but_no_values(noiseproof, monkeypatch):
    def broken(*_, **__):
        raise ValueError("could not convert string to float: 'Jane Doe, 1950-01-01'")

    monkeypatch.setattr("noiseproof.methods.registry", broken)
    outcome = noiseproof("methods")
    assert outcome.code == 1
    assert "ValueError" in outcome.err
    assert "Jane" not in outcome.err
    assert "Traceback" not in outcome.err


def test_debug_shows_the_traceback(noiseproof):
    outcome = noiseproof("train", "no-such-method", "--debug")
    assert outcome.code == 2
    assert "Traceback" in outcome.err


def test_python_dash_m_is_the_same():
    assert cli.main is __import__("noiseproof.__main__", fromlist=["main"]).main
