"""The result of a comparison: a row for each method and budget, what to take for which need, and a sentence."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError, computed_field, model_validator

from noiseproof.errors import DataError
from noiseproof.privacy.budget import Budget, Neighbours
from noiseproof.releases.measures import NAMES, is_tie, stated
from noiseproof.run.row import BASELINE, Result, Row

RESULTS = "results.json"

NEEDS: Mapping[str, tuple[str, ...]] = {
    "publish a model": ("model", "data"),
    "answer queries": ("prediction", "model", "data"),
    "publish records": ("data",),
}
"""The kinds of release that meet each need. Whoever may publish a model may answer queries with it, and whoever may
publish records may train and publish a model on them: post-processing costs nothing more. Not the other way round."""


class Recommendation(Result):
    """The best proven method for a need at an epsilon, by the measure that ranks, or why there is none.

    Examples:
        >>> found = recommend([], Budget(3, 1e-5))[0]
        >>> found.need, found.method, found.why
        ('publish a model', None, 'no method for it was run')
    """

    need: str
    """What the release is for: one of `NEEDS`."""
    epsilon: float
    """The epsilon that was asked for."""
    method: str | None = None
    """The method's name; None if nothing that was run is proven within the budget."""
    accuracy: float | None = None
    """The method's, on the test records; None for a numeric target."""
    measure: str = "accuracy"
    """The measure that ranks: `accuracy`, `roc_auc` or `r2`."""
    value: float | None = None
    """The method's value of that measure; larger is better."""
    ties: tuple[str, ...] = ()
    """Proven methods for the need that are worse by no more than the standard error: as good, for all that is known."""
    proven: float | None = None
    """The epsilon that is proven for the method, at the delta that was asked for."""
    why: str
    """What it was chosen for, or why nothing was."""
    command: str | None = None
    """What makes the real release, run beside the data's file."""


class DataFacts(Result):
    """What is public about the records that methods were compared on, and how many there were."""

    name: str
    records: int
    test_records: int
    shape: tuple[int, ...]
    classes: int
    task: str = "classification"
    kind: str
    bounds: str
    notes: tuple[str, ...] = ()
    unit: str = "record"
    """Whose influence is to be bounded: a record's, or that of all records of a person."""


class Comparison(Result):
    """Everything that `compare` found out, as `results.json` holds it; `Comparison.read` reads that back.

    Examples:
        >>> comparison = Comparison(
        ...     data="digits", baseline=0.97, epsilons=(3.0,), delta=1e-5, neighbours="add-or-remove", queries=100,
        ...     rows=(Row(method="none", epsilon=3.0, delta=1e-5, status="done", kind="model", accuracy=0.97, seconds=1.0),),
        ...     about=DataFacts(
        ...         name="digits", records=1437, test_records=360, shape=(1, 8, 8), classes=10, kind="image", bounds="public"
        ...     ),
        ...     plan={}, versions={}, run="",
        ... )
        >>> _ = Path(RESULTS).write_text(comparison.model_dump_json())
        >>> Comparison.read(".").sentence
        'At epsilon 3 on digits nothing that was run is proven.'
    """

    data: str
    """The name of the data set."""
    baseline: float | None
    """The accuracy of the baseline, which trains without noise; None for a numeric target, and if it failed."""
    epsilons: tuple[float, ...]
    """The budgets, each of which every method ran at."""
    delta: float
    """The delta of every budget."""
    neighbours: Neighbours
    """When two data sets are neighbours, for every guarantee."""
    queries: int
    """How many answers prediction methods had to be able to give."""
    rows: tuple[Row, ...]
    """The baseline's, then one for each method at each epsilon."""
    about: DataFacts
    """What is public about the records, and how many there were."""
    plan: dict[str, Any]
    """The `Plan`, of the data and the schema only the files' names."""
    versions: dict[str, str]
    """Of noiseproof, Python, torch and NumPy."""
    run: str
    """A fingerprint of records, plan and versions, keyed with a salt that the folder's owner has."""
    recommendations: tuple[Recommendation, ...] = ()
    """One for each need at each epsilon; computed from the rows where it is not given."""
    sentence: str = ""
    """The result in a sentence; computed from the rows where it is not given."""
    report: str | None = None
    """Where the page with tables and pictures is; None if it could not be written."""
    caution: str = (
        "A comparison is a rehearsal: its randomness is seeded, so that nothing of it may leave, and choosing a method by "
        "exact accuracies is a look at the private records that no guarantee accounts for (`noiseproof choose` makes a "
        "choice that is paid for)."
    )
    """What whoever reads the result must know."""

    @property
    def ranked_by(self) -> str:
        """The measure by which methods are compared."""
        return next((row.ranked_by for row in self.rows if row.measures), "accuracy")

    @property
    def measured(self) -> dict[str, str]:
        """The measures that a row has, and what they are called."""
        has = [row.measures for row in self.rows if row.measures]
        return {field: name for field, name in NAMES.items() if any(getattr(one, field) is not None for one in has)}

    @property
    def remarks(self) -> list[str]:
        """What the measures alone do not tell: how accurate it is to name one class always, and which methods do or guess."""
        plain = next((row.measures for row in self.rows if row.measures and row.measures.majority), None)
        constant = [row for row in self.rows if row.measures and row.measures.only_class is not None]
        found = []
        if plain is not None and (plain.ranked_by != "accuracy" or constant):
            found.append(f"Always predicting the commonest class is {plain.majority:.1%} accurate.")
        for one_class in dict.fromkeys(row.measures.only_class for row in constant if row.measures):
            names = [row.method for row in constant if row.measures and row.measures.only_class == one_class]
            found.append(f"{', '.join(dict.fromkeys(names))}: {one_class} is predicted for every record.")
        guessing = [(row.remark, row.method) for row in self.rows if row.remark and row not in constant]
        for remark in dict.fromkeys(remark for remark, _ in guessing):
            names = [method for said, method in guessing if said == remark]
            found.append(f"{', '.join(dict.fromkeys(names))}: {remark}.")
        return found

    @property
    def choice(self) -> str:
        """What the card of a method that was chosen by this comparison must note."""
        return (
            f"The method was chosen by the exact accuracies of {len({row.method for row in self.rows}) - 1} methods on the "
            "same records (`noiseproof compare`), a look at them that this guarantee does not account for."
        )

    @computed_field  # type: ignore[prop-decorator]
    @property
    def epsilon(self) -> float | tuple[float, ...]:
        """The epsilon asked for, or all of them where there are several: for readers of the JSON."""
        return self.epsilons[0] if len(self.epsilons) == 1 else self.epsilons

    @model_validator(mode="before")
    @classmethod
    def _read_epsilons(cls, fields: Any) -> Any:
        if not isinstance(fields, Mapping) or "epsilon" not in fields:
            return fields
        given = fields["epsilon"]
        several = tuple(given) if isinstance(given, list | tuple) else (given,)
        return {"epsilons": several, **{key: value for key, value in fields.items() if key != "epsilon"}}

    @model_validator(mode="after")
    def _conclude(self) -> Self:
        if not self.sentence:
            found = tuple(
                each
                for epsilon in self.epsilons
                for each in recommend(
                    self.rows, Budget(epsilon, self.delta, self.neighbours, self.queries), self.about.unit
                )
            )
            found = tuple(each.model_copy(update={"command": self.release_command(each)}) for each in found)
            object.__setattr__(self, "recommendations", found)
            object.__setattr__(self, "sentence", verdict_sentence(self))
        return self

    def release_command(
        self,
        found: Recommendation,
        data: str | None = None,
        schema: str | None = None,
        folder: str | Path | None = None,
    ) -> str | None:
        """The command that trains exactly what a recommendation's row showed, with secure randomness.

        Args:
            found: A recommendation.
            data: Where the data are, if not in the current folder.
            schema: Where the schema is.
            folder: The comparison's, for the card's note on how the method was chosen.

        Returns:
            The command, or None where nothing is recommended.
        """
        row = next((row for row in self.rows if (row.method, row.epsilon) == (found.method, found.epsilon)), None)
        if row is None:
            return None
        table = self.about.kind == "table"
        records = f"synthetic.{'csv' if table else 'npz'}"
        options = {
            "data": data or self.plan.get("data", self.data),
            "target": self.plan.get("target"),
            "schema": schema or self.plan.get("schema"),
            **{name: self.plan.get(name) for name in ("task", "person", "encoding")},
            "epsilon": f"{found.epsilon:g}",
            "delta": f"{self.delta:g}",
            "neighbours": None if self.neighbours == "add-or-remove" else self.neighbours,
            "queries": str(self.queries) if row.kind == "prediction" else None,
            "recipe": self.plan.get("recipe") if row.method == "dp-sgd" else None,
            "chosen-by": None if folder is None else str(folder),
            "out": records if row.kind == "data" else "release",
        }
        words = ["noiseproof", "synth" if row.kind == "data" else "train", row.method]
        words += [
            word for name, value in options.items() if value not in (None, "auto") for word in (f"--{name}", value)
        ]
        words += [word for name in self.plan.get("skip", ()) for word in ("--skip", name)]
        if self.plan.get("target_bounds"):
            words += ["--target-bounds", *(f"{bound:g}" for bound in self.plan["target_bounds"])]
        return shlex.join(words)

    def __str__(self) -> str:
        return f"Comparison of {len(self.rows)} rows: {self.sentence}"

    def _repr_html_(self) -> str:
        from noiseproof.notebook import html_table

        def cell(row: Row, kind: str) -> str:
            promise = None if row.card is None else getattr(row.card, kind)
            return "—" if promise is None else f"{promise.epsilon:.3g}"

        rows = [
            (
                *(row.method, f"{row.epsilon:g}", stated(row.ranked_by, row.value)),
                *(cell(row, kind) for kind in ("claimed", "proven", "audited")),
                row.verdict or row.error or "—",
            )
            for row in self.rows
        ]
        columns = ("method", "asked ε", NAMES[self.ranked_by], "claimed ε", "proven ε", "audited ε ≥", "verdict")
        return html_table(self.sentence, columns, rows)

    def to_json(self) -> dict[str, Any]:
        """The fields as plain JSON values, as `results.json` has them; an infinite epsilon is the string `Infinity`."""
        return dict(json.loads(self.model_dump_json()))

    @classmethod
    def read(cls, folder: str | Path) -> Comparison:
        """The result of a finished comparison.

        Args:
            folder: What `compare` was given as `out`.

        Raises:
            DataError: If the folder holds no result that can be read.
        """
        path = Path(folder) / RESULTS
        try:
            return cls.model_validate(json.loads(path.read_text(encoding="utf-8")))
        except OSError:
            raise DataError(f"{folder} holds no {RESULTS}; `noiseproof compare --out {folder}` makes one.") from None
        except ValidationError:
            raise DataError(f"{path} is not the result of a comparison.") from None
        except (ValueError, RecursionError):
            raise DataError(f"{path} cannot be read; run the comparison again with --resume.") from None


def recommend(rows: Sequence[Row], budget: Budget, unit: str = "record") -> tuple[Recommendation, ...]:
    """For each need, the best row among those run at the budget's epsilon and proven within it for a record or a person.

    The measure that ranks follows from the task and what is public of the classes (`releases.measures`). Of equal values
    the smaller proven epsilon at the budget's delta wins, then the name. Values are measured on the same test records; a
    difference within the standard error is a tie, and the recommendation names its ties.

    Args:
        rows: What was run; the baseline and rows at another epsilon are left out.
        budget: What has to be proven.
        unit: Whom it has to be proven for: `record` or `person`. A proof for persons holds for records, too.

    Returns:
        One recommendation for each of `NEEDS`, in that order; without a method where nothing suits.

    Examples:
        >>> from noiseproof.privacy.card import Card, Proof
        >>> proof = Proof(epsilon=2.9, delta=1e-5, accountant="pld")
        >>> card = Card(
        ...     method="dp-sgd", place="gradients", neighbours="add-or-remove", randomness="reproducible", proven=proof
        ... )
        >>> row = Row(
        ...     method="dp-sgd", epsilon=3, delta=1e-5, status="done", kind="model", accuracy=0.9, card=card, seconds=2.0
        ... )
        >>> for found in recommend([row], Budget(3, 1e-5)):
        ...     print(f"{found.need}: {found.method}")
        publish a model: dp-sgd
        answer queries: dp-sgd
        publish records: None
    """
    asked = [row for row in rows if row.method != BASELINE and row.epsilon == budget.epsilon]
    proven = [(row, row.card.proven) for row in asked if row.card and row.card.proven and row.is_proven(budget, unit)]
    found = []
    for need, kinds in NEEDS.items():
        able = [each for each in proven if each[0].kind in kinds]
        if able:
            best, proof = min(
                able, key=lambda each: (-_worth(each[0]), each[1].epsilon_at(budget.delta), each[0].method)
            )
            ties = tuple(row.method for row, _ in able if row is not best and _tied(row, best))
            why = f"best {NAMES[best.ranked_by]} of the {len(able)} proven at epsilon {budget.epsilon:g}"
            if ties:
                why += f"; a tie with {', '.join(ties)}, within the standard error"
            if best.measures and best.measures.worst is not None:
                worst, top = (stated(best.ranked_by, each) for each in (best.measures.worst, best.measures.best))
                why += f"; {worst} to {top} over {best.measures.fits} fits, of which a release is one more"
            if best.measures and best.measures.remark:
                why += f"; it {best.measures.remark}"
            if best.kind != kinds[0]:
                why += "; its model can answer any number of queries" if best.kind == "model" else "; by its records"
            taken: dict[str, Any] = {
                "method": best.method,
                "accuracy": best.accuracy,
                "measure": best.ranked_by,
                "value": best.value,
                "ties": ties,
                "proven": proof.epsilon_at(budget.delta),
            }
        else:
            ran = any(row.kind in kinds for row in asked)
            why = "what was run for it proves nothing within the budget" if ran else "no method for it was run"
            taken = {}
        found.append(Recommendation(need=need, epsilon=budget.epsilon, why=why, **taken))
    return tuple(found)


def _worth(row: Row) -> float:
    return -math.inf if row.value is None else row.value


def _tied(row: Row, best: Row) -> bool:
    return bool(row.measures and best.measures and is_tie(row.measures, best.measures))


def verdict_sentence(comparison: Comparison) -> str:
    """The result in a sentence: what keeps how much of the baseline's accuracy, and what was refuted."""
    parts = [_at(comparison, epsilon, first=number == 0) for number, epsilon in enumerate(comparison.epsilons)]
    refuted: dict[str, list[tuple[str, str]]] = {}
    for row in comparison.rows:
        if row.verdict == "refuted":
            refuted.setdefault(row.method, []).append(_refutation(row))
    alike: dict[str, list[tuple[str, str]]] = {}
    for method, found in refuted.items():
        claims, bounds = (", ".join(column) for column in zip(*found, strict=True))
        alike.setdefault(claims, []).append((method, bounds))
    for claims, of in alike.items():
        if len(of) == 1:
            said = f"claim of {claims} was" if "," not in claims else f"claims of {claims} were"
            parts.append(f"{of[0][0]}'s {said} refuted: at least {of[0][1]}")
        else:
            names = ", ".join(f"{method} (at least {bounds})" for method, bounds in of)
            parts.append(f"claims of {claims} were refuted: {names}")
    failed = dict.fromkeys(row.method for row in comparison.rows if not row.done)
    return "; ".join([*parts, *([f"{', '.join(failed)} came to no result"] if failed else [])]) + "."


def _refutation(row: Row) -> tuple[str, str]:
    """The claim that was refuted and the bound: the run's claim if it was, else the one for exactly what was played."""
    assert row.card is not None
    assert row.audit is not None
    claim, bound = row.card.claimed, row.audit.audited.epsilon
    if claim is not None and claim.refuted_by(row.audit.audited):
        return f"{claim.epsilon:.3g}", f"{bound:.3g}"
    proof = row.card.proven
    if proof is not None and proof.refuted_by(row.audit.audited):
        return f"{proof.epsilon:.3g}, proven", f"{bound:.3g}"
    played = row.audit.claimed
    return f"{played.epsilon if played else 0:.3g} in its game", f"{bound:.3g}"


_ARTICLES = {"roc_auc": "a ROC AUC", "r2": "an R²"}


def _at(comparison: Comparison, epsilon: float, *, first: bool) -> str:
    chosen = {found.need: found for found in comparison.recommendations if found.epsilon == epsilon and found.method}
    where = f"{'At' if first else 'at'} epsilon {epsilon:g}" + (f" on {comparison.data}" if first else "")
    if not chosen:
        return f"{where} nothing that was run is proven"
    best = chosen.get("publish a model") or chosen["answer queries"]
    answers = "" if "publish a model" in chosen else f" for {comparison.queries} answers"
    if best.measure != "accuracy":
        plain = next((row.value for row in comparison.rows if row.method == BASELINE), None)
        than = "" if plain is None else f" (the baseline's: {stated(best.measure, plain)})"
        value = stated(best.measure, best.value)
        return f"{where}, {best.method} has {_ARTICLES[best.measure]} of {value}{than}{answers}, proven"
    accuracy, baseline = best.accuracy or 0.0, comparison.baseline
    if not baseline:
        return f"{where}, {best.method} is {accuracy:.1%} accurate{answers}, proven"
    kept = f"{accuracy / baseline:.0%} of the baseline's accuracy ({accuracy:.1%} of {baseline:.1%})"
    return f"{where}, {best.method} keeps {kept}{answers}, proven"
