"""Membership inference: does a release give away whose records it was made from?"""

from __future__ import annotations

from noiseproof.attacks.attack import Attack, AttackSplit, Predicts, split_for_attack
from noiseproof.attacks.lira import LiraAttack
from noiseproof.attacks.membership import attack_names, infer_membership
from noiseproof.attacks.picture import plot_roc
from noiseproof.attacks.result import AttackResult, ClassResult, Interval
from noiseproof.attacks.shadow import ShadowAttack, ShadowModels
from noiseproof.attacks.synthetic import density_ratio, nearest_record
from noiseproof.attacks.thresholds import LabelOnlyAttack, LossAttack

__all__ = [
    "Attack",
    "AttackResult",
    "AttackSplit",
    "ClassResult",
    "Interval",
    "LabelOnlyAttack",
    "LiraAttack",
    "LossAttack",
    "Predicts",
    "ShadowAttack",
    "ShadowModels",
    "attack_names",
    "density_ratio",
    "infer_membership",
    "nearest_record",
    "plot_roc",
    "split_for_attack",
]
