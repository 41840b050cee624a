"""Every command that reads records, or what was made of them: two files that differ in one record leave the same behind."""

from __future__ import annotations

import contextlib
import json
import re
import stat

import pandas as pd
import pytest
import typer.main
from fastapi.testclient import TestClient

from noiseproof import report
from noiseproof.cli import output, registry
from noiseproof.data import bounds
from noiseproof.releases import ModelRelease, bundles, signing_keys
from noiseproof.run import choice, spends
from noiseproof.run.checkpoints import Checkpoints
from noiseproof.serve import Settings, create_app
from noiseproof.serve.ledger import Database, History, Keys
from tests.twin import worlds

DATA = "DATA"
"""Stands for the options that name a world's file and schema, under replace-one."""
MODEL = ("train", "functional", "--out", "release", "--no-baseline", "--json", DATA)
ANSWERS = ("train", "votes", "--out", "release", "--no-baseline", "--queries", "20", "--json", DATA)
DESCENT = ("train", "dp-sgd", "--network", "linear", "--set", "epochs=1", "--no-baseline", "--json")
BUY = ("data", "people.csv", "--schema", "open.json", "--buy-bounds", "release.json", "--neighbours", "replace-one")

WAYS = {
    "answers of a model": (
        MODEL,
        ("predict", "release", "rows.csv", "--json"),
        ("predict", "release", "rows.csv", "--out", "release-scored.csv"),
    ),
    "answers that are paid for": (
        ANSWERS,
        ("ledger", "init"),
        ("card", "release", "--json"),
        ("predict", "release", "rows.csv", "--json"),
        ("ledger", "show", "--json"),
        ("ledger", "export", "--out", "release-history.jsonl"),
        ("ledger", "verify", "--json"),
        ("report", "release", "--ledger", "noiseproof-ledger.db", "--out", "release.html", "--json"),
    ),
    "a number with an interval": (
        ("train", "functional", "--set", "interval=0.9", "--out", "release", "--no-baseline", "--json", DATA),
        ("predict", "release", "rows.csv", "--json"),
    ),
    "pages, cards and signatures": (
        MODEL,
        ("sign", "release", "--key", "vendor.pem"),
        ("verify", "release", "--key", "vendor.pem.pub", "--json"),
        ("card", "release", "--json"),
        ("report", "release", "--key", "vendor.pem.pub", "--out", "release.html", "--json"),
    ),
    "an audited bundle": (
        MODEL,
        ("audit", "release", "--trials", "50", "--json"),
        ("card", "release", "--json"),
    ),
    "a paid choice": (("choose", "functional", "functional:ridge=0.1", "--out", "release", "--json", DATA),),
    "bought bounds": ((*BUY, "--epsilon", "8", "--delta", "1e-3", "--json"),),
    "checkpoints": ((*DESCENT, "--out", "release", "--checkpoint", "checkpoints", "--every", "1", DATA),),
    "synthetic records": (
        ("synth", "marginals", "--out", "release.csv", "--no-quality", "--set", "steps=5", "--json", DATA),
        ("report", "release.csv.card.json", "--out", "release.html", "--json"),
    ),
}
"""Commands in the order in which somebody would type them; all that they leave is compared."""

ELSEWHERE = {
    "serve": "tests/twin/test_twins.py asks a service",
    "client predict": "below, against a service",
    "publish": "tests/twin/test_twins.py; it reads networks, not records",
    "compare": "tests/twin/test_twins.py; the rest of its folder is its owner's",
    "attack": "its owner's: an exact measure on private records",
    "canaries insert": "its owner's: the file with canaries is as private as the file",
    "canaries audit": "its owner's: what is found about canaries, which are no records of anybody",
    **dict.fromkeys(("methods", "account", "calibrate", "bench", "study", "tpvd"), "reads no private records"),
    **dict.fromkeys((f"keys {name}" for name in ("create", "list", "revoke", "rotate", "signing")), "no records"),
    **dict.fromkeys(
        (f"ledger {name}" for name in ("limit", "role", "close", "recover", "restore", "backup", "sign")),
        "the ledger itself, which stays inside; what is shown and exported of it is compared",
    ),
}
"""Commands that no way has, and why."""

INSIDE = re.compile(r"noiseproof-ledger\.db.*|checkpoints/.*|.*\.private\.json")
"""Files that stay inside: nobody but their owner may read them."""


def registered_by_tests() -> set[str]:
    """Commands that other tests of this process brought, such as the one in CONTRIBUTING."""
    commands = registry.app.registered_commands
    return {str(one.name) for one in commands if not one.callback.__module__.startswith("noiseproof.")}


def test_every_command_is_compared_or_says_why_not():
    """A new one must come into `WAYS`, where all that it leaves is compared without being named."""
    there = {
        " ".join((name, *more))
        for name, one in typer.main.get_command(registry.app).commands.items()
        for more in ([(inner,) for inner in getattr(one, "commands", {})] or [()])
        if name not in registered_by_tests()
    }
    typed = {" ".join(step[: 2 if step[0] in ("keys", "ledger") else 1]) for way in WAYS.values() for step in way}
    assert there == typed | set(ELSEWHERE)
    assert not typed & set(ELSEWHERE)


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return [path.read_bytes() for path in signing_keys.make_keys(tmp_path_factory.mktemp("keys") / "vendor.pem")]


def played(way, folder, restart, keys=()):
    """What the commands of a way leave in two worlds that share their draws: what differs, and the draws."""
    tape, left = worlds.Tape(), []
    for name, one in zip(("one", "other"), worlds.extremes(numeric="interval" in way), strict=True):
        home = folder / name
        given = (*worlds.write_world(home, one, numeric="interval" in way), "--neighbours", "replace-one")
        _public_files(home, keys)
        restart()
        found = {}
        with tape.running():
            for number, step in enumerate(WAYS[way]):
                words = [word for each in step for word in (given if each == DATA else (each,))]
                for key, content in worlds.run(home, tuple(words)).items():
                    found[f"{number} {key}" if key in ("stdout", "stderr") else key] = content
        for key in [key for key in found if INSIDE.fullmatch(key)]:
            assert _only_its_owners(home, key), f"{key} can be read by others"
            del found[key]
        inside = b'"stays_inside": true' in found.get("release/settings.json", b"")
        if inside:
            found = {key: content for key, content in found.items() if not key.startswith("release/")}
        left.append({key: _timeless(key, content, ids=inside) for key, content in found.items()})
    return worlds.leaks(*left, folder / "one", noised=False), tape


def _public_files(home, keys):
    """Rows to ask about, a schema with things to buy and keys to sign with: none depends on the record."""
    for name, content in zip(("vendor.pem", "vendor.pem.pub"), keys, strict=False):
        (home / name).write_bytes(content)
        (home / name).chmod(0o600)
    rows = worlds.table(None).head(5).drop(columns="label")
    rows.to_csv(home / "rows.csv", index=False)
    wanted = json.loads(json.dumps(worlds.SCHEMA))
    wanted["columns"]["age"] = {"low": 0, "high": 1000, "private": "bounds"}
    wanted["columns"]["city"] = {"private": "categories"}
    (home / "open.json").write_text(json.dumps(wanted))


def _only_its_owners(home, key):
    path = home / key
    return any(stat.S_IMODE(one.stat().st_mode) & 0o077 == 0 for one in (path, path.parent) if one.exists())


def _timeless(key, content, *, ids):
    """Without times; and, where files stay inside, without their digests, which hold a salt that stays inside, too."""
    if key.endswith((".safetensors", ".parquet")):
        return content
    text = re.sub(r"\d{4}-\d\d-\d\d([T ][\d:.]+)?", "TIME", content.decode())
    if ids:
        text = re.sub(r'("(?:at|ms|paid_at)": ?)[\d.]+', r"\g<1>0", re.sub(r"(?=\d*[a-f])[0-9a-f]{16,}", "ID", text))
    return text.encode()


@pytest.mark.parametrize("way", WAYS)
def test_with_the_same_draws_nothing_that_a_command_leaves_differs(way, keys, tmp_path, fixed_randomness):
    found, tape = played(way, tmp_path, fixed_randomness, keys)
    assert (found, tape.differing) == ([], [])
    assert tape.events


def test_what_a_client_is_told_by_a_service(tmp_path, fixed_randomness, monkeypatch):
    """By the command, over HTTP: answers, costs, what remains, the card."""
    tape, left = worlds.Tape(), []
    for name, one in zip(("one", "other"), worlds.extremes(), strict=True):
        home = tmp_path / name
        given = (*worlds.write_world(home, one), "--neighbours", "replace-one")
        fixed_randomness()
        with tape.running():
            worlds.run(home, ANSWERS[:-1], given)
            url = f"sqlite:///{home / 'ledger.db'}"
            app = create_app(Settings(ledger=url), {"model": bundles.load(home / "release")})
            (home / "rows.json").write_text(json.dumps([[0.1, 0.2, 1.0, 0.0, 0.0], [0.9, 0.8, 0.0, 0.0, 1.0]]))
            with TestClient(app) as http:
                monkeypatch.setattr("httpx.Client", lambda *_, http=http, **named: _bound(http, named))
                with contextlib.closing(Database(url)) as database:
                    key = Keys(database).create("hospital", operator=True)
                asked = (
                    "client",
                    "predict",
                    "http://service",
                    "model",
                    "--inputs",
                    "rows.json",
                    "--key",
                    key,
                    "--json",
                )
                found = worlds.run(home, asked)
                monkeypatch.undo()
        fixed_randomness()
        left.append({key: _timeless(key, found[key], ids=True) for key in ("stdout", "stderr")})
    assert json.loads(left[0]["stdout"])["labels"]
    assert (worlds.leaks(*left, tmp_path / "one", noised=False), tape.differing) == ([], [])


def _bound(http, named):
    http.headers.update(named["headers"])
    return http


# Leaks of each kind, planted: all must be caught.


def exact() -> float:
    """A number that one record changes, read where a command runs."""
    return float(pd.read_csv("people.csv")["age"].mean())


def _said(patch):
    real = output.note
    patch.setattr(output, "note", lambda *words: real(*words, f"the mean age is {exact()}"))


def _on_the_page(patch):
    real = report.render_release
    patch.setattr(report, "render_release", lambda found: real(found).replace("</body>", f"{exact()}</body>"))


def _in_answers(patch):
    real = ModelRelease.predict
    patch.setattr(ModelRelease, "predict", lambda self, features: real(self, features) + 1e-3 * exact())


def _exact_score(patch):
    patch.setattr(choice, "_score", lambda release, split, noise, rng: exact())


def _exact_bounds(patch):
    patch.setattr(bounds, "_range", lambda values, *_: (float(values.min()), float(values.max())))


def _exact_width(patch):
    patch.setattr(spends, "margin", lambda *_: exact() / 1000)


def _open_folder(patch):
    real = Checkpoints.save

    def save(self):
        real(self)
        self.folder.chmod(0o755)
        for file in self.folder.iterdir():
            file.chmod(0o644)

    patch.setattr(Checkpoints, "save", save)


def _in_the_export(patch):
    real = History.export
    patch.setattr(History, "export", lambda self, *given: [{**entry, "age": exact()} for entry in real(self, *given)])


@pytest.mark.parametrize(
    ("way", "plant", "caught"),
    [
        ("pages, cards and signatures", _on_the_page, "release.html:all differs"),
        ("answers of a model", _in_answers, "1 stdout:predictions"),
        ("answers of a model", _said, "stderr:all differs"),
        ("a paid choice", _exact_score, "0 stdout:score differs"),
        ("bought bounds", _exact_bounds, "release.json:columns.age.low differs"),
        ("a number with an interval", _exact_width, "release/settings.json:margin differs"),
        ("answers that are paid for", _in_the_export, "release-history.jsonl:all differs"),
    ],
)
def test_a_planted_leak_is_caught(way, plant, caught, keys, tmp_path, fixed_randomness, monkeypatch):
    with monkeypatch.context() as patch:
        plant(patch)
        found, _ = played(way, tmp_path, fixed_randomness, keys)
    assert any(caught in each for each in found), found


def test_checkpoints_that_others_can_read_are_caught(tmp_path, fixed_randomness, monkeypatch):
    _open_folder(monkeypatch)
    with pytest.raises(AssertionError, match="can be read by others"):
        played("checkpoints", tmp_path, fixed_randomness)
