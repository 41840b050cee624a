"""What a careful colleague would say before a training, and which records a bundle was trained on."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from pathlib import Path

import numpy as np

from noiseproof.data import Dataset, Split
from noiseproof.data.lazy import StoredTensor
from noiseproof.files import write_whole
from noiseproof.privacy.budget import Budget

FEW = 100
"""Below so many training records noise at any useful epsilon hides what there is to learn."""

WEAK = 20.0
"""Above this epsilon, a guarantee allows an attacker to be certain of nearly everything."""

_MOST = 200_000
"""Records up to which training and test part are compared."""

_LARGEST = float(np.finfo(np.float32).max)
_WHOLE = 1 << 24
"""Up to here float32 tells whole numbers apart."""


def about_budget(records: int, budget: Budget) -> tuple[str, ...]:
    """What to say of a budget for so many training records; all of it follows from public numbers.

    Args:
        records: The number of training records, or of persons where it is a person that is protected.
        budget: What may be spent on them.

    Returns:
        A sentence for each doubt.
    """
    found = []
    if budget.delta >= 1 / records:
        found.append(
            f"delta {budget.delta:g} is not below 1 / {records} (one over the number in the training part): publishing "
            "one of them at random would satisfy it; choose a much smaller delta."
        )
    if budget.epsilon > WEAK:
        found.append(
            f"epsilon {budget.epsilon:g} lets an attacker's odds that a record was there grow by e^{budget.epsilon:g}: "
            "that guarantees next to nothing; most releases stay below 10."
        )
    if records < FEW:
        found.append(
            f"there are only {records} to train on: noise that hides one of them hides nearly everything that could be "
            "learned; expect little."
        )
    return tuple(found)


def about_split(split: Split) -> tuple[str, ...]:
    """What to say of the records themselves, for the eyes of their owner.

    Args:
        split: The records.

    Returns:
        A sentence for each doubt: columns that float32 cannot hold, a test part that was trained on.

    Formal guarantee
    ----------------
    None: whether all test records are also training records is read off the records. It must not be released.
    """
    found = []
    columns = split.train.public.columns
    large = [one.name for one in columns if max(abs(one.low or 0.0), abs(one.high or 0.0)) > _LARGEST]
    coarse = [one.name for one in columns if one.integer and (one.high or 0.0) - (one.low or 0.0) > _WHOLE]
    if large:
        found.append(f"the bounds of {', '.join(large)} are beyond float32, in which records are stored; narrow them.")
    if coarse:
        found.append(
            f"{', '.join(coarse)} can take more than {_WHOLE:,} whole values, more than float32 can tell apart; if it is "
            "an id, skip it."
        )
    sizes = (len(split.train), len(split.test))
    if sum(sizes) <= _MOST and not isinstance(split.train.features, StoredTensor):
        trained, tested = (part.identities().view([("", np.uint64)] * 2)[:, 0] for part in (split.train, split.test))
        if len(tested) and np.isin(tested, trained).all():
            found.append(
                f"all {sizes[1]} test records are training records, too: accuracies and attacks measured on them mean nothing; "
                "use a test part with other people."
            )
    return tuple(found)


def fingerprint_path(bundle: str | Path) -> Path:
    """Where the owner's note on a bundle's training records is kept: beside the bundle, never in it."""
    bundle = Path(bundle)
    return bundle.with_name(f"{bundle.name}.private.json")


def keep_fingerprint(bundle: str | Path, dataset: Dataset) -> str:
    """Note beside a bundle which records it was trained on, as a hash keyed with a fresh salt, for its owner alone.

    Args:
        bundle: The bundle's folder.
        dataset: The training records.

    Returns:
        What its owner must know of the file.

    Formal guarantee
    ----------------
    None: the file is a function of the private records, readable by its owner only, and must stay inside.
    """
    salt = secrets.token_hex(16)
    note = {
        "salt": salt,
        "training": _keyed(salt, dataset),
        "about": "private: which records the bundle was trained on",
    }
    path = fingerprint_path(bundle)
    try:
        write_whole(path, json.dumps(note), mode=0o600)
    except OSError as error:
        # The release has been paid for and is saved: this is no reason to fail.
        return (
            f"the bundle is saved, but {path}, by which an attack knows its records again, is not ({error.strerror})."
        )
    return f"{path} lets you check which records the bundle was trained on; keep it private and do not ship it with the bundle."


def trained_on(bundle: str | Path, dataset: Dataset) -> bool | None:
    """Whether a bundle was trained on exactly these records; None where nobody noted it.

    Args:
        bundle: The bundle's folder.
        dataset: Records that are taken for its training part.

    Returns:
        The answer, for the records' owner.
    """
    try:
        note = json.loads(fingerprint_path(bundle).read_text())
        return hmac.compare_digest(str(note["training"]), _keyed(str(note["salt"]), dataset))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keyed(salt: str, dataset: Dataset) -> str:
    return hmac.new(salt.encode(), dataset.fingerprint().encode(), hashlib.sha256).hexdigest()
