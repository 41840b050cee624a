"""Membership inference: does a release give away whose records it was made from?"""

from noiseproof.attacks.attack import Attack
from noiseproof.attacks.label_only import LabelOnlyAttack
from noiseproof.attacks.lira import LiraAttack
from noiseproof.attacks.loss import LossAttack
from noiseproof.attacks.membership import attack_names, infer_membership
from noiseproof.attacks.picture import plot_roc
from noiseproof.attacks.result import AttackResult, ClassResult, Interval
from noiseproof.attacks.shadow import ShadowAttack
from noiseproof.attacks.shadow_models import ShadowModels
from noiseproof.attacks.split import AttackSplit, split_for_attack
from noiseproof.attacks.synthetic import density_ratio, nearest_record
from noiseproof.attacks.target import Predicts

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
