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


def card(randomness="secure", **fields):
    return Card(method="m", place="gradients", neighbours="add-or-remove", randomness=randomness, **fields)


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


@pytest.mark.parametrize("claimed", [None, claim(2), claim(100)])
@pytest.mark.parametrize("randomness", ["secure", "reproducible"])
def test_an_audit_above_the_proof_refutes_the_card_whatever_is_claimed(claimed, randomness):
    contradicted = card(randomness, claimed=claimed, proven=proof(1)).with_audit(audit(1.1))
    assert contradicted.verdict == contradicted.verdict_if_secure == "refuted"
    assert json.loads(contradicted.to_json())["verdict"] == "refuted"
    assert contradicted.text.startswith(
        "Refuted: epsilon 1 at delta 1e-05 is proven, and an audit found at least epsilon 1.1"
    )
    assert "the proof, the program or the audit is wrong" in contradicted.text
    # Neither a later audit that finds less nor one that cannot speak of the proof takes the verdict back.
    assert contradicted.with_audit(audit(0.2)).verdict == "refuted"
    assert contradicted.with_audit(audit(5, 1e-9)).verdict == "refuted"


def test_a_refuted_claim_with_a_proof_that_stands_says_so_of_the_claim_alone():
    refuted = card(claimed=claim(1), proven=proof(36)).with_audit(audit(1.3))
    assert refuted.text == (
        "Refuted: epsilon 1 at delta 1e-05 is claimed, and an audit found at least epsilon 1.3 at delta 1e-05."
    )


def test_an_audit_at_a_smaller_delta_than_the_claims_says_nothing_of_it():
    assert card(claimed=claim(1), proven=proof(1)).with_audit(audit(1.1, 1e-9)).verdict == "proven"


def test_the_larger_of_two_audits_stays():
    once = card(proven=proof(3)).with_audit(audit(2))
    assert once.with_audit(audit(1)).audited == audit(2)
    assert once.with_audit(audit(2.5)).audited == audit(2.5)
    assert once.audited == audit(2)


def test_an_audit_that_refutes_the_claim_stays_whatever_is_found_at_another_delta():
    refuted = card(claimed=claim(1), proven=proof(1)).with_audit(audit(1.1))
    assert refuted.with_audit(audit(1.5, 1e-9)).audited == audit(1.1)
    assert refuted.with_audit(audit(1.5)).audited == audit(1.5)
    silent = card(claimed=claim(1), proven=proof(1)).with_audit(audit(1.5, 1e-9))
    assert silent.with_audit(audit(1.1)).audited == audit(1.1)


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({"proven": proof(1)}, "rehearsal"),
        ({"claimed": claim(1), "proven": proof(2)}, "rehearsal"),
        ({"claimed": claim(1), "why": "the proof has a gap"}, "nothing proven"),
        ({"claimed": claim(1), "proven": proof(2), "audited": audit(1.1)}, "refuted"),
    ],
)
def test_a_seeded_run_is_a_rehearsal_that_may_not_leave_and_keeps_the_epsilon_it_would_have(fields, verdict):
    seeded, secure = card("reproducible", **fields), card(**fields)
    assert seeded.verdict == verdict
    assert seeded.verdict_if_secure == secure.verdict
    assert seeded.proven == secure.proven
    assert json.loads(seeded.to_json())["verdict"] == verdict


def test_a_card_says_its_verdict_in_a_sentence():
    assert card(proven=proof(2)).text == "Proven: epsilon 2 at delta 1e-05 for one record (add-or-remove)."
    assert "where epsilon 1 at delta 1e-05 was claimed" in card(claimed=claim(1), proven=proof(2)).text
    assert card(why="the proof has a gap.").text == "Nothing proven: the proof has a gap."
    assert "at least epsilon 3 at delta" in card(claimed=claim(1), proven=proof(2), audited=audit(3)).text
    rehearsal = card("reproducible", proven=proof(2)).text
    assert rehearsal.startswith("Rehearsal:")
    assert "nothing of it may leave" in rehearsal
    assert "with secure randomness the same run has epsilon 2" in rehearsal


@pytest.mark.parametrize(("epsilon", "delta", "other"), [(1.0, 1e-5, 1e-3), (3.0, 0.0, 0.2), (0.1, 0.01, 0.02)])
def test_a_promise_at_a_larger_delta_is_that_of_the_mechanism_that_only_just_keeps_it(epsilon, delta, other):
    # Four outcomes: all is told with probability delta, else randomised response; its delta at the new epsilon.
    found = claim(epsilon, delta).epsilon_at(other)
    likely, rarely = ((1 - delta) / (1 + math.exp(sign * epsilon)) for sign in (-1, 1))
    world, neighbour = (delta, likely, rarely, 0.0), (0.0, rarely, likely, delta)
    exact = sum(max(0.0, p - math.exp(found) * q) for p, q in zip(world, neighbour, strict=True))
    assert 0 < found < epsilon
    assert exact == pytest.approx(other)


def test_a_promise_says_nothing_at_a_smaller_delta_and_no_less_than_0_at_a_larger_one():
    assert claim(1, 1e-5).epsilon_at(1e-6) == math.inf
    assert claim(1, 1e-5).epsilon_at(1e-5) == 1
    assert claim(1, 1e-5).epsilon_at(0.9) == 0
    assert claim(math.inf).epsilon_at(0.5) == math.inf
    assert claim(5000.0, 0.0).epsilon_at(0.5) == pytest.approx(5000 + math.log(0.5))


def test_epsilons_at_different_deltas_are_compared_at_one():
    # At the audit's delta the claim implies less than 0.3, so that a bound below the claimed epsilon refutes it.
    assert claim(1, 0.0).epsilon_at(0.4) < 0.3
    assert claim(1, 0.0).refuted_by(audit(0.3, 0.4))
    assert not claim(1, 1e-3).refuted_by(audit(40, 1e-5))
    # A larger epsilon at a smaller delta may still be as strong as claimed.
    assert card(claimed=claim(1, 0.3), proven=proof(1.3, 0.0)).verdict == "proven"


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
