"""Imports go one way, as docs/architecture.md says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "noiseproof"
PLACES = ("inputs", "losses", "gradients", "parameters", "predictions")
LAYERS = (
    ("errors", "files", "kernels", "notebook", "palette", "plugins", "progress", "settings", "tensors"),
    ("parallel",),
    ("privacy", "data"),
    ("networks",),
    ("engine",),
    ("releases",),
    ("methods",),
    ("attacks", "audits"),
    ("run",),
    ("integrations", "report", "serve", "sklearn"),
    ("cli",),
)
RANK = {part: rank for rank, layer in enumerate(LAYERS) for part in layer}
SHARED: tuple[str, ...] = ()
"""What the methods at one place may use of another place."""


def imported(tree):
    """Modules of the project that are imported when a module is; not those for type checkers, or inside functions."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "noiseproof":
            yield from (f"noiseproof.{name.name}" for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


def wrong(importer, module):
    """Whether `importer` must not import `module`; both are dotted names."""
    top, *rest = module.split(".")
    if top in ("papers", "bench"):
        return True
    if top != "noiseproof" or not rest or rest[0] not in RANK:
        return False
    own = importer.split(".")[1:]
    if own[0] == rest[0] == "methods" and len(own) > 1 and len(rest) > 1 and own[1] in PLACES and rest[1] in PLACES:
        return own[1] != rest[1] and not module.startswith(SHARED)
    return RANK[rest[0]] > RANK[own[0]]


@pytest.mark.parametrize("part", RANK)
def test_nothing_is_imported_from_above_or_from_another_place(part):
    files = [SOURCE / f"{part}.py"] if (SOURCE / f"{part}.py").is_file() else sorted((SOURCE / part).rglob("*.py"))
    assert files
    for file in files:
        importer = ".".join(file.relative_to(SOURCE.parent).with_suffix("").parts)
        tree = ast.parse(file.read_text("utf-8"))
        assert [module for module in imported(tree) if wrong(importer, module)] == [], importer


def test_every_part_has_its_place_in_the_order():
    there = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert there - set(RANK) == {"__init__", "__main__"}


def test_an_import_from_above_would_be_noticed():
    assert wrong("noiseproof.privacy.card", "noiseproof.methods.baseline")
    assert wrong("noiseproof.methods.inputs.adlm", "noiseproof.methods.predictions.votes")
    assert wrong("noiseproof.cli.study", "papers")
    assert not wrong("noiseproof.methods.losses.dp_gan", "noiseproof.engine.tape")
