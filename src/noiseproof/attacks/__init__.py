"""Membership inference: does a release give away whose records it was made from?"""

from __future__ import annotations

from noiseproof.attacks.attack import (
    Attack,
    AttackSetup,
    Predicts,
    attack_names,
    infer_by_all,
    infer_membership,
    register_attack,
)
from noiseproof.attacks.foreign import ForeignModel, open_model
from noiseproof.attacks.records import AttackSplit, read_members, split_for_attack
from noiseproof.attacks.result import AttackResult, ClassResult, Interval, LowRate, plot_roc
from noiseproof.attacks.rmia import RmiaAttack, StrongestAttack
from noiseproof.attacks.shadow import LiraAttack, ShadowAttack, ShadowModels
from noiseproof.attacks.simple import DensityRatioAttack, GapAttack, LabelOnlyAttack, LossAttack, NearestAttack

__all__ = [
    "Attack",
    "AttackResult",
    "AttackSetup",
    "AttackSplit",
    "ClassResult",
    "DensityRatioAttack",
    "ForeignModel",
    "GapAttack",
    "Interval",
    "LabelOnlyAttack",
    "LiraAttack",
    "LossAttack",
    "LowRate",
    "NearestAttack",
    "Predicts",
    "RmiaAttack",
    "ShadowAttack",
    "ShadowModels",
    "StrongestAttack",
    "attack_names",
    "infer_by_all",
    "infer_membership",
    "open_model",
    "plot_roc",
    "read_members",
    "register_attack",
    "split_for_attack",
]
