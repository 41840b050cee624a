"""One row of a comparison: train, measure, attack, audit, save."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch

from noiseproof import methods, recipes
from noiseproof.compare.plan import Plan, Task
from noiseproof.compare.settings import network_for, settings_for
from noiseproof.compare.spending import spending
from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.guarantees import Reproducible
from noiseproof.progress import Progress
from noiseproof.releases import DataRelease, ModelRelease, PredictionRelease, Release, accuracy, check_features

if TYPE_CHECKING:
    from noiseproof.attacks import AttackResult
    from noiseproof.data.splits import Split

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
    from noiseproof.attacks.membership import AttackName

    most = 2 * min(ATTACKED, len(split.train), len(split.test))
    asked = min(most, plan.queries) if isinstance(release, PredictionRelease) else most
    if asked < 2:
        raise SettingError("a prediction method needs at least 2 queries to be attacked; give --queries 2 or more.")
    records = AttackSplit(split.train, split.test).limited(asked, plan.seed)
    name = cast("AttackName", "nearest" if isinstance(release, DataRelease) else plan.attack)
    target: Any = Rehearsal(release, plan.seed + 1) if isinstance(release, PredictionRelease) else release
    return infer_membership(target, records, name, seed=plan.seed)


def _curve(result: AttackResult) -> dict[str, list[float]]:
    """The ROC curve, thinned where it has more points than a picture can show."""
    from noiseproof.attacks.roc import Roc

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
