"""`noiseproof compare`: the main job: every method on your data at one budget."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from noiseproof.cli import options as o
from noiseproof.cli import output
from noiseproof.cli.registry import command
from noiseproof.errors import SettingError

if TYPE_CHECKING:
    from noiseproof.run import Comparison, Plan, Row, RowKey, Watch
    from noiseproof.run.results import DataFacts


@command(
    "compare", "Example: noiseproof compare --data people.csv --target income --schema people.json --epsilon 0.5,1,3"
)
@o.reads_data
def run(
    data: o.Data = "digits",
    *,
    about: Mapping[str, Any],
    epsilon: Annotated[
        str, typer.Option("--epsilon", "-e", help="Privacy budget: an epsilon, or several as 0.5,1,3.")
    ] = "3",
    delta: o.Delta = 1e-5,
    neighbours: o.NeighboursOption = "add-or-remove",
    methods: Annotated[
        str | None, typer.Option(help="Methods as a,b; `proven` for all that have a proof; without it every method.")
    ] = None,
    fits: Annotated[
        int, typer.Option(help="Times each proven method is fitted: results are means, ± shows what its noise does.")
    ] = 3,
    queries: Annotated[int, typer.Option(help="Answers that a prediction method must be able to give.")] = 100,
    attack: Annotated[str, typer.Option(help="shadow, loss, lira, lira-offline, gap or label-only.")] = "loss",
    recipe: o.RecipeOption = "auto",
    trials: Annotated[int, typer.Option(help="Trials of each method's audit, in each of its two worlds.")] = 1000,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the results, in place of an earlier run's; else runs/compare-DATA.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(help="Methods to run at a time; by default one per core.")] = None,
    ray: o.RayOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the finished rows of an interrupted run.")] = False,
    imports: Annotated[
        list[str] | None,
        typer.Option("--import", metavar="MODULE", help="A module that registers methods of your own."),
    ] = None,
    seed: o.Seed = 0,
    json: o.Json = False,
) -> None:
    """Train every method on private records at one budget, attack and audit each, and show what each promise is worth.

    Each method runs in a process apart: one that fails loses only its own row. Results, bundles, pictures and a page that
    works offline are written to --out. They are for the data's owner: the randomness is seeded and accuracies are exact.
    """
    from noiseproof.run import Plan, compare
    from noiseproof.run.comparison import default_folder

    plan = Plan(
        data=data,
        **{**about, "schema": None if about["schema"] is None else str(about["schema"])},
        epsilons=_epsilons(epsilon),
        delta=delta,
        neighbours=neighbours,
        methods=tuple(name.strip() for name in methods.split(",") if name.strip()) if methods else (),
        queries=queries,
        fits=fits,
        attack=attack,
        trials=trials,
        seed=seed,
        recipe=recipe,
        imports=tuple(imports or ()),
    )
    folder = out or default_folder(data)
    shown = _Bars()
    with shown.bars:
        comparison = compare(plan, folder, jobs=jobs, ray=ray, resume=resume, watch=cast("Watch", shown))
    if json:
        output.emit(comparison)
    else:
        show(comparison, plan, folder)


def _epsilons(given: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in given.split(","))
    except ValueError:
        raise SettingError(f"--epsilon takes a number, or several as 0.5,1,3, not {given!r}.") from None


def show(comparison: Comparison, plan: Plan, folder: Path) -> None:
    """Print a comparison as a table, what to take for which need and how to make it, and its one sentence."""
    from noiseproof.releases.measures import NAMES, stated

    several = len(comparison.epsilons) > 1
    ranked_by, fits = comparison.ranked_by, comparison.plan.get("fits", 1)
    # Beside the measure that ranks the accuracy, where there is one: it is what people know.
    measures = list(dict.fromkeys((ranked_by, *(["accuracy"] if comparison.baseline is not None else []))))
    rows = []
    for row in comparison.rows:
        cells = [row.method, *(["—" if row.method == "none" else f"{row.epsilon:g}"] if several else [])]
        if row.card is None or row.attack is None:
            cells += [*(["—"] * (3 + len(measures))), "failed", "—"]
        else:
            promises = map(output.guarantee, (row.card.claimed, row.card.proven, row.card.audited))
            error = row.measures.error if row.measures else None
            ranked = stated(ranked_by, row.value)
            ranked = ranked if error is None else f"{ranked.rstrip('%')}±{stated(ranked_by, error)}"
            values = [ranked if name == ranked_by else stated(name, row.accuracy) for name in measures]
            # With persons, it must be seen which methods state something for a person, and which for a record.
            of = f", for a {row.card.unit}" if comparison.plan.get("person") else ""
            cells += [*values, *promises, f"{row.verdict}{of}", f"{row.attack.auc:.3f}"]
        rows.append((*cells, f"{row.seconds:.{1 if row.seconds < 9.95 else 0}f}"))
    asked = ", ".join(f"{value:g}" for value in comparison.epsilons)
    output.show(
        f"Every method on {comparison.data} at epsilon {asked}, delta {comparison.delta:g}",
        (
            *("method|", *(["asked ε"] if several else []), *(f"{NAMES[name]}|" for name in measures)),
            *("claimed ε", "proven ε", "audited ε ≥", "verdict", "attack", "s"),
        ),
        rows,
        caption=f"±: standard error of a release, by other test records and by its own noise (over {fits} fits of each "
        "proven method); claimed: by the method's authors; proven and verdict: for what ran, had its randomness been secure; "
        "audited: what an attack showed, at 95% confidence; "
        f"attack: AUC of the {comparison.plan['attack']} attack, 0.5 is guessing. Prediction methods: with the noise "
        f"of {comparison.queries} answers.",
        narrow=True,
    )
    lines = [f"{row.method}: {row.error or row.problem}" for row in comparison.rows if row.error or row.problem]
    lines += comparison.remarks
    made: dict[str, str] = {}
    for found in comparison.recommendations:
        if found.method is not None:
            at = f" at epsilon {found.epsilon:g}" if several else ""
            lines.append(f"To {found.need}{at}: {found.method} ({stated(found.measure, found.value)}; {found.why}).")
            command = comparison.release_command(found, plan.data, plan.schema, folder)
            made.setdefault(str(command), found.method)
    lines.append(comparison.caution)
    lines += [f"To release {method}: {command}" for command, method in made.items()]
    if comparison.report is not None:
        lines.append(f"The page: {comparison.report}")
    for line in lines:
        output.say(line)
    output.stdout.print(comparison.sentence, style="bold", markup=False, highlight=False, soft_wrap=True)


class _Bars:
    """A `Watch` with bars on stderr: one for the rows, one for each method at work; lines where it is no terminal."""

    def __init__(self) -> None:
        self.bars = output.bars()
        self._rows = self.bars.add_task("rows", total=None)
        self._shown: dict[RowKey, tuple[str, Any]] = {}

    def loaded(self, data: DataFacts, rows: tuple[RowKey, ...], remarks: tuple[str, ...]) -> None:
        output.note(*data.notes, *remarks)
        self.bars.update(self._rows, total=len(rows))

    def at(self, key: RowKey, what: str, done: int, total: int) -> None:
        if self._shown.get(key, ("",))[0] != what:
            self._remove(key)
            doing = key.name if what == key.method else f"{key.name}: {what}"
            self._shown[key] = what, self.bars.add_task(f"  {doing}", total=total)
        self.bars.update(self._shown[key][1], completed=done, total=total)

    def _remove(self, key: RowKey) -> None:
        if key in self._shown:
            self.bars.remove_task(self._shown.pop(key)[1])

    def finished(self, key: RowKey, row: Row, kept: bool) -> None:
        self._remove(key)
        self.bars.advance(self._rows)
        if not output.stderr.is_terminal:
            from noiseproof.releases.measures import stated

            how = "kept" if kept else f"{row.seconds:.1f} s"
            found = f"{stated(row.ranked_by, row.value)}, {row.verdict}" if row.done else row.error
            output.stderr.print(f"{key.name}: {found} ({how})", markup=False, highlight=False, soft_wrap=True)

    def trouble(self, sentence: str) -> None:
        output.note(sentence)
