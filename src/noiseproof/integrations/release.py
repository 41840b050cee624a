"""The release of a training loop of the user's own, with its card."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from torch import nn

from noiseproof.data.dataset import Public
from noiseproof.engine.correlated import CorrelatedGradients
from noiseproof.engine.ranks import is_sharded
from noiseproof.errors import SettingError
from noiseproof.methods.common import claim_of
from noiseproof.methods.gradients.dp_sgd import ASSUMPTIONS
from noiseproof.networks import Network
from noiseproof.privacy import Card, accountants
from noiseproof.releases.release import ModelRelease

if TYPE_CHECKING:
    from noiseproof.integrations.training import Preprocessing, PrivateTraining

_UNDECLARED = (
    "Nobody has declared that what came before the loader (vocabularies, scales, starting weights, settings) was made "
    "without the private records; release with preprocessing='public' if that is so, and this training is"
)
_FROM_DATA = (
    "What came before the loader was made from the private records without noise, for which nothing is proven; made from "
    "public ones this training would be"
)
_SEEDED = "The randomness was seeded, for research: whoever knows the seed can undo it; do not release."
_OWN_LOOP = (
    "the loop trains on what its loader handed over, and the network's own random numbers cannot be predicted",
    "preprocessing, starting weights and settings depend on no private record, as was declared",
)


def release_of(
    training: PrivateTraining,
    delta: float,
    shape: tuple[int, ...],
    *,
    preprocessing: Preprocessing | None,
    classes: tuple[str, ...],
    notes: tuple[str, ...],
    module: nn.Module | None,
) -> ModelRelease:
    """See `PrivateTraining.release`."""
    gradients, events = training.gradients, training.events
    rng = gradients.randomness[-1]
    spent = accountants.epsilon(events.event, delta, neighbours=training.neighbours)
    # In a loader's own order nothing is assumed of samples, which is what the first of them is about.
    facts = gradients.facts if isinstance(gradients, CorrelatedGradients) else {}
    proven = spent.proof(*(ASSUMPTIONS[1:] if facts else ASSUMPTIONS), *_OWN_LOOP, *training.stated, *rng.assumptions)
    if training.unit == "person":
        proven = proven.for_persons
    why = None
    if preprocessing != "public":
        said = _UNDECLARED if preprocessing is None else _FROM_DATA
        why = f"{said} ({proven.epsilon:.4g}, {proven.delta:.3g})-differentially private."
    ranks = gradients.ranks
    card = Card(
        method="dp-mf" if facts else "dp-sgd",
        place="gradients",
        unit=training.unit,
        neighbours=training.neighbours,
        randomness=rng.kind,
        claimed=None
        if training.budget is None
        else claim_of(training.budget).model_copy(update={"unit": training.unit}),
        proven=proven if why is None else None,
        why=why,
        ran={
            f"{training.unit}s": training.count,
            "steps": len(events),
            "sample_rate": gradients.sample_rate,
            "sampler": "poisson",
            "parameters": gradients.coordinates,
            "noise_multiplier": gradients.sigma_at(0),
            "max_grad_norm": gradients.max_grad_norm,
            "batch_size": gradients.expected_batch,
            "loop": "the user's own",
            **facts,
            **({} if ranks.size == 1 else {"ranks": ranks.size}),
        },
        notes=(*notes, *((_SEEDED,) if rng.kind == "reproducible" else ())),
    )
    bounds = "public" if preprocessing == "public" else "data"
    public = Public(shape, classes, bounds=bounds)  # type: ignore[arg-type]
    if is_sharded(training.module):
        if module is None:
            raise SettingError("the network is sharded; give a module of the same architecture that is not, module=...")
        parts = training.module.state_dict().items()
        module.load_state_dict(
            {name: value.full_tensor() if hasattr(value, "full_tensor") else value for name, value in parts}
        )
    else:
        # The hooks of the training are functions that do nothing in a copy.
        module = copy.deepcopy(training.module).cpu()
    network = Network.of(module, public.shape, max(1, len(classes)))
    settings = {name: card.ran[name] for name in ("sample_rate", "noise_multiplier", "max_grad_norm", "batch_size")}
    return ModelRelease(module, network, card, public, settings).logged(events.runs)
