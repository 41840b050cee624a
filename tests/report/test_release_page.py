"""The officer's page: five questions are answered from the page alone, and what is wrong with a file stands on top."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

import noiseproof as npf
from noiseproof import methods
from noiseproof.errors import BundleError, DataError
from noiseproof.privacy.card import Audit
from noiseproof.releases import bundles, signing, signing_keys
from noiseproof.report import evidence, render_audit, render_release
from noiseproof.report.assumptions import ROLES, TRAINER, duty
from tests.report.test_page import Tree


@pytest.fixture(scope="session")
def keys(tmp_path_factory):
    private, public = signing_keys.make_keys(tmp_path_factory.mktemp("keys") / "vendor.pem")
    return signing_keys.read_private_key(private), signing_keys.read_public_key(public)


@pytest.fixture(scope="session")
def trained(tmp_path_factory, keys):
    data = npf.load("digits")
    made = npf.train("dp-sgd", data.train.take(torch.arange(200)), epsilon=3, epochs=3, network="linear")
    made.card = made.card.with_audit(Audit(epsilon=1.5, delta=1e-5, confidence=0.95, trials=500, game="a canary"))
    path = made.save(tmp_path_factory.mktemp("release") / "digits-model")
    signing.sign_bundle(path, keys[0])
    return path


@pytest.fixture
def bundle(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "digits-model")


def text_of(page):
    return " ".join(" ".join(Tree(page).text).split())


def part(page, name):
    """The text of the element with an id, up to the next one with an id."""
    return " ".join(page.partition(f'id="{name}"')[2].partition(' id="')[0].split())


def test_the_five_questions_are_answered_where_the_script_says(bundle, keys):
    page = render_release(evidence.of_bundle(bundle, keys[1]))
    assert "Yes." in part(page, "safe")
    assert "Epsilon 3 at delta 0.00001 is proven for one record" in part(page, "safe")
    assert "For each single record." in part(page, "whom")
    assert "6 assumptions" in part(page, "break")
    assert "dp-sgd" in part(page, "chosen")
    assert "Nobody has changed it since the holder of key" in part(page, "changed")


def test_it_is_one_well_formed_document_that_fetches_nothing(bundle, keys):
    page = render_release(evidence.of_bundle(bundle, keys[1]))
    tree = Tree(page)
    assert len(tree.ids) == len(set(tree.ids))
    assert all(address.startswith("#") and address[1:] in tree.ids for address in tree.addresses)
    assert "default-src 'none'" in page


def test_everything_that_the_officer_asks_for_stands_on_it(bundle, keys):
    found = evidence.of_bundle(bundle, keys[1], ledger=["The data set clinic has spent 4 of 5."])
    text = text_of(render_release(found))
    proven = found.card.proven
    assert all(one in text for one in proven.assumptions)
    assert all(value in text for value in ("953 of 1,000", "20.1 to 1", "201", "reasonable"))
    assert all(heading in text for heading in ("What it must not be used for", "The ledger’s account", "How to verify"))
    assert "The data set clinic has spent 4 of 5." in text
    assert all(digest in text for digest in found.signature.digests.values())
    assert signing.SHOWS_NOT in text
    assert f"the card states {proven.epsilon:.4g}" in text


def test_an_unsigned_bundle_is_a_reservation_and_an_unchecked_one_too(bundle, keys):
    assert evidence.of_bundle(bundle, None).signature.status == "not checked"
    assert "not checked against" in evidence.of_bundle(bundle, None).decision.why
    (bundle / signing.SIGNATURE).unlink()
    found = evidence.of_bundle(bundle, keys[1])
    assert found.decision.level == "warn"
    assert "nobody has signed" in found.decision.why


@pytest.mark.parametrize("with_key", [True, False])
def test_a_changed_card_is_refused_on_top_of_its_page(bundle, keys, with_key):
    card = json.loads((bundle / bundles.CARD).read_text())
    card["proven"]["epsilon"] = 0.1
    (bundle / bundles.CARD).write_text(json.dumps(card))
    found = evidence.of_bundle(bundle, keys[1] if with_key else None)
    assert found.decision.answer == "No. This file was changed."
    page = render_release(found)
    assert page.index("This file was changed") < page.index("Claimed, proven, audited")


def test_a_forged_card_with_fitting_digests_is_told_by_the_signature(bundle, keys):
    card = bundles.read_card(bundle)
    proven = card.proven.model_copy(update={"epsilon": 0.1})
    bundles.write_card(bundle, card.model_copy(update={"proven": proven}))
    found = evidence.of_bundle(bundle, keys[1])
    assert found.decision.answer == "No. This file was changed."
    assert "card.json is not what was signed" in text_of(render_release(found))


VERDICTS = {
    "refuted": {"audited": Audit(epsilon=7.0, delta=1e-5, confidence=0.95, trials=500, game="a canary")},
    "nothing proven": {"proven": None, "why": "The bounds were read off the data.", "audited": None},
    "rehearsal": {"randomness": "reproducible"},
}


@pytest.mark.parametrize("verdict", VERDICTS)
def test_what_must_not_leave_is_said_first(bundle, keys, verdict):
    bundles.write_card(bundle, bundles.read_card(bundle).model_copy(update=VERDICTS[verdict]))
    (bundle / signing.SIGNATURE).unlink()
    found = evidence.of_bundle(bundle, keys[1])
    assert found.card.verdict == verdict
    assert found.decision.level == "bad"
    assert found.decision.answer.startswith("No.")
    text = text_of(render_release(found))
    assert "nothing of it may leave" in text
    assert ("20.1 to 1" in text) == (verdict == "rehearsal")  # in words only what would hold


@pytest.mark.parametrize(("epsilon", "worth"), [(12.0, "weak"), (40.0, "next to nothing")])
def test_a_weak_promise_is_no_yes(bundle, keys, epsilon, worth):
    card = bundles.read_card(bundle)
    update = {
        "claimed": None,
        "why": "The noise is small.",
        "proven": card.proven.model_copy(update={"epsilon": epsilon}),
    }
    bundles.write_card(bundle, card.model_copy(update=update))
    found = evidence.of_bundle(bundle, None)
    assert found.decision.answer == f"Better not. The promise is {worth}."


def test_the_picture_of_a_release_that_was_never_attacked_says_so(bundle):
    bundles.write_card(bundle, bundles.read_card(bundle).model_copy(update={"audited": None}))
    text = text_of(render_release(evidence.of_bundle(bundle)))
    assert "a proof shows that it is not higher" in text
    assert "an attack showed" not in text


def test_a_proof_that_is_weaker_than_the_claim_says_why(bundle):
    card = bundles.read_card(bundle)
    weak = {"why": "Each record is seen by itself.", "proven": card.proven.model_copy(update={"epsilon": 9.0})}
    bundles.write_card(bundle, card.model_copy(update=weak))
    text = text_of(render_release(evidence.of_bundle(bundle)))
    assert "Why the proof is weaker than the claim: Each record is seen by itself." in text


def test_a_page_of_a_changed_bundle_tells_no_folders(bundle):
    (bundle / bundles.CARD).write_text((bundle / bundles.CARD).read_text() + " ")
    page = render_release(evidence.of_bundle(bundle))
    assert "card.json of the bundle digits-model" in page
    assert str(bundle.parent) not in page


def test_a_person_with_several_records_is_told_what_the_promise_for_one_record_is_worth(bundle, keys):
    text = text_of(render_release(evidence.of_bundle(bundle, keys[1])))
    assert "The same guarantee for all records of one person" in text
    assert "more than a billion" in text


def test_a_card_alone_says_that_it_belongs_to_no_file(bundle):
    assert evidence.is_card(bundle / bundles.CARD)
    text = text_of(render_release(evidence.of_card(bundle / bundles.CARD)))
    assert "A card alone does not say which file it belongs to" in text


def test_a_folder_that_holds_no_bundle_is_one_sentence(tmp_path):
    (tmp_path / bundles.CARD).write_text("{}")
    with pytest.raises(BundleError, match="cannot be read"):
        evidence.of_bundle(tmp_path)


def test_names_from_a_strangers_bundle_are_escaped(bundle):
    card = bundles.read_card(bundle)
    bundles.write_card(bundle, card.model_copy(update={"notes": ("<script>alert(1)</script> and `code`",)}))
    page = render_release(evidence.of_bundle(bundle))
    assert "<script>alert" not in page
    assert "<code>code</code>" in page


@pytest.mark.parametrize(
    ("audited", "verdict", "answer"),
    [(0.0, "proven", "hardly tested"), (2.5, "proven", "Not refuted."), (5.0, "refuted", "No. It is refuted.")],
)
def test_an_audits_page_says_what_was_shown_and_that_it_is_no_proof(tmp_path, audited, verdict, answer):
    file = tmp_path / "audit.json"
    bound = {"epsilon": audited, "delta": 1e-5, "confidence": 0.95, "trials": 500, "game": "a canary"}
    claimed = {"epsilon": 3.0, "delta": 1e-5, "source": "a <theorem>"}
    document = {"method": "theirs", "verdict": verdict, "claimed": claimed, "proven": None, "audited": bound}
    file.write_text(json.dumps({**document, "power": {"sentence": "It could find 4.2."}}))
    found = evidence.of_audit(file)
    text = text_of(render_audit(found))
    assert "It could find 4.2." in text
    assert answer in text
    assert "a <theorem>" in text
    assert "not signed" in text


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"audited": null}', '{"audited": {"epsilon": "x"}}'])
def test_what_is_no_audit_is_refused(tmp_path, content):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(DataError, match="not the JSON of an audit"):
        evidence.of_audit(tmp_path / "x.json")


def stated_assumptions():
    """Every assumption that a module of the package states for a proof."""
    from noiseproof.integrations import release
    from noiseproof.methods.gradients import dp_sgd
    from noiseproof.methods.inputs import adlm, quadratic
    from noiseproof.methods.losses import dp_gan
    from noiseproof.methods.parameters import shards
    from noiseproof.privacy import Reproducible, Secure
    from noiseproof.run import choice

    found = [*dp_sgd.ASSUMPTIONS, dp_sgd._OF_STATISTICS, *quadratic.ASSUMPTIONS, *adlm._ASSUMPTIONS]
    found += [*dp_gan.ASSUMPTIONS, *shards.ASSUMPTIONS, *release._OWN_LOOP, choice._SECRET]
    found += [choice._APART.format(unit=unit) for unit in ("record", "person")]
    found += [*Secure.assumptions, *Reproducible.assumptions, *methods.get("dp-mf")().assumptions()]
    for name in ("logits", "teachers", "votes"):
        found += methods.get(name).assumptions
    return dict.fromkeys(found)


@pytest.mark.parametrize("assumption", stated_assumptions())
def test_every_assumption_has_somebody_who_sees_to_it(assumption):
    found = duty(assumption)
    assert found.who in ROLES
    assert found.how != "Ask for the evidence."


def test_an_unknown_assumption_falls_to_whoever_trained_it():
    assert duty("the moon is full").who == TRAINER
