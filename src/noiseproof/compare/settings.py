"""Settings of each method for a data set, from what is public about it: records, shape, classes."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from noiseproof import methods

if TYPE_CHECKING:
    from noiseproof.data import Dataset
    from noiseproof.networks import Network

RECORD_PASSES = 500_000
"""Records that a training looks at, counting each as often as it is seen, before its epochs are cut."""

_SLOW = 0.5
"""The share of them for gradient methods without a proof: their small batches, and noise by record, are slow."""


def settings_for(method: str, dataset: Dataset) -> dict[str, Any]:
    """The settings of that method that suit so many records; what is not named keeps the method's default.

    Formal guarantee
    ----------------
    They depend on the number of records, which every proof here takes to be public, and on nothing else of the data:
    no training, validation or test record is looked at, so no budget is spent on the choice.
    """
    kind = methods.get(method)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    records = len(dataset)
    chosen: dict[str, Any] = {}
    if "epochs" in fields:
        # Many records need fewer passes for as many steps.
        usual = fields["epochs"].default
        assert isinstance(usual, int | float)
        slow = kind.place == "gradients" and not kind.proves
        cut = max(3, math.ceil((_SLOW if slow else 1) * RECORD_PASSES / records))
        if cut < usual:
            chosen["epochs"] = cut
    if "batch" in fields and "clip" in fields and kind.proves:
        # The noise of a step does not grow with its batch: a large batch is worth its rate.
        chosen["batch"] = int(min(4096, max(512, 2 ** round(math.log2(max(1, records / 24))))))
    return chosen


def network_for(method: str, dataset: Dataset) -> Network:
    """The network that suits the records' shape; a dense one where the method is defined for no other."""
    from noiseproof.networks import Network, suggest

    public = dataset.public
    if method.startswith("neuron-"):
        return Network("lu-mlp", public.shape, dataset.classes)
    return suggest(public.shape, dataset.classes, public.kind)
