"""`shadow`: Shokri et al.'s attack, an attack network for each class that has learned from shadow models."""

from __future__ import annotations

from typing import ClassVar

import torch

from noiseproof.attacks.attack import Attack
from noiseproof.attacks.shadow_models import ShadowModels
from noiseproof.attacks.target import Predicts
from noiseproof.data.dataset import Dataset
from noiseproof.networks import Network, StackedNetwork, Training, fit_stack
from noiseproof.progress import SILENT, Progress

ATTACK_TRAINING = Training(epochs=100, batch=100, lr=0.01, l2=1e-6)
"""How attack networks are trained: Lu et al., Table 4."""


class ShadowAttack(Attack):
    """Shokri et al. (2017): networks (64 tanh) from probability vectors to membership, one for each class.

    They are trained on the shadow models' answers to what these were and were not trained on, and decide at one half.
    Records of a class that no shadow model has seen are taken for non-members. With `by_class=False` there is one network
    for all classes, as Lu et al. have it (section 3.3): it does not know a record's class, and so tells less.
    """

    name: ClassVar[str] = "shadow"
    threshold: float | None = 0.5
    threshold_from: str = "the attack network's own decision"

    def __init__(self, networks: StackedNetwork, classes: torch.Tensor) -> None:
        # As modules, once: building one takes longer than what it then has to do.
        self._networks = [networks.module(index) for index in range(len(networks))]
        self._place = classes

    @classmethod
    def fit(
        cls,
        shadows: ShadowModels,
        *,
        hidden: int = 64,
        by_class: bool = True,
        training: Training = ATTACK_TRAINING,
        seed: int = 0,
        progress: Progress = SILENT,
    ) -> ShadowAttack:
        """Train the attack networks, all classes at once."""
        vectors, inside, labels = _examples(shadows)
        classes = shadows.pool.classes
        if by_class:
            members = [(labels == index).nonzero().flatten() for index in range(classes)]
            known = [index for index in range(classes) if len(members[index])]
            # Where each class's network is in the stack; -1 for classes that the pool does not have.
            place = torch.full((classes,), -1)
            place[known] = torch.arange(len(known))
        else:
            members, known, place = [torch.arange(len(vectors))], [0], torch.zeros(classes, dtype=torch.long)
        network = Network("mlp", (classes,), 2, {"hidden": hidden, "activation": "tanh"})
        networks = fit_stack(
            network,
            vectors,
            inside.long(),
            [members[index] for index in known],
            training,
            seeds=[seed * classes + index for index in known],
            progress=progress,
        )
        return cls(networks, place)

    def scores(self, target: Predicts, records: Dataset) -> torch.Tensor:
        """The attack network's probability of membership."""
        answers = target.predict(records.features).float().cpu()
        place = self._place[records.labels.cpu()]
        scores = torch.full((len(records),), 0.5)
        for index, network in enumerate(self._networks):
            chosen = (place == index).nonzero().flatten()
            if len(chosen):
                with torch.no_grad():
                    logits = network(answers[chosen])
                scores[chosen] = logits.softmax(1)[:, 1]
        return scores


def _examples(shadows: ShadowModels) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every known (model, record) pair: the model's answer, whether the record was in its training, its class."""
    vectors, inside, labels, start = [], [], [], 0
    for answers in shadows.answers(shadows.pool):
        part = slice(start, start + answers.shape[1])
        known = shadows.inside[:, part] | shadows.outside[:, part]
        vectors.append(answers[known])
        inside.append(shadows.inside[:, part][known])
        labels.append(shadows.pool.labels[part].cpu().expand(len(shadows), -1)[known])
        start += answers.shape[1]
    return torch.cat(vectors), torch.cat(inside), torch.cat(labels)
