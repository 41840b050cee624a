"""A signature names its signer and covers every byte of a bundle; every forgery is named."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import stat

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

import noiseproof as npf
from noiseproof.errors import BundleError, SettingError
from noiseproof.releases import bundles, signing, signing_keys


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    data = npf.load("digits")
    made = npf.train("dp-sgd", data.train.take(torch.arange(200)), epsilon=3, epochs=3, network="linear")
    return made.save(tmp_path_factory.mktemp("signed") / "model")


@pytest.fixture
def keys(tmp_path):
    return tuple(signing_keys.make_keys(tmp_path / "vendor.pem"))


@pytest.fixture
def bundle(release, tmp_path, keys):
    path = tmp_path / "model"
    shutil.copytree(release, path)
    signing.sign_bundle(path, signing_keys.read_private_key(keys[0]))
    return path


def found(bundle, keys):
    return signing.verify_bundle(bundle, signing_keys.read_public_key(keys[1]))


def test_a_signed_bundle_is_valid_for_its_signers_key(bundle, keys):
    verdict = found(bundle, keys)
    assert verdict.valid
    assert verdict.by == signing_keys.key_id(signing_keys.read_public_key(keys[1]))
    assert verdict.files == (bundles.CARD, bundles.SETTINGS, bundles.WEIGHTS)
    assert verdict.predicate["proven"]["epsilon"] == pytest.approx(bundles.read_card(bundle).proven.epsilon)


def test_the_private_key_is_its_holders_alone(keys):
    assert stat.S_IMODE(os.stat(keys[0]).st_mode) == 0o600
    with pytest.raises(SettingError, match="exists"):
        signing_keys.make_keys(keys[0])


def test_the_signature_of_records_that_stay_inside_confirms_no_guess_of_them(tmp_path, keys):
    """Of the votes' bundle, whose weights are the records, whoever guesses all of them could compute the digest."""
    votes = npf.train("votes", npf.load("breast-cancer").train, epsilon=3, queries=5)
    for name in ("one", "again"):
        votes.save(tmp_path / name)
        signing.sign_bundle(tmp_path / name, signing_keys.read_private_key(keys[0]))
    said = [signing.verify_bundle(tmp_path / name, signing_keys.read_public_key(keys[1])) for name in ("one", "again")]
    assert all(one.valid for one in said)
    for file in (bundles.WEIGHTS, bundles.SETTINGS):
        assert said[0].digests[file] != said[1].digests[file]
    guessed = hashlib.sha256(bundles.save_tensors(votes.tensors())).hexdigest()
    assert guessed not in (said[0].digests[bundles.WEIGHTS], said[1].digests[bundles.WEIGHTS])
    assert bundles.load(tmp_path / "one").tensors().keys() == votes.tensors().keys()


def test_an_unsigned_bundle_is_said_to_be_unsigned(release, keys):
    verdict = found(release, keys)
    assert not verdict.signed
    assert not verdict.valid
    assert "not signed" in verdict.findings[0]


def forge_card(bundle, keys):
    card = bundles.read_card(bundle)
    proven = card.proven.model_copy(update={"epsilon": 0.1})
    bundles.write_card(bundle, card.model_copy(update={"proven": proven}))  # with digests that fit


def swap_weights(bundle, keys):
    weights = bytearray((bundle / bundles.WEIGHTS).read_bytes())
    weights[-1] ^= 1
    (bundle / bundles.WEIGHTS).write_bytes(bytes(weights))


def edit_settings(bundle, change):
    """Settings with digests that fit, as a forger without the key would leave them."""
    document = json.loads((bundle / bundles.SETTINGS).read_text())
    change(document)
    document["digests"].pop(bundles.SETTINGS)
    (bundle / bundles.SETTINGS).write_bytes(bundles._sealed(document))


def shorten_the_log(bundle, keys):
    edit_settings(bundle, lambda document: document.update(events=[[event, 1] for event, _ in document["events"]]))


def downgrade_the_format(bundle, keys):
    edit_settings(bundle, lambda document: document.pop("version"))  # as 0.1 wrote it


def put_a_link(bundle, keys):
    card = bundle.parent / "card.json"
    shutil.move(bundle / bundles.CARD, card)
    (bundle / bundles.CARD).symlink_to(card)


def add_a_file(bundle, keys):
    (bundle / "README").write_text("trust me")


def edit_the_statement(bundle, keys):
    envelope = json.loads((bundle / signing.SIGNATURE).read_text())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    statement["predicate"]["proven"]["epsilon"] = 0.1
    envelope["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    (bundle / signing.SIGNATURE).write_text(json.dumps(envelope))


def sign_with_another_key(bundle, keys):
    other, _ = signing_keys.make_keys(bundle.parent / "other.pem")
    signing.sign_bundle(bundle, signing_keys.read_private_key(other))


def claim_the_key(bundle, keys):
    sign_with_another_key(bundle, keys)
    envelope = json.loads((bundle / signing.SIGNATURE).read_text())
    envelope["signatures"][0]["keyid"] = signing_keys.key_id(signing_keys.read_public_key(keys[1]))
    (bundle / signing.SIGNATURE).write_text(json.dumps(envelope))


def sign_something_else(bundle, keys):
    files = {name: (bundle / name).read_bytes() for name in (bundles.CARD, bundles.SETTINGS, bundles.WEIGHTS)}
    text = signing.sign(files, "urn:noiseproof:release:v0", {}, signing_keys.read_private_key(keys[0]))
    (bundle / signing.SIGNATURE).write_text(text)


def leave_a_file_out(bundle, keys):
    files = {name: (bundle / name).read_bytes() for name in (bundles.CARD, bundles.SETTINGS)}
    text = signing.sign(files, signing.PREDICATE, {}, signing_keys.read_private_key(keys[0]))
    (bundle / signing.SIGNATURE).write_text(text)


def reorder_the_log(bundle, keys):
    edit_settings(bundle, lambda document: document["events"].insert(0, [{"kind": "NoOpDpEvent"}, 1]))


def write_a_name_twice(bundle, keys):
    text = (bundle / bundles.CARD).read_text()
    (bundle / bundles.CARD).write_text(text.replace('"method"', '"unit": "person", "method"', 1))
    edit_settings(bundle, lambda document: document["digests"].update(fitting(bundle)))


def fitting(bundle):
    return {bundles.CARD: bundles._digest((bundle / bundles.CARD).read_bytes())}


def exchange_the_type(bundle, keys):
    edit_envelope(bundle, lambda envelope: envelope.update(payloadType="application/json"))


def hide_in_the_type(bundle, keys):
    edit_envelope(bundle, lambda envelope: envelope.update(payloadType="\ud800"))


def write_the_payload_twice(bundle, keys):
    text = (bundle / signing.SIGNATURE).read_text()
    (bundle / signing.SIGNATURE).write_text(text.replace('"payload":', '"payload": "e30=", "payload":', 1))


def nest_without_end(bundle, keys):
    (bundle / signing.SIGNATURE).write_text("[" * 100_000)


def edit_envelope(bundle, change):
    envelope = json.loads((bundle / signing.SIGNATURE).read_text())
    change(envelope)
    (bundle / signing.SIGNATURE).write_text(json.dumps(envelope))


def add_a_file_that_looks_alike(bundle, keys):
    (bundle / "\u0441ard.json").write_text("{}")  # a Cyrillic letter


def add_a_folder(bundle, keys):
    (bundle / "more").mkdir()


def say_something_else_of_the_card(bundle, keys):
    files = {name: (bundle / name).read_bytes() for name in (bundles.CARD, bundles.SETTINGS, bundles.WEIGHTS)}
    says = json.loads(base64.b64decode(json.loads((bundle / signing.SIGNATURE).read_text())["payload"]))["predicate"]
    key = signing_keys.read_private_key(keys[0])
    text = signing.sign(files, signing.PREDICATE, {**says, "unit": "person"}, key)
    (bundle / signing.SIGNATURE).write_text(text)


def tear_the_envelope(bundle, keys):
    (bundle / signing.SIGNATURE).write_text((bundle / signing.SIGNATURE).read_text()[:100])


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (forge_card, "card.json is not what was signed"),
        (swap_weights, "weights.safetensors is not what was signed"),
        (shorten_the_log, "settings.json is not what was signed"),
        (downgrade_the_format, "settings.json is not what was signed"),
        (put_a_link, "card.json is a link"),
        (add_a_file, "README is not covered"),
        (edit_the_statement, "does not hold"),
        (sign_with_another_key, "another key"),
        (claim_the_key, "does not hold"),
        (sign_something_else, "something else"),
        (leave_a_file_out, "weights.safetensors is not covered"),
        (tear_the_envelope, "no DSSE envelope"),
        (reorder_the_log, "settings.json is not what was signed"),
        (write_a_name_twice, "unreadable settings.json or card.json"),
        (exchange_the_type, "does not hold"),
        (hide_in_the_type, "no DSSE envelope"),
        (write_the_payload_twice, "no DSSE envelope"),
        (nest_without_end, "no DSSE envelope"),
        (add_a_file_that_looks_alike, "is not covered"),
        (add_a_folder, "more is no file"),
        (say_something_else_of_the_card, "says of the card"),
    ],
)
def test_every_forgery_is_named(forge, words, bundle, keys):
    forge(bundle, keys)
    verdict = found(bundle, keys)
    assert not verdict.valid
    assert verdict.status == "changed"
    assert any(words in finding for finding in verdict.findings), verdict.findings


def test_a_signature_that_was_taken_off_is_missed(bundle, keys):
    (bundle / signing.SIGNATURE).unlink()
    assert found(bundle, keys).status == "not signed"


def test_what_a_service_notes_in_a_bundle_does_not_break_its_signature(bundle, keys):
    (bundle / "ledger.json").write_text('{"ledger": "0123"}')
    verdict = found(bundle, keys)
    assert verdict.valid
    assert "ledger.json is not signed" in verdict.remarks[0]


def test_an_audits_document_is_signed_like_a_bundle_and_no_byte_of_it_can_change(tmp_path, keys):
    file = tmp_path / "audit.json"
    file.write_text('{"verdict": "proven"}')
    signing.sign_file(file, signing_keys.read_private_key(keys[0]))
    public = signing_keys.read_public_key(keys[1])
    assert signing.verify_file(file, public).status == "signed"
    assert signing.verify_file(file, None).status == "not checked"
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert signing.verify_file(other, public).status == "not signed"
    shutil.copy(signing.signature_path(file), signing.signature_path(other))
    assert signing.verify_file(other, public).status == "changed"
    file.write_text('{"verdict": "refuted"}')
    assert signing.verify_file(file, public).findings == ("audit.json is not what was signed.",)


def test_a_bundles_signature_is_none_of_a_file(bundle, tmp_path, keys):
    shutil.copy(bundle / signing.SIGNATURE, signing.signature_path(bundle / bundles.CARD))
    verdict = signing.verify_file(bundle / bundles.CARD, signing_keys.read_public_key(keys[1]))
    assert any("something else" in finding for finding in verdict.findings)


def test_a_private_key_that_others_can_read_is_refused(keys):
    os.chmod(keys[0], 0o640)
    with pytest.raises(SettingError, match="chmod 600"):
        signing_keys.read_private_key(keys[0])


def test_a_signature_does_not_move_to_another_bundle(bundle, release, tmp_path, keys):
    other = tmp_path / "other"
    shutil.copytree(release, other)
    card = bundles.read_card(other)
    bundles.write_card(other, card.model_copy(update={"notes": (*card.notes, "another")}))
    shutil.copy(bundle / signing.SIGNATURE, other)
    assert "card.json is not what was signed." in found(other, keys).findings


def test_a_rehearsal_is_not_signed(tmp_path, keys):
    data = npf.load("digits")
    made = npf.train("dp-sgd", data.train.take(torch.arange(100)), epsilon=3, epochs=1, network="linear", seed=0)
    path = made.save(tmp_path / "rehearsal")
    with pytest.raises(BundleError, match="rehearsal"):
        signing.sign_bundle(path, signing_keys.read_private_key(keys[0]))


def test_the_event_log_alone_gives_the_proven_epsilon(bundle):
    again = signing.recompute(bundle)
    assert again.holds
    assert again.epsilon == pytest.approx(again.stated, rel=1e-6)


def test_a_card_that_promises_more_than_its_events_is_found_out(bundle, keys):
    forge_card(bundle, keys)
    signing.sign_bundle(bundle, signing_keys.read_private_key(keys[0]))  # a signer who lies
    assert found(bundle, keys).valid
    assert not signing.recompute(bundle).holds


LYING_LOGS = {
    "cut short": lambda event: [[event, 1]],
    "with smaller samples": lambda event: [
        [{"kind": "PoissonSampledDpEvent", "sampling_probability": 1e-4, "event": event}, 3]
    ],
    "of nothing": lambda event: [[{"kind": "NoOpDpEvent"}, 1]],
    "of negative noise": lambda event: [[{"kind": "GaussianDpEvent", "noise_multiplier": -5.0}, 3]],
    "of noise that is no number": lambda event: [[{"kind": "GaussianDpEvent", "noise_multiplier": "5"}, 3]],
    "of a part that never was": lambda event: [[{"kind": "SelfComposedDpEvent", "event": event, "count": -1}, 9]],
    "left out": lambda event: [],
}


@pytest.mark.parametrize("log", LYING_LOGS)
def test_a_signer_whose_event_log_contradicts_the_card_is_found_out(bundle, keys, log):
    edit_settings(bundle, lambda document: document.update(events=LYING_LOGS[log](document["events"][0][0])))
    signing.sign_bundle(bundle, signing_keys.read_private_key(keys[0]))
    assert found(bundle, keys).valid
    assert not signing.recompute(bundle).holds


@pytest.mark.parametrize("count", [0, -2, 0.9, True, "1"])
def test_an_event_that_did_not_happen_a_whole_number_of_times_is_no_event(bundle, count):
    edit_settings(bundle, lambda document: document["events"].append([document["events"][0][0], count]))
    with pytest.raises(BundleError, match="event that this version does not know"):
        signing.recompute(bundle)
    with pytest.raises(BundleError):
        bundles.load(bundle)


def test_a_second_signature_beside_the_signers_changes_nothing(bundle, keys):
    own = (bundle / signing.SIGNATURE).read_text()
    sign_with_another_key(bundle, keys)
    other = json.loads((bundle / signing.SIGNATURE).read_text())["signatures"]
    (bundle / signing.SIGNATURE).write_text(own)
    edit_envelope(bundle, lambda envelope: envelope.update(signatures=other + envelope["signatures"]))
    verdict = found(bundle, keys)
    assert verdict.valid
    assert verdict.by == signing_keys.key_id(signing_keys.read_public_key(keys[1]))
    edit_envelope(bundle, lambda envelope: envelope.update(signatures=[]))
    assert found(bundle, keys).status == "not signed"


def test_a_signed_card_is_none_of_another_release(bundle, tmp_path, keys):
    file = tmp_path / bundles.CARD
    card = json.loads((bundle / bundles.CARD).read_text())
    file.write_text(json.dumps({**card, "unit": "person"}))
    signing.sign_file(file, signing_keys.read_private_key(keys[0]))
    for name in (bundles.CARD, signing.signature_path(bundles.CARD).name):
        shutil.copy(tmp_path / name, bundle)
    assert not found(bundle, keys).valid
    shutil.copy(tmp_path / signing.signature_path(bundles.CARD).name, bundle / signing.SIGNATURE)
    assert any("something else" in finding for finding in found(bundle, keys).findings)


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_no_bytes_are_taken_for_an_envelope(content):
    key = Ed25519PrivateKey.from_private_bytes(bytes(32)).public_key()
    assert not signing.verify(content, {}, signing.PREDICATE, key).valid


@given(st.integers(0, 10**6), st.integers(1, 255))
@settings(max_examples=200, deadline=None)
def test_no_byte_of_an_envelope_can_be_changed(place, mask):
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    envelope = bytearray(signing.sign({"a": b"x"}, signing.PREDICATE, {"n": 1}, key).encode())
    place %= len(envelope)
    envelope[place] ^= mask
    before = signing.verify(
        signing.sign({"a": b"x"}, signing.PREDICATE, {"n": 1}, key), {"a": b"x"}, signing.PREDICATE, key.public_key()
    )
    after = signing.verify(bytes(envelope), {"a": b"x"}, signing.PREDICATE, key.public_key())
    # What is not signed (white space, the key's name) may change, and changes nothing that is believed.
    assert not after.valid or after == before


def test_securesystemslib_reads_and_verifies_the_envelope(bundle, keys):
    dsse = pytest.importorskip("securesystemslib.dsse")
    from securesystemslib.signer import SSlibKey

    envelope = dsse.Envelope.from_dict(json.loads((bundle / signing.SIGNATURE).read_text()))
    public = signing_keys.read_public_key(keys[1])
    key = SSlibKey.from_crypto(public, keyid=signing_keys.key_id(public))
    assert envelope.verify([key], 1)
    assert json.loads(envelope.payload)["_type"] == "https://in-toto.io/Statement/v1"


def test_in_totos_own_package_takes_the_statement(bundle):
    statement_pb2 = pytest.importorskip("in_toto_attestation.v1.statement_pb2", reason="in-toto-attestation is missing")
    from google.protobuf import json_format
    from in_toto_attestation.v1.statement import Statement

    payload = base64.b64decode(json.loads((bundle / signing.SIGNATURE).read_text())["payload"])
    parsed = Statement.copy_from_pb(json_format.Parse(payload, statement_pb2.Statement()))
    parsed.validate()
    assert parsed.pb.predicate_type == signing.PREDICATE
    assert {one.name for one in parsed.pb.subject} == {bundles.CARD, bundles.SETTINGS, bundles.WEIGHTS}


names = st.dictionaries(st.text(min_size=1, max_size=8), st.binary(max_size=20), min_size=1, max_size=4)


@given(names, names, st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_an_envelope_holds_for_its_own_files_and_its_own_key_and_for_no_others(files, others, secret, another):
    key, stranger = (Ed25519PrivateKey.from_private_bytes(one) for one in (secret, another))
    envelope = signing.sign(files, signing.PREDICATE, {"n": 1}, key)
    assert signing.verify(envelope, files, signing.PREDICATE, key.public_key()).valid
    assert signing.verify(envelope, others, signing.PREDICATE, key.public_key()).valid == (files == others)
    assert signing.verify(envelope, files, signing.PREDICATE, stranger.public_key()).valid == (secret == another)
    assert not signing.verify(envelope, files, signing.FILE_PREDICATE, key.public_key()).valid


@pytest.mark.parametrize("content", [b"", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"])
def test_what_is_no_key_is_refused_in_a_sentence(content, tmp_path):
    (tmp_path / "key").write_bytes(content)
    for read in (signing_keys.read_public_key, signing_keys.read_private_key):
        with pytest.raises(SettingError, match="key"):
            read(tmp_path / "key")
