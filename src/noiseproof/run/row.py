"""One row of a comparison: what it states, and how it is computed: train, measure, attack, audit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, field_validator

from noiseproof.errors import NoiseproofError, SettingError
from noiseproof.methods import reading, recipes
from noiseproof.privacy import EventLog, Randomness, Reproducible, accountants
from noiseproof.privacy.budget import Budget
from noiseproof.privacy.card import Audit, Card, Claim, Proof, Verdict
from noiseproof.progress import Progress
from noiseproof.releases.measures import Measures, combined, evaluate, measure
from noiseproof.releases.release import DataRelease, ModelRelease, PredictionRelease, Release, check_features
from noiseproof.run.training import resolve

if TYPE_CHECKING:
    from noiseproof.attacks import AttackResult
    from noiseproof.data.splits import Split
    from noiseproof.run.plan import Plan, RowKey

BASELINE = "none"
"""The method that everything is measured against; it has no budget and runs once."""

_SLACK = 1 + 1e-6
"""Accountants agree to some 1e-6."""


class Result(BaseModel):
    """An immutable result; fields that it does not know are kept, so that other versions' results can be read."""

    model_config = ConfigDict(frozen=True, extra="allow", ser_json_inf_nan="strings")


class Curve(Result):
    """A ROC curve: the share of members named at each share of others named."""

    fpr: tuple[float, ...]
    tpr: tuple[float, ...]


class AttackSummary(Result):
    """What a membership attack gained, as `AttackResult.to_json` states it (see there for all its fields)."""

    attack: str
    auc: float
    advantage: float
    tpr_at_fpr: dict[str, float]
    intervals: dict[str, Any]
    members: int
    nonmembers: int
    roc: Curve


class AuditSummary(Result):
    """What playing the method's game showed, as `AuditResult.to_json` states it (see there for all its fields)."""

    game: str
    claimed: Claim | None
    proven: Proof | None
    audited: Audit
    verdict: str
    contradicts_proof: bool = False
    estimator: str


class Spending(Result):
    """Proven epsilon after so many steps, answers, or (where there was more than steps) noised releases."""

    unit: Literal["steps", "releases", "answers"]
    done: tuple[int, ...]
    epsilon: tuple[float, ...]


class Row(Result):
    """What a comparison found out about one method at one epsilon: one of `Comparison.rows`.

    Attributes:
        method: The method's name; `none` is the baseline, which has no noise.
        epsilon: The epsilon that was asked for, not the one proven, which is on the card.
        delta: The delta that was asked for.
        status: `done`, or `failed`; then `error` says why and most other fields are None.
        error: Why there is no result, in a sentence without private values.
        kind: The kind of release: `model`, `prediction` or `data`.
        accuracy: On the test records, exact, for the eyes of their owner; None for a numeric target.
        measures: That and what else tells how good the answers are; None in results of earlier versions.
        network: The network's name, behind that of its recipe if there is one; None for methods that train no network.
        settings: The method's own settings, as they were run.
        queries: How many answers a prediction release can give; None for other kinds.
        card: The release's card, with what the audit found.
        attack: What the membership attack gained.
        audit: What playing the method's game showed; None where that failed.
        verdict: What the card would say had the randomness been secure; `refuted` also where only the game refutes it.
        spending: How the proven epsilon grew over the training or the answers; None where nothing is proven or no log is kept.
        bundle: The bundle's folder within the folder of the comparison.
        problem: What went wrong beside the training: an audit that failed, a bundle that could not be saved.
        fit_seconds: What the first fit took.
        seconds: What the row took, with every fit, the attack and the audit.

    Examples:
        >>> row = Row(method="dp-sgd", epsilon=3, delta=1e-5, status="failed", error="ran out of memory.", seconds=4.2)
        >>> row.done
        False
    """

    method: str
    epsilon: float
    delta: float
    status: Literal["done", "failed"]
    error: str | None = None
    kind: str | None = None
    accuracy: float | None = None
    measures: Measures | None = None
    network: str | None = None
    settings: dict[str, Any] | None = None
    queries: int | None = None
    card: Card | None = None
    attack: AttackSummary | None = None
    audit: AuditSummary | None = None
    verdict: Verdict | None = None
    spending: Spending | None = None
    bundle: str | None = None
    problem: str | None = None
    fit_seconds: float | None = None
    seconds: float

    @property
    def done(self) -> bool:
        """Whether the method came to a result."""
        return self.status == "done"

    @property
    def ranked_by(self) -> str:
        """The measure by which rows are compared."""
        return self.measures.ranked_by if self.measures else "accuracy"

    @property
    def value(self) -> float | None:
        """That measure: the larger, the better."""
        return self.measures.value if self.measures else self.accuracy

    @property
    def remark(self) -> str | None:
        """Said of answers that are hardly better than guesses: under what noise; None of all others."""
        if self.measures is None or not self.measures.guesses:
            return None
        if self.method == BASELINE:
            return "near guessing, though without noise: these records teach the network little"
        if self.queries and self.queries > 1:
            return f"near guessing with the noise of {self.queries} answers; fewer get less each (--queries)"
        return f"near guessing with the noise that epsilon {self.epsilon:g} asks for of so many records"

    @field_validator("card", mode="before")
    @classmethod
    def _without_verdict(cls, card: Any) -> Any:
        # It is computed from the rest, never read.
        return {key: value for key, value in card.items() if key != "verdict"} if isinstance(card, Mapping) else card

    def is_proven(self, budget: Budget, unit: str = "record") -> bool:
        """Whether the card proves the budget for a unit, and no audit contradicts the proof; a person has all its records."""
        card = self.card
        if not self.done or card is None or card.proven is None:
            return False
        return (
            card.unit in (unit, "person")
            and card.neighbours == budget.neighbours
            and card.proven.epsilon_at(budget.delta) <= budget.epsilon * _SLACK
            and self.verdict != "refuted"
            and not (self.audit and self.audit.contradicts_proof)
        )


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
        self.network, self.labels_only, self.training = release.network, release.labels_only, release.training

    def predict(self, features: torch.Tensor) -> torch.Tensor:
        """Noisy class probabilities, (records, classes)."""
        return self._release.answer_paid(check_features(features, self._release.public.shape), self._rng)


def compute_row(plan: Plan, key: RowKey, split: Split, progress: Progress) -> tuple[Row, Release]:
    """Everything that the comparison says about one method at one epsilon, and the release, with its audited card.

    The seed makes the row reproducible whatever ran before it. Measures, attack and audit are for the data's owner.
    Answers of a `PredictionRelease` are rehearsed: it is measured on the whole test part with the noise of
    `plan.queries` answers, its attacker asks `plan.queries` of them, and the release has all its queries left.
    Synthetic records are measured by the baseline trained on them alone. A proven sibling is fitted `plan.fits`
    times and its measures are means: a release is one more draw of its noise. The first fit is attacked and returned.
    """
    from noiseproof.audits import audit

    started = time.perf_counter()
    budget = plan.budget(key.epsilon)
    kind, settings = reading(key.method)
    recipe = plan.recipe if kind.name in recipes.METHODS else "none"
    fitting = resolve(kind.name, split.train, epsilon=key.epsilon, recipe=recipe, settings=settings)

    def fit(number: int) -> Release:
        rng: Randomness = Reproducible(plan.seed)
        return fitting.fit(split.train, budget, rng=rng.spawn(number) if number else rng, progress=progress)

    release = fit(0)
    fitted = time.perf_counter()
    # Published methods, whose proofs are weaker than their claims, are not recommended; one fit shows where they are.
    again = range(1, plan.fits if kind.proves and kind.paper is None else 1)
    measured = combined(
        [_measure(release, split, plan), *(_measure(fit(number), split, plan, number) for number in again)]
    )
    attacked = _attack(release, split, plan)
    audited, problem = None, None
    try:
        audited = audit(
            fitting.method.game(budget), trials=plan.trials, seed=plan.seed, timeout=None, progress=progress
        )
        release.card = release.card.with_audit(audited.audited)
    except NoiseproofError as error:
        # What was trained and measured stands without its audit.
        problem = f"its audit failed: {error}"
    # A claim can be refuted in the game, for what the game ran, or for the whole run.
    refuted = audited is not None and audited.verdict == "refuted"
    row = Row(
        method=key.method,
        epsilon=key.epsilon,
        delta=plan.delta,
        status="done",
        kind=release.kind,
        accuracy=measured.accuracy,
        measures=measured,
        network=fitting.network_name,
        settings=fitting.method.settings(),
        queries=plan.queries if isinstance(release, PredictionRelease) else None,
        card=release.card,
        attack=AttackSummary.model_validate({**attacked.to_json(), "roc": _curve(attacked)}),
        audit=None if audited is None else AuditSummary.model_validate(audited.to_json()),
        verdict="refuted" if refuted else release.card.verdict_if_secure,
        spending=spending(release, budget),
        problem=problem,
        fit_seconds=round(fitted - started, 3),
        seconds=round(time.perf_counter() - started, 3),
    )
    return row, release


def _measure(release: Release, split: Split, plan: Plan, number: int = 0) -> Measures:
    if isinstance(release, ModelRelease):
        return evaluate(release, split.test)
    if isinstance(release, PredictionRelease):
        answers = Rehearsal(release, plan.seed + 2 * number).predict(split.test.features)
        return measure(answers, split.test, release.settings.get("threshold"))
    assert isinstance(release, DataRelease)
    baseline = resolve(BASELINE, release.dataset, epsilon=1.0)
    trained = baseline.fit(release.dataset, plan.budget(1.0), rng=Reproducible(plan.seed))
    assert isinstance(trained, ModelRelease)
    return evaluate(trained, split.test)


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


def _curve(result: AttackResult) -> Curve:
    """The ROC curve, thinned where it has more points than a picture can show."""
    from noiseproof.attacks.result import Roc

    curve = Roc.of(result.scores, result.member, torch.ones(1, len(result.scores), dtype=torch.float64))
    fpr, tpr = curve.fpr[0], curve.tpr[0]
    if len(fpr) > _CURVE_POINTS:
        # Evenly by logarithm: what names few records with certainty is at the left end.
        places = torch.logspace(0, torch.log10(torch.tensor(float(len(fpr)))), _CURVE_POINTS, dtype=torch.float64)
        keep = torch.cat([torch.tensor([0]), places.round().long() - 1]).clamp(0, len(fpr) - 1).unique()
        fpr, tpr = fpr[keep], tpr[keep]
    return Curve(fpr=tuple(round(x, 6) for x in fpr.tolist()), tpr=tuple(round(y, 6) for y in tpr.tolist()))


POINTS = 8


def spending(release: Release, budget: Budget) -> Spending | None:
    """Proven epsilon after a share of the training's releases or of the answers, at the budget's delta.

    Prefixes of the training's own event log are accounted, with everything that is in it: statistics, histograms and
    whatever else was looked at beside the steps. It ends at the card's own number. None where nothing is proven, or the
    release keeps no log.
    """
    proven, log = release.card.proven, release.event_log
    answer: Any = getattr(release, "answer", None)
    unit: Literal["steps", "releases", "answers"]
    if proven is None:
        return None
    if log:
        total = sum(count for _, count in log)
        unit = "steps" if release.card.ran.get("steps") == total else "releases"
        accountant = proven.accountant if proven.accountant in accountants.ACCOUNTANTS else "rdp"

        def after(done: int) -> float:
            prefix = EventLog()
            for event, count in log:
                prefix.append(event, min(count, done - len(prefix)))
            terms = {"accountant": accountant, "neighbours": budget.neighbours}
            return accountants.epsilon(prefix.event, budget.delta, **terms).epsilon

    elif hasattr(answer, "cost") and isinstance(release, PredictionRelease):
        total, unit = release.queries, "answers"

        def after(done: int) -> float:
            return float(answer.cost(done, budget.delta)[0])

    else:
        return None
    done = sorted({max(1, round(total * share / POINTS)) for share in range(1, POINTS + 1)})
    # Where the proof is by a tighter way than one of the accountants, no point may lie above it.
    course = (min(after(count), proven.epsilon) for count in done[:-1])
    return Spending(unit=unit, done=(0, *done), epsilon=(0.0, *course, proven.epsilon))
