"""Evidence: all that can be said of one bundle, card or audit, gathered for the officer's page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from noiseproof.data.dataset import Public
from noiseproof.errors import BundleError, DataError
from noiseproof.privacy.card import Audit, Card, Claim, Proof
from noiseproof.privacy.events import DpEvent
from noiseproof.releases import bundles, signing
from noiseproof.releases.signing_keys import PublicKey
from noiseproof.report.assumptions import ROLES, Duty, duty
from noiseproof.report.words import Meaning, plain
from noiseproof.run.cautions import WEAK

Level = Literal["good", "warn", "bad"]

LEFT = {
    "model": "A trained network: its weights. Any number of answers may be computed from them.",
    "prediction": "Answers, one by one. The network behind them stays inside.",
    "data": "Synthetic records. They may be copied and analysed in any way.",
}
"""What leaves with each kind of release."""


@dataclass(frozen=True)
class Decision:
    """Whether something may leave, for people who decide it."""

    level: Level
    answer: str
    why: str


@dataclass(frozen=True)
class Evidence:
    """A release's card, with whatever its bundle tells beside it."""

    name: str
    source: Literal["bundle", "card"]
    card: Card
    signature: signing.Verdict
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What `settings.json` of a bundle holds; empty for a card alone."""
    events: Sequence[tuple[DpEvent, int]] = ()
    recomputed: signing.Recomputed | None = None
    problem: str | None = None
    """Why the bundle is not whole, if it is not."""
    ledger: Sequence[str] | None = None
    """What a ledger says of the release and its data set, a sentence each; None where none was given."""

    @property
    def kind(self) -> str | None:
        """A model, predictions or data; None for a card alone."""
        return self.settings.get("kind")

    @property
    def public(self) -> Mapping[str, Any]:
        """What is public of the records."""
        return dict(self.settings.get("public", {}))

    @property
    def stays_inside(self) -> bool:
        """Whether the bundle itself must not leave."""
        return bool(self.settings.get("stays_inside", False))

    @property
    def meaning(self) -> Meaning | None:
        """What is proven, in people and in odds; None where nothing is, or nothing may be relied on."""
        proven = self.card.proven
        if proven is None or self.card.verdict in ("refuted", "nothing proven"):
            return None
        return Meaning(proven.epsilon, proven.delta)

    @property
    def duties(self) -> list[Duty]:
        """Every assumption of the proof, and who must see to it; what people must do comes first."""
        found = [duty(one) for one in (self.card.proven.assumptions if self.card.proven else ())]
        return sorted(found, key=lambda one: ROLES.index(one.who))

    @property
    def people(self) -> str:
        """From whose data it is."""
        ran, public, unit = self.card.ran, self.public, self.card.unit
        count = ran.get("persons" if unit == "person" else "records")
        some = (
            f"{count:,} {unit}s"
            if isinstance(count, int) and unit in ("record", "person")
            else f"one {unit} and others"
        )
        columns = [column["name"] for column in public.get("columns", ())]
        if columns:
            shown = ", ".join(columns[:8]) + (f" and {len(columns) - 8} more" if len(columns) > 8 else "")
            target = f", to predict {public['target']}" if public.get("target") else ""
            return f"A table of {some} with the columns {shown}{target}."
        shape = " × ".join(map(str, public.get("shape", ())))
        return _capital(some) + (f" ({public.get('kind')}, {shape})." if shape else ".")

    @property
    def chosen(self) -> str:
        """How method and settings were chosen, as far as the card says."""
        told = [note for note in self.card.notes if "chosen" in note]
        if told:
            return " ".join(told)
        if any("the choice" in one.assumption for one in self.duties):
            return "By `noiseproof choose`: the choice itself was paid for from the budget, and the proof includes it."
        return (
            "The card notes no comparison on the private records. If somebody tried several methods or settings on them and "
            "kept the best, that look is not part of the guarantee; ask whoever trained it."
        )

    @property
    def not_for(self) -> list[str]:
        """What it must not be used for."""
        card, found = self.card, []
        if card.verdict in ("refuted", "nothing proven", "rehearsal"):
            found.append("Publishing, handing over or serving: nothing of it may leave.")
        if self.stays_inside:
            found.append(
                "Handing over this folder: it holds private records or networks trained on them without noise."
            )
        if card.unit == "record":
            found.append(
                "Promising anything to a *person* whose records are several: the guarantee is for one record (see the table "
                "above), unless each person has one."
            )
        found += [
            "A second release from the same people as if it were the first: epsilons of all releases add up. Keep one ledger "
            "for all of them.",
            "Claims about what is true of a *group*: that smokers fall ill more often can be learned, and is meant to be. Only "
            "the part that any one of them took is hidden.",
            "Calling it anonymous in law by itself: epsilon is evidence for that decision, not the decision.",
            "Decisions about people without knowing how often it is wrong: noise costs accuracy, most of all for rare groups. "
            "The comparison page shows it.",
        ]
        return found

    @property
    def decision(self) -> Decision:
        """Whether it may leave, and why."""
        card, verdict = self.card, self.card.verdict
        proven = card.proven
        if self.problem is not None or self.signature.status == "changed":
            return Decision("bad", "No. This file was changed.", self.problem or self.signature.sentence)
        if verdict == "refuted":
            return Decision("bad", "No. Its promise was refuted.", _capital(card.text.partition(": ")[2]))
        if proven is None:
            return Decision("bad", "No. Nothing is proven.", str(card.why))
        if verdict == "rehearsal":
            return Decision("bad", "No. This is a rehearsal.", _capital(card.text.partition(": ")[2]))
        if card.unit not in ("record", "person"):
            told = f"What is proven hides one {card.unit}, not a person or a record of one."
            return Decision("bad", "No. The promise is not about people.", told)
        promise = f"epsilon {proven.epsilon:.3g} at delta {plain(proven.delta)} is proven for one {card.unit}"
        if proven.epsilon > 10:
            worth = "next to nothing" if proven.epsilon > WEAK else "weak"
            told = f"Though {promise}: most releases stay below 10."
            return Decision("bad", f"Better not. The promise is {worth}.", told)
        doubts = self._doubts(proven)
        if self.stays_inside:
            doubts = ["the folder itself must stay inside, and only its answers may leave", *doubts]
        if doubts:
            answer = "Its answers may leave. The folder may not." if self.stays_inside else "Yes, with a reservation."
            return Decision("warn", answer, f"{_capital(promise)}; but {'; '.join(doubts)}.")
        return Decision("good", "Yes.", f"{_capital(promise)}, and the file is what its signer vouched for.")

    def _doubts(self, proven: Proof) -> list[str]:
        found = []
        records = self.card.ran.get("persons" if self.card.unit == "person" else "records")
        if isinstance(records, int) and records and proven.delta >= 1 / records:
            found.append(f"delta is not below 1 in {records:,}, so that one record at random could be published whole")
        if self.card.verdict == "weaker than claimed" and self.card.claimed:
            found.append(f"its authors' claim of {self.card.claimed.epsilon:.3g} is not reached")
        if self.signature.status == "not signed":
            found.append("nobody has signed the file")
        if self.signature.status == "not checked":
            found.append("its signature was not checked against the signer's public key")
        return found


def of_bundle(path: Path, key: PublicKey | None = None, ledger: Sequence[str] | None = None) -> Evidence:
    """What a bundle's folder tells. One that was changed is read as far as it can be, and said to be changed.

    Args:
        path: The folder.
        key: The signer's public key, from a source that is trusted.
        ledger: What a ledger says of it.

    Returns:
        The evidence.

    Raises:
        BundleError: If the folder holds no card or settings that can be read at all.
    """
    signature, problem, recomputed = signing.verify_bundle(path, key), None, None
    try:
        bundles.read_card(path)
        recomputed = signing.recompute(path)
    except BundleError as error:
        problem = str(error).replace(str(path), path.resolve().name)  # the page may leave, and tells no folders
    try:
        card = Card.from_json((path / bundles.CARD).read_bytes())
        settings = dict(json.loads((path / bundles.SETTINGS).read_bytes()))
        events = bundles.events_from_json(settings)
        TypeAdapter(Public).validate_python(settings["public"])
        TypeAdapter(str).validate_python(settings["kind"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        raise BundleError(f"{path} holds no bundle that can be read; nothing can be said of it.") from error
    return Evidence(path.resolve().name, "bundle", card, signature, settings, events, recomputed, problem, ledger)


def is_card(path: Path) -> bool:
    """Whether a file is a card rather than an audit's document."""
    try:
        return {"method", "place", "randomness"} <= set(json.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError, RecursionError):
        return False


def of_card(path: Path, key: PublicKey | None = None, ledger: Sequence[str] | None = None) -> Evidence:
    """What a card alone tells: nothing shows which release it belongs to.

    Args:
        path: The JSON file.
        key: The signer's public key, from a source that is trusted.
        ledger: What a ledger says of it.

    Returns:
        The evidence.
    """
    return Evidence(path.name, "card", Card.from_json(path.read_bytes()), signing.verify_file(path, key), ledger=ledger)


@dataclass(frozen=True)
class AuditEvidence:
    """The document of an audit (`noiseproof audit ... --json`), with its signature."""

    name: str
    document: Mapping[str, Any]
    signature: signing.Verdict

    @property
    def promises(self) -> dict[str, Claim | Proof | Audit | None]:
        """What is claimed, proven and audited of exactly what was played."""
        # An infinite claim is null in JSON.
        given = {
            name: one
            for name, one in self.document.items()
            if isinstance(one, Mapping) and one.get("epsilon") is not None
        }
        return {
            "claimed": Claim.model_validate(given["claimed"]) if "claimed" in given else None,
            "proven": Proof.model_validate(given["proven"]) if "proven" in given else None,
            "audited": Audit.model_validate(given["audited"]) if "audited" in given else None,
        }

    @property
    def power(self) -> str | None:
        """What the audit could have found, in words; None where the document does not say."""
        power = self.document.get("power")
        return str(power["sentence"]) if isinstance(power, Mapping) and power.get("sentence") else None

    @property
    def decision(self) -> Decision:
        """What the audit decides; one that found less than half of what was stated decides little."""
        audited, stated = self.promises["audited"], self.promises["claimed"] or self.promises["proven"]
        assert isinstance(audited, Audit)
        bound = f"at least {audited.epsilon:.3g}" if audited.epsilon > 0 else "nothing that could be told from chance"
        found = f"an attack showed {bound}, at a confidence of {audited.confidence:.3g}"
        if self.signature.status == "changed":
            return Decision("bad", "This file was changed.", self.signature.sentence)
        if stated is None:
            return Decision("warn", "There was no promise to test.", f"{_capital(found)}.")
        if self.document.get("verdict") == "refuted":
            return Decision("bad", "No. It is refuted.", f"Epsilon {stated.epsilon:.3g} was stated, and {found}.")
        told = f"Epsilon {stated.epsilon:.3g} was stated; {found}. That is no proof: a stronger attack may find more."
        if audited.epsilon < stated.epsilon / 2:
            return Decision(
                "warn", "Not refuted, but hardly tested.", f"{told} {self.power or 'More trials would show more.'}"
            )
        return Decision("good", "Not refuted.", told)


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def of_audit(path: Path, key: PublicKey | None = None) -> AuditEvidence:
    """What the document of an audit tells.

    Args:
        path: The JSON file.
        key: The signer's public key, from a source that is trusted.

    Returns:
        The evidence.

    Raises:
        DataError: If it is no such document.
    """
    try:
        document = dict(json.loads(path.read_bytes()))
        found = AuditEvidence(path.name, document, signing.verify_file(path, key))
        if found.promises["audited"] is None:
            raise ValueError
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise DataError(f"{path} is not the JSON of an audit; `noiseproof audit ... --json` prints it.") from None
    return found
