"""Membership inference: does a release give away whose records it was made from?"""

from __future__ import annotations

from noiseproof.attacks.attack import (
    Attack,
    AttackSetup,
    AttackSplit,
    Predicts,
    attack_names,
    infer_membership,
    register_attack,
    split_for_attack,
)
from noiseproof.attacks.result import AttackResult, ClassResult, Interval, plot_roc
from noiseproof.attacks.shadow import LiraAttack, ShadowAttack, ShadowModels
from noiseproof.attacks.simple import DensityRatioAttack, GapAttack, LabelOnlyAttack, LossAttack, NearestAttack

__all__ = [
    "Attack",
    "AttackResult",
    "AttackSetup",
    "AttackSplit",
    "ClassResult",
    "DensityRatioAttack",
    "GapAttack",
    "Interval",
    "LabelOnlyAttack",
    "LiraAttack",
    "LossAttack",
    "NearestAttack",
    "Predicts",
    "ShadowAttack",
    "ShadowModels",
    "attack_names",
    "infer_membership",
    "plot_roc",
    "register_attack",
    "split_for_attack",
]
