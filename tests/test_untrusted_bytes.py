"""Whatever bytes a stranger sends or leaves in a file, each parser reads them or refuses them in one sentence."""

from __future__ import annotations

import random

import pytest

from noiseproof.errors import NoiseproofError
from tests import untrusted

PARSERS = [
    *("settings", "card", "weights", "changed settings", "rows of numbers", "rows by name", "npy", "Arrow", "envelope"),
    *("signed payload", "signed head", "ledger", "rows of a ledger", "binding", "journal", "checkpoint", "schema"),
    *("resealed checkpoint", "CSV", "npz", "Parquet", "gzipped CSV", "idx", "facts of stored arrays", "state dict"),
    *("released json", "released csv", "released txt", "released npy", "released npz", "released safetensors"),
    *("network", "collection", "audit's document", "bundle's settings for a page", "bundle's card for a page"),
    *("comparison", "public key", "private key", "service's answer", "model's answer"),
]
REFUSES_NOTHING = {"rows of a ledger"}
"""What is wrong with a ledger's rows is found and told, not refused."""


@pytest.fixture(scope="module")
def parsers(tmp_path_factory):
    return untrusted.parsers(tmp_path_factory.mktemp("untrusted"))


def test_none_is_left_out(parsers):
    assert sorted(parsers) == sorted(PARSERS)


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.filterwarnings("ignore")
def test_bytes_are_read_or_refused_in_one_sentence(parsers, name):
    right, parse = parsers[name]
    parse(right)
    sentences = set()
    for tried in range(40):
        content = untrusted.mutated(random.Random(f"{name} {tried}"), right)
        try:
            parse(content)
        except NoiseproofError as error:
            sentences.add(str(error))
        except BaseException as error:
            raise AssertionError(f"try {tried} of {name}: {type(error).__name__}: {str(error)[:200]}") from error
    assert sentences or name in REFUSES_NOTHING
    assert not [sentence for sentence in sentences if "\n" in sentence]
