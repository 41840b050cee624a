"""Who must see to what a proof assumes."""

from __future__ import annotations

import re
from typing import NamedTuple

TRAINER, OWNER, OPERATOR, PROGRAM, NOBODY = ROLES = (
    "Whoever trained it",
    "The data’s owner",
    "Whoever runs the machine",
    "noiseproof",
    "Nobody",
)
"""Who can see to an assumption; those that people must see to come first."""


class Duty(NamedTuple):
    """An assumption, who must see to it, and how."""

    assumption: str
    who: str
    how: str


_DUTIES = (
    (
        r"mind clocks and logs|how many trainings",
        OPERATOR,
        "Keep logs, timings and runs that were not chosen from everybody else.",
    ),
    (r"nobody measures", OPERATOR, "Let no stranger run programs on the machine while it trains or answers."),
    (
        r"not chosen by looking|depend on no private record|relevance network",
        TRAINER,
        "Take settings and starting weights from public knowledge, or pay for the choice with `noiseproof choose`.",
    ),
    (
        r"loop trains on what its loader|random numbers cannot be predicted",
        TRAINER,
        "Read the training loop: nothing but the loader's batches may reach the network.",
    ),
    (r"seed is secret", TRAINER, "A seeded run is a rehearsal. Train without a seed before anything leaves."),
    (r"batches are Poisson", PROGRAM, "The sampler is the library's own. Keep its batches out of logs."),
    (r"never in both", PROGRAM, "The split is the library's own, and part sizes are stated on the card."),
    (
        r"number of (records|persons|shards|teachers)",
        OWNER,
        "Agree that the number may be known; it stands on the card.",
    ),
    (
        r"depends? on (that|its own|one) (record|person|shard)|hang on one",
        PROGRAM,
        "Layers that mix records are refused; the first batches and secret later ones are checked.",
    ),
    (r"lies in \[0, 1\]|was checked|solved to", PROGRAM, "It was checked while it ran."),
    (
        r"floating-point|exact|preconditioner's statistics|last bits",
        NOBODY,
        "Rounding errors of sums in floating point are not part of the proof. Accept it, or do not publish.",
    ),
    (r"ChaCha20", NOBODY, "The same is assumed of the encryption of web pages."),
    (r"public", OWNER, "Agree that this may be known."),
)
"""Which words of an assumption tell whose it is; the first that fit count."""


def duty(assumption: str) -> Duty:
    """Who must see to an assumption, and how.

    Args:
        assumption: As a card states it.

    Returns:
        The duty; an assumption that is not known here falls to whoever trained the release.

    >>> duty("nobody measures how long single draws take").who
    'Whoever runs the machine'
    """
    for words, who, how in _DUTIES:
        if re.search(words, assumption):
            return Duty(assumption, who, how)
    return Duty(assumption, TRAINER, "Ask for the evidence.")
