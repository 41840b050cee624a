"""Mao et al.'s numbers, as their text has them: the figures' curves are not printed."""

from __future__ import annotations

from collections.abc import Mapping

PAPER = (
    "Mao, Zhu, Hong, Zhu, Zhang, Zhong: Private deep neural network models publishing for machine learning as a "
    "service. IEEE/ACM IWQoS, 2020"
)

PARAMETERS: Mapping[str, int] = {"mnist-net": 1_199_882, "cifar-net": 1_250_858}
MODELS = 50

QUALITY: Mapping[str, Mapping[float, str]] = {
    "mnist": {0.1: "affected", 1.0: "near the baseline", 5.0: "at the baseline or above"},
    "cifar10": {0.1: "far below", 1.0: "below", 2.0: "near the baseline", 5.0: "near the baseline"},
}
"""Figures 4 to 7 in the text's words, by data set and epsilon."""

SWEEPS: Mapping[str, str] = {
    "draw": "no significant trend",
    "cluster": "commensurate from 2 on",
    "shift": "acceptable from 1.5 on",
}
"""Figures 8 to 10 for MNIST, in the text's words."""

ATTACK: Mapping[str, str] = {
    "none": "almost 90% on class 3",
    "dp-pg": "around 57% on all classes",
    "dp-pgp": "at most 70% on any class",
    "dp-sgd": "almost 70% on two classes (at test accuracy 60.7%)",
}
"""Figure 12 in the text's words: how often membership is guessed right."""

TEST_ACCURACY: Mapping[str, str] = {"none": "—", "dp-pg": "above 55%", "dp-pgp": "about 50%", "dp-sgd": "45 to 60.7%"}
"""Of the over-fitted networks that were attacked."""
