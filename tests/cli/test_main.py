"""What holds of every command: help with an example, one sentence for an error, quick to start."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import typer.main

from noiseproof import __version__, cli


def commands(command, path=()):
    """Every command of the tree with the words that lead to it."""
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(cli.app)))
LEAVES = [path for path, command in COMMANDS.items() if not hasattr(command, "commands")]


@pytest.mark.parametrize("path", [path for path in COMMANDS if path], ids=" ".join)
def test_every_command_has_help_with_an_example_of_itself(noiseproof, path):
    outcome = noiseproof(*path, "--help")
    assert outcome.code == 0
    assert f"noiseproof {' '.join(path)}" in " ".join(outcome.out.partition("Example")[2].split())


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_option_of_an_example_exists(path):
    known = {name for parameter in COMMANDS[path].params for name in (*parameter.opts, *parameter.secondary_opts)}
    for example in COMMANDS[path].epilog.partition(": ")[2].split(";"):
        assert {word for word in example.split() if word.startswith("--")} <= known


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_argument_and_option_is_explained(path):
    assert [parameter.name for parameter in COMMANDS[path].params if not parameter.help] == []


@pytest.mark.parametrize("path", [path for path in LEAVES if path != ("serve",)], ids=" ".join)
def test_every_command_can_speak_json(path):
    assert "--json" in {name for parameter in COMMANDS[path].params for name in parameter.opts}


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("noiseproof cal", "calibrate"),
        ("noiseproof train dp-sgd-b", "dp-sgd-bounded"),
        ("noiseproof audit neuron-l", "neuron-laplace"),
        ("noiseproof train dp-sgd --data dig", "digits"),
        ("noiseproof account --neighbours rep", "replace-one"),
        ("noiseproof account --accountant zc", "zcdp"),
        ("noiseproof attack model --attack lab", "label-only"),
        ("noiseproof study l", "lin\nlu"),
    ],
)
def test_a_shell_completes_commands_and_names(noiseproof, monkeypatch, typed, offered):
    monkeypatch.setenv("_NOISEPROOF_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", typed)
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split()) - 1))
    assert noiseproof().out.strip() == offered


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
    ran = subprocess.run([sys.executable, "-m", "noiseproof", "--version"], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == __version__


def test_a_command_of_a_users_own_package_is_found_by_its_entry_point(tmp_path):
    (tmp_path / "greeting.py").write_text(
        "from noiseproof.cli import command\n"
        "@command('hello', 'Example: noiseproof hello')\n"
        "def hello() -> None:\n"
        "    'Greet.'\n"
        "    print('hello')\n"
    )
    folder = tmp_path / "greeting-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: greeting\nVersion: 1\n")
    (folder / "entry_points.txt").write_text("[noiseproof.commands]\nhello = greeting\nbroken = no_such_module\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    ran = subprocess.run(
        [sys.executable, "-m", "noiseproof", "hello"], env={**os.environ, "PYTHONPATH": path}, capture_output=True
    )
    assert ran.stdout.strip() == b"hello"
    assert b"no_such_module, which an installed package names for noiseproof.commands, cannot be imported" in ran.stderr


def test_brackets_in_a_message_are_printed_as_they_are(noiseproof):
    assert "[/tmp/no[red]where]" in noiseproof("train", "[/tmp/no[red]where]").err


@pytest.mark.parametrize(("command", "words"), [("compare", "with --resume"), ("methods", "interrupted.")])
def test_an_interruption_says_how_to_go_on(noiseproof, monkeypatch, command, words):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("noiseproof.cli.app", interrupt)
    outcome = noiseproof(command)
    assert outcome.code == 130
    assert words in outcome.err
