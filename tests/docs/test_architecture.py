"""Imports go one way, as docs/architecture.md says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "noiseproof"
PLACES = ("inputs", "losses", "gradients", "parameters", "predictions")
LAYERS = (
    ("errors", "finite", "kernels", "progress"),
    ("guarantees", "data", "networks"),
    ("releases", "bundles", "methods"),
    ("scale",),
    ("baseline", *PLACES),
    ("recipes", "training"),
    ("ledger", "attacks", "audits"),
    ("compare", "report", "studies", "serve", "benchmarks"),
    ("cli",),
)
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
SHARED = ("noiseproof.gradients.engine", "noiseproof.gradients.private_gradients", "noiseproof.gradients.games")
"""What places may use of another."""
ALLOWED = {("scale", "noiseproof.gradients.ranks")}


def imported(tree):
    """Modules of the package that are imported when a module is; not those for type checkers, or inside functions."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "noiseproof":
            yield from (f"noiseproof.{name.name}" for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def wrong(part, module):
    other = module.split(".")[1]
    if other not in RANK or other == part or (part, module) in ALLOWED:
        return False
    if part in PLACES and other in PLACES:
        return not module.startswith(SHARED)
    return RANK[other] > RANK[part]


@pytest.mark.parametrize("part", RANK)
def test_nothing_is_imported_from_above_or_from_another_place(part):
    files = [SOURCE / f"{part}.py"] if (SOURCE / f"{part}.py").is_file() else sorted((SOURCE / part).rglob("*.py"))
    assert files
    for file in files:
        modules = [name for name in imported(ast.parse(file.read_text("utf-8"))) if name.startswith("noiseproof.")]
        assert [module for module in modules if wrong(part, module)] == [], file.relative_to(SOURCE)


def test_every_part_has_its_place_in_the_order():
    there = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert there - set(RANK) == {"__init__", "__main__"}


def test_an_import_from_above_would_be_noticed():
    assert wrong("guarantees", "noiseproof.gradients.method")
    assert wrong("inputs", "noiseproof.predictions.votes")
    assert not wrong("losses", "noiseproof.gradients.engine.tape")
