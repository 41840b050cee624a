"""What Ma et al. (2020) print: Tables II to V, and the numbers that their text names."""

from __future__ import annotations

from collections.abc import Mapping

from noiseproof.methods.losses.rdp_gan import PAPER

__all__ = ["ATTRIBUTES", "DECAYS", "LARGEST_LOSS", "PAPER", "PMF_ERRORS", "SCHEDULES", "SENSITIVITY", "TEXT"]

LARGEST_LOSS: Mapping[tuple[str, int], tuple[float, float, float]] = {
    ("adult", 64): (17.852, 20, 0.3125),
    ("adult", 128): (21.242, 23, 0.1796),
    ("mnist", 64): (23.534, 25, 0.1953),
    ("mnist", 128): (26.823, 28, 0.2187),
}
"""Table II by data set and batch: the largest loss seen, C, and dS as printed."""

SENSITIVITY = "the printed .1953 for MNIST at batch 64 is 25 / 128; 25 / 64 is .3906."

ATTRIBUTES = ("age", "occupation", "education", "sex", "workclass", "marital_status", "hours_per_week", "income")
"""The eight attributes of Adult, in the order of Table III."""

PMF_ERRORS: Mapping[float | None, tuple[float, ...]] = {
    None: (1.09, 0.68, 0.92, 0.01, 0.834, 0.36, 1.66, 0.06),
    5.0: (1.1, 1.23, 1.23, 0.009, 1.11, 0.57, 1.65, 0.17),
    0.5: (3.0, 1.75, 1.87, 0.048, 2.21, 0.69, 2.55, 0.44),
}
"""Table III by epsilon (None: no privacy)."""

SCHEDULES: Mapping[str, Mapping[str, tuple[int, float]]] = {
    "mnist": {
        "none": (1000, 0.995),
        "constant": (1000, 0.863),
        "time": (657, 0.874),
        "step": (564, 0.876),
        "exp": (902, 0.898),
        "ant": (868, 0.908),
    },
    "adult": {
        "none": (1000, 0.964),
        "constant": (1000, 0.825),
        "time": (632, 0.836),
        "step": (532, 0.828),
        "exp": (894, 0.839),
        "ant": (845, 0.843),
    },
}
"""Tables IV and V: iterations and accuracy."""

DECAYS: Mapping[str, Mapping[str, float]] = {
    "mnist": {"time": 0.05, "step": 0.6, "exp": 0.01, "ant": 0.8},
    "adult": {"time": 0.04, "step": 0.5, "exp": 0.01, "ant": 0.7},
}
"""The decay rates of Tables IV and V."""

TEXT: Mapping[tuple[str, float], float] = {("rdp-gan", 0.5): 0.825, ("dp-gan", 0.5): 0.784}
"""Figure 8a at epsilon .5 as the text names it: the classifier of real records on synthetic ones."""
