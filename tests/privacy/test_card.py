from __future__ import annotations

import json
import math

import pytest
from pydantic import ValidationError

from noiseproof.errors import BundleError
from noiseproof.privacy import Audit, Card, Claim, Proof


def claim(epsilon, delta=1e-5):
    return Claim(epsilon=epsilon, delta=delta, source="a theorem")


def proof(epsilon, delta=1e-5):
    return Proof(epsilon=epsilon, delta=delta, accountant="pld")


def audit(epsilon, delta=1e-5):
    return Audit(epsilon=epsilon, delta=delta, confidence=0.95, trials=100, game="a game")


def card(**fields):
    return Card(method="m", place="gradients", neighbours="add-or-remove", randomness="secure", **fields)


def test_a_card_that_proves_nothing_says_why():
    with pytest.raises(ValidationError, match="must say why"):
        card(claimed=claim(1))
    assert card(claimed=claim(1), why="the proof has a gap").verdict == "nothing proven"


def test_an_infinite_epsilon_is_no_proof():
    with pytest.raises(ValidationError, match="no proof"):
        proof(math.inf)


@pytest.mark.parametrize(
    ("proven", "verdict"),
    [
        (proof(0.5), "proven"),
        (proof(1), "proven"),
        (proof(1.1), "weaker than claimed"),
        (proof(1, 0.0001), "weaker than claimed"),
        (proof(1 + 1e-09), "proven"),
    ],
)
def test_the_verdict_says_what_the_proof_does_for_the_claim(proven, verdict):
    assert card(claimed=claim(1), proven=proven).verdict == verdict


def test_without_a_claim_a_proof_stands_alone():
    assert card(proven=proof(3)).verdict == "proven"


@pytest.mark.parametrize(
    ("audited", "verdict"),
    [(audit(1.1), "refuted"), (audit(1.0), "proven"), (audit(1.1, 1e-4), "refuted")],
)
def test_an_audit_above_the_claim_refutes_it(audited, verdict):
    assert card(claimed=claim(1), proven=proof(1)).with_audit(audited).verdict == verdict


def test_an_audit_at_a_smaller_delta_than_the_claims_says_nothing_of_it():
    assert card(claimed=claim(1), proven=proof(1)).with_audit(audit(1.1, 1e-9)).verdict == "proven"


def test_the_larger_of_two_audits_stays():
    once = card(proven=proof(3)).with_audit(audit(2))
    assert once.with_audit(audit(1)).audited == audit(2)
    assert once.with_audit(audit(2.5)).audited == audit(2.5)
    assert once.audited == audit(2)


def test_a_card_comes_back_from_json_as_it_was():
    written = card(claimed=claim(math.inf), proven=proof(3), ran={"steps": 10}, notes=("seeded",)).with_audit(audit(2))
    assert Card.from_json(written.to_json()) == written
    assert json.loads(written.to_json())["verdict"] == "proven"


def test_a_verdict_in_json_is_not_trusted():
    fields = json.loads(card(claimed=claim(1), proven=proof(2)).to_json())
    fields["verdict"] = "proven"
    assert Card.from_json(json.dumps(fields)).verdict == "weaker than claimed"


@pytest.mark.parametrize("text", ["", "[]", "[1]", "{}", "null", '{"method": 1}', b"\xff"])
def test_what_is_no_card_is_refused_in_a_sentence(text):
    with pytest.raises(BundleError, match="cannot be read"):
        Card.from_json(text)


def test_unknown_fields_are_refused():
    fields = json.loads(card(proven=proof(2)).to_json()) | {"epsilon": 0}
    with pytest.raises(BundleError):
        Card.from_json(json.dumps(fields))
