"""The verb: a release, records in and out, and an attack in; how well it told them apart out."""

from __future__ import annotations

import math
from typing import Literal, get_args

from noiseproof.attacks.attack import AttackSplit, Predicts
from noiseproof.attacks.lira import LiraAttack
from noiseproof.attacks.result import AttackResult
from noiseproof.attacks.shadow import ShadowAttack, ShadowModels
from noiseproof.attacks.synthetic import density_ratio, nearest_record
from noiseproof.attacks.thresholds import LabelOnlyAttack, LossAttack
from noiseproof.errors import SettingError
from noiseproof.networks import Network, Training, suggest
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import DataRelease

AttackName = Literal["shadow", "loss", "lira", "lira-offline", "gap", "label-only", "nearest", "density-ratio"]
ON_ANSWERS: tuple[AttackName, ...] = ("shadow", "loss", "lira", "lira-offline", "gap", "label-only")
ON_RECORDS: tuple[AttackName, ...] = ("nearest", "density-ratio")

_COPIES = 10


def attack_names() -> tuple[str, ...]:
    """Every attack that can be asked for by name."""
    return get_args(AttackName)


def infer_membership(
    release: Predicts | DataRelease,
    split: AttackSplit,
    attack: AttackName = "shadow",
    *,
    network: Network | None = None,
    training: Training | None = None,
    shadows: int = 20,
    seed: int = 0,
    progress: Progress = SILENT,
) -> AttackResult:
    """Attack a release and measure how well members are told from non-members.

    `shadow` (Shokri), `lira` (online: shadow models on halves of the attacked records), `lira-offline` (shadow models
    on the split's pool) train `shadows` networks like `network` and `training`, by default the release's own network;
    `loss` (Yeom), `gap` (is the label right?) and `label-only` (and does it survive noise?) train none. Synthetic
    records are attacked by `nearest` and `density-ratio`. A `PredictionRelease` pays for every answer; see
    `AttackSplit.limited`.

    Formal guarantee
    ----------------
    None: an attack measures, on the trusted side, how much a release gives away about real records.
    """
    if attack not in attack_names():
        raise SettingError(f"there is no attack {attack!r}; there are {', '.join(attack_names())}.")
    if isinstance(release, DataRelease):
        if attack not in ON_RECORDS:
            raise SettingError(f"synthetic records can be attacked by {' or '.join(ON_RECORDS)}, not by {attack}.")
        if attack == "nearest":
            return nearest_record(release.dataset, split, seed=seed)
        return density_ratio(release.dataset, split, seed=seed)
    if attack in ON_RECORDS:
        raise SettingError(
            f"{attack} attacks synthetic records; predictions can be attacked by {', '.join(ON_ANSWERS)}."
        )
    if attack == "loss":
        return LossAttack().against(release, split, seed=seed)
    if attack == "gap":
        return LabelOnlyAttack().against(release, split, seed=seed)
    if attack == "label-only":
        return LabelOnlyAttack(split.attackers, copies=_COPIES, seed=seed).against(release, split, seed=seed)
    network = network or _network(release, split)
    training = training or _training(release)
    if attack == "lira":
        halves = ShadowModels.halves(
            network, split.records, count=shadows, training=training, seed=seed, progress=progress
        )
        return LiraAttack(halves, online=True).against(release, split, seed=seed)
    drawn = ShadowModels.drawn(
        network,
        split.attackers,
        count=shadows,
        size=len(split.members),
        training=training,
        seed=seed,
        progress=progress,
    )
    if attack == "lira-offline":
        if split.pool is None:
            raise SettingError("lira-offline needs a pool of records that are neither members nor non-members.")
        return LiraAttack(drawn, online=False).against(release, split, seed=seed)
    return ShadowAttack.fit(drawn, seed=seed, progress=progress).against(release, split, seed=seed)


def _network(release: Predicts, split: AttackSplit) -> Network:
    """The release's own network where it says which; else what suits the records."""
    own = getattr(release, "network", None)
    public = split.members.public
    return own if isinstance(own, Network) else suggest(public.shape, split.members.classes, public.kind)


def _training(release: Predicts) -> Training:
    """The release's own training if it was an ordinary one."""
    if getattr(release, "method", None) != "none":
        return Training()
    settings = getattr(release, "settings", {})
    return Training(
        epochs=math.ceil(settings.get("epochs", Training.epochs)),
        batch_size=settings.get("batch_size", Training.batch_size),
        lr=settings.get("lr", Training.lr),
    )
