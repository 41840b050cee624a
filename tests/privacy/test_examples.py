"""The examples in the docstrings run, and give what they say."""

from __future__ import annotations

import doctest

import pytest

from noiseproof import files
from noiseproof.privacy import accountants, calibration, events, filters, selection


@pytest.mark.parametrize(
    "module", [accountants, calibration, events, filters, selection, files], ids=lambda module: module.__name__
)
def test_examples_run(module):
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed
