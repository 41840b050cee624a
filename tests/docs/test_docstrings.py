"""What is public says what it takes and returns, and has an example; every example in the package runs."""

from __future__ import annotations

import ast
import doctest
import functools
import importlib
import inspect
import pkgutil
import re
import textwrap

import pytest

import noiseproof

PACKAGES = (
    *("noiseproof", "noiseproof.privacy", "noiseproof.engine", "noiseproof.data", "noiseproof.networks"),
    *("noiseproof.methods", "noiseproof.methods.inputs", "noiseproof.methods.losses", "noiseproof.methods.gradients"),
    *("noiseproof.methods.parameters", "noiseproof.methods.predictions", "noiseproof.releases", "noiseproof.run"),
    *("noiseproof.attacks", "noiseproof.audits", "noiseproof.report", "noiseproof.serve", "noiseproof.integrations"),
    *("noiseproof.sklearn", "noiseproof.parallel"),
)


def public():
    """Functions and classes that a package offers, once each, by the package that names them first; no exceptions."""
    found = {}
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")]):
            thing = getattr(module, name)
            ours = getattr(thing, "__module__", "").startswith("noiseproof")
            if ours and (inspect.isfunction(thing) or inspect.isclass(thing)) and not is_error(thing):
                found.setdefault(thing, f"{package}.{name}")
    return [pytest.param(thing, id=name) for thing, name in found.items()]


def is_error(thing):
    return inspect.isclass(thing) and issubclass(thing, BaseException)


def documentation(thing):
    """A name's docstring, a class's with that of its `__init__`."""
    own = inspect.getdoc(thing) or ""
    return own + (inspect.getdoc(thing.__init__) or "" if inspect.isclass(thing) else "")


@functools.cache
def fields(kind):
    """Fields of a class that have a line of their own below them."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError, ValueError):
        return frozenset()
    found = set()
    for field, line in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant):
            found.add(ast.unparse(field.target))
    return frozenset(found)


def undocumented(thing):
    """Arguments that neither a section `Args:` nor a field's own line explains."""
    try:
        names = [
            name for name in inspect.signature(thing).parameters if name not in ("self", "args", "kwargs", "extra_data")
        ]
    except ValueError:
        return []
    told = documentation(thing)
    if inspect.isclass(thing):
        told += "".join(inspect.getdoc(kind) or "" for kind in thing.__mro__)
        own = set().union(*(fields(kind) for kind in thing.__mro__ if kind.__module__.startswith("noiseproof")))
        names = [name for name in names if name not in own]
    return [
        name for name in names if not re.search(rf"^\s+\*{{0,2}}{name}(, \w+)*:|, {name}(, \w+)*: ", told, re.MULTILINE)
    ]


@pytest.mark.parametrize("thing", public())
def test_it_says_what_it_takes(thing):
    assert not undocumented(thing)


@pytest.mark.parametrize("thing", public())
def test_it_says_what_it_returns(thing):
    if inspect.isfunction(thing) and inspect.signature(thing).return_annotation not in ("None", "NoReturn"):
        assert re.search(r"^(Returns|Yields):$", documentation(thing), re.MULTILINE)


@pytest.mark.parametrize("thing", public())
def test_it_has_an_example(thing):
    assert ">>> " in documentation(thing)


@pytest.mark.parametrize("name", [each.name for each in pkgutil.walk_packages(noiseproof.__path__, "noiseproof.")])
def test_examples_run(name, tmp_path, monkeypatch):
    if name.endswith("__main__") or ".kernels." in name:
        pytest.skip("runs the command line, or is compiled")
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).failed == 0
