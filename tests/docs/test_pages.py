"""What pages say about the tree is so: methods, settings, tests and links are there."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path
from typing import get_args

import pytest

from bench import Benchmark
from noiseproof import methods

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
METHODS = methods.registry()


def name(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_page_that_names_every_setting(method):
    page = ROOT / "docs" / "methods" / f"{method}.md"
    assert page.is_file(), f"{method} needs docs/methods/{method}.md"
    text = page.read_text(encoding="utf-8")
    # A sibling's settings need not be said twice, if its page is named among them.
    for sibling in re.findall(r"\(([\w-]+\.md)\)", text.partition("## Settings")[2].partition("\n## ")[0]):
        text += (page.parent / sibling).read_text(encoding="utf-8")
    missing = [field.name for field in dataclasses.fields(METHODS[method]) if f"`{field.name}`" not in text]
    assert not missing, f"docs/methods/{method}.md does not say what these settings are: {missing}"


@pytest.mark.parametrize("method", METHODS)
def test_every_methods_page_says_what_is_claimed_proven_and_audited(method):
    text = (ROOT / "docs" / "methods" / f"{method}.md").read_text(encoding="utf-8").lower()
    assert "formal guarantee" in text
    for word in ("claimed", "proven", "audit", "when to use", "cost"):
        assert word in text, f"docs/methods/{method}.md says nothing of: {word}"


def test_the_table_of_methods_is_the_registrys():
    rows = re.findall(r"^\| \[`([\w-]+)`\]\(.*?\) \| (\w+) \| ([\w ]+) \| (.*?) \|", index(), re.M)
    built = {True: "as published", False: "proven"}
    assert rows == [
        (
            method.name,
            method.place,
            "baseline" if method.name == "none" else built[method.paper is not None],
            method.summary().replace("|", "\\|"),
        )
        for method in METHODS.values()
    ], "run docs/tools/figures.py compare, which writes the table"


def index():
    return (ROOT / "docs" / "methods" / "index.md").read_text(encoding="utf-8")


def test_the_readme_names_every_method_with_a_verdict():
    rows = re.findall(
        r"^\| \[`([\w-]+)`\]\(.*\| ([\w *—]+) \|$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M
    )
    assert [row[0] for row in rows] == list(METHODS)
    assert {row[1].strip("*") for row in rows} <= {"proven", "weaker than claimed", "nothing proven", "refuted"}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_target_of_make_that_a_page_names_is_there(page):
    named = set(re.findall(r"(?:^\$ |`)make ([a-z-]+)", page.read_text(encoding="utf-8"), re.M))
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    assert named <= targets


def test_every_kind_of_benchmark_is_explained():
    text = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    assert [kind for kind in get_args(Benchmark) if f"`{kind}`" not in text] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_page_waits_for_a_figure(page):
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"^[A-Z]+(?:_[A-Z]+)*$|@[A-Z0-9_]+@|\bT[B]D\b|\bTO[D]O\b", text, re.M) == []
    assert not re.search(r"<!-- figures: [^>]* -->\s*<!-- end of figures -->", text)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_test_that_a_page_names_is_there(page):
    for path, test in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page.read_text(encoding="utf-8")):
        assert (ROOT / path).is_file(), f"there is no {path}"
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8") or not test, f"there is no {path}::{test}"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_of_a_page_leads_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{name(page)} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors(found), f"{name(page)} links to {target}, a heading that is not there"


def anchors(page):
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title.strip().lower())) for title in titles}


def test_every_page_is_in_the_sites_navigation():
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M))
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert listed == there


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_name_that_a_page_imports_is_there(page):
    text = page.read_text(encoding="utf-8")
    for module, names in re.findall(r"^ *from (noiseproof[\w.]*) import ([\w, ]+)", text, re.M):
        for imported in names.split(", "):
            assert hasattr(importlib.import_module(module), imported) or importlib.import_module(f"{module}.{imported}")
