"""One row of a comparison: train, measure, attack, audit, save."""

from __future__ import annotations

import dataclasses
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from noiseproof import methods
from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.methods import recipes
from noiseproof.privacy import Reproducible
from noiseproof.progress import Progress
from noiseproof.releases.release import DataRelease, ModelRelease, PredictionRelease, Release, accuracy, check_features
from noiseproof.run.plan import Plan, Task

if TYPE_CHECKING:
    from noiseproof.attacks import AttackResult
    from noiseproof.data import Dataset
    from noiseproof.data.splits import Split
    from noiseproof.networks import Network
    from noiseproof.privacy import Budget


ATTACKED = 5000
"""Members, and as many others, that an attack looks at: its intervals are narrow by then."""

_REHEARSAL = 0x5EED
"""Set apart from the seed of the training, so that the noise of rehearsed answers is none that the training drew."""

_CURVE_POINTS = 200


class Rehearsal:
    """A prediction release as its owner tries it out: answers with the release's noise, which stay inside.

    Formal guarantee
    ----------------
    None is needed, and no query is spent, as long as the answers stay on the trusted side, beside the private records:
    the noise is drawn apart from what the release will ever answer with. They must not be released.
    """

    def __init__(self, release: PredictionRelease, seed: int) -> None:
        self._release = release
        self._rng = Reproducible(seed ^ _REHEARSAL)

    def predict(self, features: torch.Tensor) -> torch.Tensor:
        """Noisy class probabilities, (records, classes)."""
        return self._release.answer_paid(check_features(features, self._release.public.shape), self._rng)


def compute_row(plan: Plan, task: Task, split: Split, bundles: Path, progress: Progress) -> dict[str, Any]:
    """Everything that the comparison says about one method at one epsilon, as JSON.

    The seed makes the row reproducible whatever ran before it. Accuracy, attack and audit are for the data's owner.
    Answers of a `PredictionRelease` are rehearsed: its accuracy is measured on the whole test part with the noise of
    `plan.queries` answers, its attacker asks `plan.queries` of them, and the saved bundle has all its queries left.
    Synthetic records are measured by the baseline trained on them alone.
    """
    from noiseproof.audits import audit

    started = time.perf_counter()
    budget = plan.budget(task.epsilon)
    recipe = recipes.resolve(plan.recipe if task.method == recipes.METHOD else "none", split.train)
    if recipe is not None:
        method = recipe.method(len(split.train), budget.epsilon)
        network, features = recipe.trained(split.train.public), recipe.map(split.train, progress)
    else:
        method = methods.build(task.method, settings_for(task.method, split.train))
        network, features = network_for(task.method, split.train), split.train
    release = method.fit(network, features, budget, rng=Reproducible(plan.seed), progress=progress)
    if recipe is not None:
        release = recipe.around(release, split.train.public)
    fitted = time.perf_counter()
    row: dict[str, Any] = {
        "method": task.method,
        "epsilon": task.epsilon,
        "delta": plan.delta,
        "status": "done",
        "kind": release.kind,
        "accuracy": _accuracy(release, split, plan),
        "network": network.name if recipe is None else f"{recipe.name}: {recipe.network}",
        "settings": method.settings(),
        "queries": plan.queries if isinstance(release, PredictionRelease) else None,
    }
    result = _attack(release, split, plan)
    row["attack"] = {**result.to_json(), "roc": _curve(result)}
    problems = []
    try:
        audited = audit(method.game(budget), trials=plan.trials, seed=plan.seed, timeout=None, progress=progress)
    except NoiseproofError as error:
        # What was trained and measured stands without its audit.
        row["audit"], row["verdict"] = None, release.card.verdict
        problems.append(f"its audit failed: {error}")
    else:
        release.card = release.card.with_audit(audited.audited)
        row["audit"] = audited.to_json()
        # A claim can be refuted in the game, for what the game ran, or for the whole run.
        row["verdict"] = "refuted" if audited.verdict == "refuted" else release.card.verdict
    row["card"] = release.card.model_dump(mode="json")
    row["spending"] = spending(release, budget)
    row["bundle"], unsaved = _save(release, bundles / task.key)
    row["problem"] = " ".join([*problems, *([unsaved] if unsaved else [])]) or None
    row["fit_seconds"] = round(fitted - started, 3)
    row["seconds"] = round(time.perf_counter() - started, 3)
    return row


def _accuracy(release: Release, split: Split, plan: Plan) -> float:
    if isinstance(release, ModelRelease):
        return accuracy(release, split.test)
    if isinstance(release, PredictionRelease):
        answers = Rehearsal(release, plan.seed).predict(split.test.features)
        return float((answers.argmax(dim=1) == split.test.labels).double().mean())
    assert isinstance(release, DataRelease)
    baseline = methods.build("none", settings_for("none", release.dataset))
    trained = baseline.fit(
        network_for("none", release.dataset), release.dataset, plan.budget(1.0), rng=Reproducible(plan.seed)
    )
    assert isinstance(trained, ModelRelease)
    return accuracy(trained, split.test)


def _attack(release: Release, split: Split, plan: Plan) -> AttackResult:
    from noiseproof.attacks import AttackSplit, infer_membership

    most = 2 * min(ATTACKED, len(split.train), len(split.test))
    asked = min(most, plan.queries) if isinstance(release, PredictionRelease) else most
    if asked < 2:
        raise SettingError("a prediction method needs at least 2 queries to be attacked; give --queries 2 or more.")
    records = AttackSplit(split.train, split.test).limited(asked, plan.seed)
    name = "nearest" if isinstance(release, DataRelease) else plan.attack
    target: Any = Rehearsal(release, plan.seed + 1) if isinstance(release, PredictionRelease) else release
    return infer_membership(target, records, name, seed=plan.seed)


def _curve(result: AttackResult) -> dict[str, list[float]]:
    """The ROC curve, thinned where it has more points than a picture can show."""
    from noiseproof.attacks.result import Roc

    curve = Roc.of(result.scores, result.member, torch.ones(1, len(result.scores), dtype=torch.float64))
    fpr, tpr = curve.fpr[0], curve.tpr[0]
    if len(fpr) > _CURVE_POINTS:
        # Evenly by logarithm: what names few records with certainty is at the left end.
        places = torch.logspace(0, torch.log10(torch.tensor(float(len(fpr)))), _CURVE_POINTS, dtype=torch.float64)
        keep = torch.cat([torch.tensor([0]), places.round().long() - 1]).clamp(0, len(fpr) - 1).unique()
        fpr, tpr = fpr[keep], tpr[keep]
    return {"fpr": [round(x, 6) for x in fpr.tolist()], "tpr": [round(y, 6) for y in tpr.tolist()]}


def _save(release: Release, path: Path) -> tuple[str | None, str | None]:
    """The bundle's place, or what kept it from being saved: the numbers stand without it."""
    import errno

    try:
        release.save(path)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        said = "the disk is full" if full else f"the operating system says: {error.strerror}"
        return None, f"its bundle was not saved: {said}."
    return str(Path(path.parent.name) / path.name), None


# Settings of each method for a data set, from what is public about it: records, shape, classes.


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
    if "batch_size" in fields and "max_grad_norm" in fields and kind.proves:
        # The noise of a step does not grow with its batch: a large batch is worth its rate.
        chosen["batch_size"] = int(min(4096, max(512, 2 ** round(math.log2(max(1, records / 24))))))
    return chosen


def network_for(method: str, dataset: Dataset) -> Network:
    """The network that suits the records' shape; a dense one where the method is defined for no other."""
    from noiseproof.networks import Network, suggest

    public = dataset.public
    if method.startswith("neuron-"):
        return Network("lu-mlp", public.shape, dataset.classes)
    return suggest(public.shape, dataset.classes, public.kind)


# How a run's budget went over its steps or its answers.


POINTS = 8


def spending(release: Release, budget: Budget) -> dict[str, Any] | None:
    """Proven epsilon after a share of the steps or answers, at the budget's delta; None where nothing is proven.

    `{"unit": "steps" | "answers", "done": [...], "epsilon": [...]}`. It ends at the card's own number.
    """
    card, proven = release.card, release.card.proven
    if proven is None:
        return None
    ran = card.ran
    answer: Any = getattr(release, "answer", None)
    if "steps" in ran and {"sample_rate", "noise_multiplier"} <= ran.keys():
        from noiseproof.privacy import accountants
        from noiseproof.privacy.events import sampled_gaussian

        total, unit = int(ran["steps"]), "steps"

        def after(done: int) -> float:
            event = sampled_gaussian(float(ran["sample_rate"]), float(ran["noise_multiplier"]), done)
            return accountants.epsilon(
                event, budget.delta, accountant=proven.accountant, neighbours=budget.neighbours
            ).epsilon

    elif hasattr(answer, "cost") and "queries" in ran:
        total, unit = int(ran["queries"]), "answers"

        def after(done: int) -> float:
            return float(answer.cost(done, budget.delta)[0])

    else:
        return None
    done = sorted({max(1, round(total * share / POINTS)) for share in range(1, POINTS + 1)})
    return {
        "unit": unit,
        "done": [0, *done],
        "epsilon": [0.0, *(after(count) for count in done[:-1]), proven.epsilon],
    }
