"""The officer's page: one release, card or audit on a page that can be printed, at a glance first."""

from __future__ import annotations

import dataclasses
import math

from noiseproof.privacy.events import DpEvent
from noiseproof.releases import signing
from noiseproof.report import words
from noiseproof.report.assumptions import OPERATOR, OWNER, TRAINER
from noiseproof.report.evidence import LEFT, AuditEvidence, Evidence
from noiseproof.report.intervals import three
from noiseproof.report.page import template


def render_release(found: Evidence) -> str:
    """The page of a bundle or a card.

    Args:
        found: What is known of it.

    Returns:
        An HTML document that fetches nothing.

    Examples:
        >>> import noiseproof as npf
        >>> from noiseproof.report.evidence import of_bundle
        >>> folder = npf.train("dp-sgd", "digits", epsilon=3, epochs=1).save("bundle")
        >>> found = of_bundle(folder)
        >>> found.decision.answer
        'Yes, with a reservation.'
        >>> page = render_release(found)

    Formal guarantee
    ----------------
    It is computed from the card, the settings, the event log and what is public, all of which may leave with the
    release. What a ledger says of it is for the ledger's owner.
    """
    card = found.card
    promises = {"claimed": card.claimed, "proven": card.proven, "audited": card.audited}
    return template("release.html").render(
        found=found,
        decision=found.decision,
        three=three(promises, card.verdict),
        people=(TRAINER, OWNER, OPERATOR),
        left=LEFT,
        events=[(described(event), count) for event, count in found.events],
        course=None,
        **_told(),
    )


def render_audit(found: AuditEvidence) -> str:
    """The page of an audit.

    Args:
        found: Its document and who signed it.

    Returns:
        An HTML document that fetches nothing.

    Examples:
        >>> import json
        >>> from pathlib import Path
        >>> from noiseproof.audits import audit
        >>> from noiseproof.methods import get
        >>> from noiseproof.privacy import Budget
        >>> from noiseproof.report.evidence import of_audit
        >>> result = audit(get("dp-sgd")().game(Budget(3, 1e-5)), trials=200, timeout=None)
        >>> _ = Path("audit.json").write_text(json.dumps(result.to_json()))
        >>> page = render_audit(of_audit(Path("audit.json")))

    Formal guarantee
    ----------------
    It shows what the audit's document says and nothing else.
    """
    shown = three(found.promises, str(found.document.get("verdict")))
    return template("audit.html").render(found=found, decision=found.decision, three=shown, **_told())


def described(event: DpEvent) -> str:
    """An event in words: what kind of noise, how strong, on which sample.

    Args:
        event: An event of a log.

    Returns:
        One line; events within an event follow in brackets.
    """
    told = []
    for field in dataclasses.fields(event):
        value = getattr(event, field.name)
        name = field.name.replace("_", " ")
        if isinstance(value, DpEvent):
            told.append(f"of {described(value)}")
        elif isinstance(value, tuple | list) and any(isinstance(one, DpEvent) for one in value):
            told.append("[" + "; ".join(described(one) for one in value) + "]")
        elif isinstance(value, tuple | list):
            told.append(f"{name}: {len(value)} values")
        else:
            told.append(f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}")
    kind = type(event).__name__.removesuffix("DpEvent")
    spaced = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in kind).strip()
    return f"{spaced}: {', '.join(told)}" if told else spaced


def _told() -> dict[str, object]:
    return {
        "shows_not": signing.SHOWS_NOT,
        "obvious": (signing.UNSIGNED, signing.UNCHECKED),
        "of_people": words.of_people,
        "plain": words.plain,
        "rounded_up": words.rounded_up,
        "rounded_down": lambda value: f"{math.floor(value + 1e-6):,}",
    }
