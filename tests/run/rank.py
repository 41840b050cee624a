"""One rank of a test: runs every scenario and writes what it found. Started as `python -m tests.run.rank FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

from noiseproof.data import Dataset, Public, load
from noiseproof.engine.correlated import CorrelatedGradients
from noiseproof.engine.private_gradients import PrivateGradients
from noiseproof.engine.ranks import Ranks
from noiseproof.engine.sampling import PoissonSampler
from noiseproof.errors import NoiseproofError
from noiseproof.methods.gradients import AdaptiveGradients, DpSgd, NoisyGradients
from noiseproof.methods.gradients.preconditioner import Preconditioner, Statistics
from noiseproof.networks import Network
from noiseproof.privacy import Budget, Randomness, Reproducible, Secure
from noiseproof.privacy.events import EventLog
from noiseproof.privacy.factorization import Participation
from noiseproof.privacy.strategies import strategy
from noiseproof.releases.release import accuracy
from noiseproof.run import distributed
from noiseproof.run.checkpoints import Checkpoints
from tests.run.launch import leave

RECORDS, CLIP, RATE, STEPS = 60, 0.7, 0.4, 3
SILENT = 1e-12
"""A noise multiplier that is as good as none."""


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(3 * 25, 7), nn.Tanh(), nn.Linear(7, 4)
    )


def records() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(RECORDS, 1, 5, 5, generator=generator), torch.randint(4, (RECORDS,), generator=generator)


def flat(gradients: PrivateGradients) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in gradients.parameters])


def losses(module: nn.Module, features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor | None:
    return nn.functional.cross_entropy(module(features), labels, reduction="none") if len(labels) else None


def steps(
    module: nn.Module,
    gradients: PrivateGradients,
    features: torch.Tensor,
    labels: torch.Tensor,
    first: int = 0,
    micro_batch_size: int | None = 4,
) -> dict[str, torch.Tensor]:
    """Take steps on these records, which have numbers from `first` on; each step's records and gradient."""
    found, own, place = {}, [], 0
    numbers = torch.arange(first, first + len(labels))
    batches = gradients.batches(features, labels, numbers, steps=STEPS, micro_batch_size=micro_batch_size)
    for inputs, targets, which in batches:
        own.append(which)
        if gradients.backward(losses(module, inputs, targets)):
            found[f"records-{place}"], found[f"gradient-{place}"] = torch.cat(own), flat(gradients)
            own, place = [], place + 1
    return found


def sums(ranks: distributed.Group, wrap: bool) -> dict[str, torch.Tensor]:
    """Clipped sums without noise, every rank with all the records; weights differ until the ranks join."""
    module = network()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1 + ranks.rank)
    used = nn.parallel.DistributedDataParallel(module) if wrap else module
    gradients = PrivateGradients(
        used, max_grad_norm=CLIP, noise_multiplier=SILENT, sample_rate=RATE, rng=Reproducible(3)
    )
    gradients.join(ranks)
    return steps(used, gradients, *records())


def shards(ranks: distributed.Group) -> dict[str, torch.Tensor]:
    """The same where rank 0 has nearly all the records, and the last rank a single one."""
    group = distributed.Group("shards")
    features, labels = records()
    cuts = [0, *range(RECORDS - ranks.size + 1, RECORDS + 1)]
    mine = slice(cuts[ranks.rank], cuts[ranks.rank + 1])
    module = network()
    gradients = PrivateGradients(
        module, max_grad_norm=CLIP, noise_multiplier=SILENT, sample_rate=RATE, rng=Reproducible(4)
    )
    gradients.join(group)
    found = steps(module, gradients, features[mine], labels[mine], mine.start)
    return {**found, "expected": torch.tensor(gradients.expected_batch)}


PEOPLE = 17


def people() -> torch.Tensor:
    """Ids of persons, who have 3 or 4 of the records each, in no order."""
    return torch.arange(RECORDS) * 7 % PEOPLE + 100


def person_steps(group: distributed.Group, mine: torch.Tensor, seed: int) -> dict[str, torch.Tensor]:
    """Steps on persons without noise, at most three records of each, with the records `mine` on this rank."""
    module, (features, labels) = network(), records()
    gradients = PrivateGradients(
        module, max_grad_norm=CLIP, noise_multiplier=SILENT, sample_rate=RATE, rng=Reproducible(seed)
    )
    gradients.join(group)
    found, own, place = {}, [], 0
    batches = gradients.batches(
        *(features[mine], labels[mine], mine),
        steps=STEPS,
        micro_batch_size=4,
        groups=people()[mine],
        max_records_per_person=3,
    )
    for inputs, targets, which in batches:
        own.append(which)
        if gradients.backward(losses(module, inputs, targets)):
            found[f"records-{place}"], found[f"gradient-{place}"] = torch.cat(own), flat(gradients)
            own, place = [], place + 1
    return {**found, "expected": torch.tensor(gradients.expected_batch)}


def persons(ranks: distributed.Group) -> dict[str, dict[str, torch.Tensor]]:
    """All ranks with all persons' records, and each with those of its own persons."""
    here = ((people() % ranks.size) == ranks.rank).nonzero().flatten()
    return {
        "whole": person_steps(ranks, torch.arange(RECORDS), 11),
        "shards": person_steps(distributed.Group("shards"), here, 12),
    }


def fitted_on_persons(ranks: distributed.Group) -> dict[str, object]:
    """A method's whole training on persons, all of whose records every rank has."""
    features, labels = records()
    public = Public((1, 5, 5), ("a", "b", "c", "d"))
    dataset = Dataset("pictures", features, labels, public, people())
    method = DpSgd(epochs=2, batch_size=8, noise_multiplier=1.5)
    release = method.fit(Network("linear", (1, 5, 5), 4), dataset, Budget(3.0, 1e-5), rng=Reproducible(9), ranks=ranks)
    weights = torch.cat([value.flatten() for value in release.tensors().values()])
    return {"weights": weights, "ran": release.card.ran, "unit": release.card.unit}


def noise(ranks: distributed.Group, rng: Randomness) -> dict[str, torch.Tensor]:
    """Steps whose batches are empty on every rank: what is left of the update is noise."""
    module = nn.Linear(30, 33)
    gradients = PrivateGradients(module, max_grad_norm=CLIP, noise_multiplier=1.5, sample_rate=1e-12, rng=rng)
    gradients.join(ranks)
    gradients.expected_batch = 1.0
    drawn = []
    for _ in gradients.batches(torch.zeros(5, 30), steps=100):
        gradients.backward(None)
        drawn.append(flat(gradients))
    return {"noise": torch.stack(drawn), "events": torch.tensor(len(gradients.events))}


def adaptive(ranks: distributed.Group) -> dict[str, torch.Tensor]:
    """A clipping norm that follows a private count."""
    module = network()
    gradients = AdaptiveGradients(
        module, max_grad_norm=CLIP, noise_multiplier=1e-6, sample_rate=0.5, rng=Reproducible(5), count_sigma=1e-3
    )
    gradients.join(ranks)
    found = steps(module, gradients, *records(), micro_batch_size=None)
    return {**found, "max_grad_norm": torch.tensor(gradients.max_grad_norm, dtype=torch.float64)}


def loader(ranks: distributed.Group) -> dict[str, torch.Tensor]:
    """The user's own loader, whose sampler knows the ranks."""
    features, labels = records()
    module = network()
    gradients = PrivateGradients(
        module, max_grad_norm=CLIP, noise_multiplier=SILENT, sample_rate=RATE, rng=Reproducible(6)
    )
    gradients.join(ranks)
    data = torch.utils.data.TensorDataset(features, labels, torch.arange(RECORDS))
    sampler = PoissonSampler(RECORDS, RATE, 1, Reproducible(7), ranks)
    found = {}
    for inputs, targets, which in gradients.load(torch.utils.data.DataLoader(data, batch_sampler=sampler)):
        gradients.backward(losses(module, inputs, targets))
        found = {"records-0": which, "gradient-0": flat(gradients)}
    return found


def correlated(ranks: distributed.Group, stop: int | None) -> dict[str, torch.Tensor]:
    """Four steps with correlated noise; one that stops goes on in another object, from its state."""
    plan = strategy("banded", Participation(4, 2, 2))

    def made(rng: Randomness) -> tuple[nn.Module, CorrelatedGradients]:
        module = network()
        gradients = CorrelatedGradients(module, plan, max_grad_norm=CLIP, noise_multiplier=1.0, rng=rng)
        gradients.join(ranks)
        return module, gradients

    module, gradients = made(Reproducible(11))
    found: dict[str, torch.Tensor] = {}
    for first, last in ((0, stop or 4), (stop or 4, 4)):
        if first == stop:
            state, random = gradients.state(), [rng.state() for rng in gradients.randomness]
            module, gradients = made(Reproducible(11))
            gradients.restore(state)
            for rng, before in zip(gradients.randomness, random, strict=True):
                rng.restore(before)
        numbers = torch.arange(RECORDS)
        for place, (inputs, targets, which) in enumerate(gradients.batches(*records(), numbers, steps=last - first)):
            gradients.backward(losses(module, inputs, targets))
            found |= {f"records-{first + place}": which, f"gradient-{first + place}": flat(gradients)}
    return found


def fitted(ranks: distributed.Group) -> dict[str, object]:
    """A method's whole training on uneven shards, with checkpoints that only the first rank writes."""
    digits = load("digits").train.take(torch.arange(300))
    mine = digits.take(torch.arange(200) if ranks.rank == 0 else torch.arange(200, 300))
    shape = Network("mlp", digits.public.shape, digits.classes)
    method = DpSgd(epochs=2, batch_size=32, noise_multiplier=1.5)
    group = distributed.Group("shards")
    kept = Checkpoints(Path(sys.argv[1]) / "kept", every=5, resume=True)
    release = method.fit(shape, mine, Budget(3.0, 1e-5), rng=Reproducible(2), ranks=group, checkpoints=kept)
    again = Checkpoints(Path(sys.argv[1]) / "kept", every=5, resume=True)
    resumed = method.fit(shape, mine, Budget(3.0, 1e-5), rng=Reproducible(2), ranks=group, checkpoints=again)
    return {
        "weights": torch.cat([value.flatten() for value in release.tensors().values()]),
        "resumed": torch.cat([value.flatten() for value in resumed.tensors().values()]),
        "ran": {name: release.card.ran[name] for name in ("records", "ranks", "steps")},
        "epsilon": release.card.proven.epsilon,
    }


def preconditioned(group: Ranks, mine: slice) -> dict[str, torch.Tensor]:
    """Statistics with hardly any noise of the records that this rank was given, and a training with them."""
    features, labels = records()
    log = EventLog()
    made = Preconditioner.release(
        features[mine], Statistics(1e-9, 1e-9), log, rng=Reproducible(8), ranks=group, directions=2
    )
    dataset = Dataset("pictures", features[mine], labels[mine], Public((1, 5, 5), ("a", "b", "c", "d")))
    release = DpSgd(epochs=2, batch_size=32, precondition=0.1).fit(
        Network("linear", (1, 5, 5), 4), dataset, Budget(3.0, 1e-5), rng=Reproducible(9), ranks=group
    )
    return {
        "transformed": made(features),
        "events": torch.tensor(len(log)),
        "weights": torch.cat([value.flatten() for value in release.tensors().values()]),
        "epsilon": torch.tensor(release.card.proven.epsilon),
    }


def refusals(ranks: distributed.Group) -> dict[str, str]:
    """What is refused, and how."""
    said = {}

    def hear(what: str, action: object) -> None:
        try:
            action()  # type: ignore[operator]
        except NoiseproofError as error:
            said[what] = f"{type(error).__name__}: {error}"

    def private(module: nn.Module, sample_rate: float = RATE, noise_multiplier: float = 1.0) -> PrivateGradients:
        return PrivateGradients(
            module, max_grad_norm=CLIP, noise_multiplier=noise_multiplier, sample_rate=sample_rate, rng=Reproducible(0)
        )

    hear("sample_rate", lambda: private(network(), sample_rate=0.1 * (1 + ranks.rank)).join(ranks))

    def other_noise() -> None:
        gradients = private(network(), noise_multiplier=1.0 + ranks.rank)
        gradients.join(ranks)
        steps(gradients._engine.module, gradients, *records())

    hear("noise_multiplier", other_noise)

    def other_records() -> None:
        gradients = private(network())
        gradients.join(ranks)
        features, labels = records()
        steps(gradients._engine.module, gradients, features[ranks.rank :], labels[ranks.rank :])

    hear("records", other_records)
    hear(
        "noisy",
        lambda: NoisyGradients(
            network(), max_grad_norm=1.0, noise_multiplier=1.0, sample_rate=RATE, rng=Reproducible(0)
        ).join(ranks),
    )

    def forgotten() -> None:
        wrapped = nn.parallel.DistributedDataParallel(network())
        steps(wrapped, private(wrapped), *records())

    hear("wrapped", forgotten)

    def sharded() -> None:
        from torch.distributed.fsdp import fully_shard

        module = network()
        fully_shard(module)
        steps(module, private(module), *records())

    hear("sharded", sharded)
    everyone = torch.arange(RECORDS)
    hear("a person on two ranks", lambda: person_steps(distributed.Group("shards"), everyone[ranks.rank :: 2], 0))

    def numbered_anew() -> None:
        gradients = private(network())
        gradients.join(distributed.Group("shards"))
        mine = everyone[ranks.rank * 30 : ranks.rank * 30 + 30]
        next(gradients.batches(records()[0][mine], steps=1, groups=torch.arange(30) // 3))

    hear("numbers of its own", numbered_anew)

    def other_persons() -> None:
        gradients = private(network())
        gradients.join(ranks)
        next(gradients.batches(records()[0], steps=1, groups=people() + ranks.rank))

    hear("other persons", other_persons)
    public = Public((1, 5, 5), ("a", "b", "c", "d"))
    visits = Dataset("pictures", *records(), public, people())
    hear(
        "records of persons",
        lambda: DpSgd(person_sampling="records").fit(
            Network("linear", (1, 5, 5), 4), visits, Budget(3.0, 1e-5), rng=Reproducible(0), ranks=ranks
        ),
    )
    return said


def accuracies(ranks: Ranks, trainings: int = 12) -> tuple[list[float], list[float]]:
    """Test accuracies and proven epsilons of trainings on digits with noise, by seed."""
    split = load("digits")
    shape = Network("mlp", split.train.public.shape, split.train.classes)
    method = DpSgd(epochs=8, batch_size=256, noise_multiplier=2.0)
    releases = [
        method.fit(shape, split.train, Budget(3.0, 1e-5), rng=Reproducible(seed), ranks=ranks)
        for seed in range(trainings)
    ]
    return [accuracy(release, split.test) for release in releases], [
        release.card.proven.epsilon for release in releases
    ]


def main() -> None:
    torch.set_num_threads(1)
    with distributed.start() as ranks:
        if sys.argv[2:] == ["accuracies"]:
            torch.save(accuracies(ranks), Path(sys.argv[1]) / f"{ranks.rank}.pt")
            return
        found: dict[str, object] = {
            "sums": sums(ranks, wrap=False),
            "preconditioned": preconditioned(ranks, slice(None)),
            "preconditioned shards": preconditioned(
                distributed.Group("shards"),
                slice(None, 50) if ranks.rank == 0 else slice(49 + ranks.rank, 50 + ranks.rank),
            ),
            "wrapped": sums(ranks, wrap=True),
            "shards": shards(ranks),
            "reproducible": noise(ranks, Reproducible(8)),
            "secure": noise(ranks, Secure._for_test(bytes([ranks.rank] * 32))),
            "adaptive": adaptive(ranks),
            "loader": loader(ranks),
            "persons": persons(ranks),
            "fitted on persons": fitted_on_persons(ranks),
            "correlated": correlated(ranks, None),
            "correlated resumed": correlated(ranks, 3),
        }
        if ranks.size == 2:
            found["refusals"] = refusals(ranks)
            found["fitted"] = fitted(ranks)
    torch.save(found, Path(sys.argv[1]) / f"{ranks.rank}.pt")


if __name__ == "__main__":
    main()
    leave()
