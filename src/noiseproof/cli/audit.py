"""`noiseproof audit`: a lower bound on epsilon, against the claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from noiseproof.cli import options as o
from noiseproof.cli import output
from noiseproof.cli.registry import command
from noiseproof.errors import SettingError
from noiseproof.files import check_out

if TYPE_CHECKING:
    from noiseproof.audits import AuditResult, OneRunResult, Program
    from noiseproof.audits.observed import Observed
    from noiseproof.audits.worlds import World
    from noiseproof.data import Dataset, Split
    from noiseproof.data.splits import Canary
    from noiseproof.privacy.card import Claim


@command(
    "audit",
    "Examples: noiseproof audit dp-sgd --epsilon 1 --trials 2000; "
    "noiseproof audit dp-sgd --data people.csv --target income --end-to-end; "
    'noiseproof audit --program "python vendor.py {data} {release}.json" --data people.csv --canary 17 --epsilon 2',
)
@o.reads_data
def run(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[METHOD|BUNDLE]",
            help="A method's name, or the folder of a bundle; nothing with --program.",
            autocompletion=o.METHODS,
        ),
    ] = None,
    program: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="A stranger's program instead: it reads the file {data} and writes the file {release}, with any ending.",
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", "-e", help="What is claimed: epsilon, greater than 0; 1 for a method without it."),
    ] = None,
    delta: o.Delta = 1e-5,
    neighbours: o.NeighboursOption = "add-or-remove",
    trials: Annotated[
        int | None,
        typer.Option(help="Runs in each world; without it 2000 of a game, 500 of a program, 100 end to end."),
    ] = None,
    confidence: Annotated[float, typer.Option(help="Confidence of the bound.")] = 0.95,
    settings: o.Settings = None,
    end_to_end: Annotated[
        bool, typer.Option("--end-to-end", help="Train whole runs on two neighbouring files instead of playing a game.")
    ] = False,
    data: o.Data = "digits",
    *,
    about: Mapping[str, Any],
    records: Annotated[int, typer.Option(help="End to end: records to take of the data, at random.")] = 400,
    canary: Annotated[
        str | None,
        typer.Option(
            metavar="ROW[:CLASS]",
            help="End to end, or of a program's CSV file: the record that one world lacks, by its row (from 0); end to end "
            "perhaps with another class, and without it the worst of several.",
        ),
    ] = None,
    neighbour: Annotated[
        Path | None, typer.Option(help="Of a program: a file that differs from --data in one record.")
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Of a program: reads {release} and prints a number, larger where the record seems to be in; without it, "
            "a score is learned.",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(help="Of a program: seconds that a run may take.")] = 60.0,
    unit: o.UnitOption = "record",
    queries: Annotated[int, typer.Option(help="End to end: answers that a prediction method gives.")] = 1,
    network: o.NetworkOption = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="End to end, or of a program: keep finished runs here (private), and go on from those there are.",
        ),
    ] = None,
    jobs: o.Jobs = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the result to this JSON file, for `noiseproof sign` and `report`.")
    ] = None,
    force: o.Force = False,
    seed: o.Seed = 0,
    json: o.Json = False,
) -> None:
    """Play the game that hits a method hardest, or run a whole training or a stranger's program, and say what that refutes.

    A bundle's method is audited with the bundle's own settings, and the result is written into its card. End to end, a
    file with a canary and one without are loaded, split, trained on, saved and loaded as any other, with secure
    randomness, and everything that leaves is held against which file it came from. A stranger's program is run with your
    rights on two neighbouring files; what it prints is not shown. The result says which epsilon the audit could have found.
    """
    from functools import partial

    from noiseproof import methods
    from noiseproof.audits import Program, audit, audit_end_to_end
    from noiseproof.data import load
    from noiseproof.privacy.budget import Budget, check_delta, check_epsilon, check_neighbours
    from noiseproof.privacy.card import Claim
    from noiseproof.releases import bundles

    if (subject is None) == (program is None):
        raise SettingError("give a method, a bundle, or --program with a stranger's command line.")
    if out is not None:
        check_out(out, force=force, inputs=(data, neighbour))
    progress = output.RichProgress()
    if subject is None:
        assert program is not None
        if end_to_end or settings or network:
            raise SettingError("--end-to-end, --set and --network are for methods of this library, not for a program.")
        if epsilon is None:
            raise SettingError("say with --epsilon (and --delta) what the program's vendor claims.")
        o.check_unit(unit, 1)
        claimed = Claim(
            epsilon=check_epsilon(epsilon),
            delta=check_delta(delta),
            unit="person" if unit == "person" else "record",
            neighbours=check_neighbours(neighbours),
            source="the program's vendor",
        )
        result = _audit_program(
            Program(program, score, timeout),
            Path(data),
            neighbour,
            canary,
            claimed,
            trials=500 if trials is None else trials,
            confidence=confidence,
            seed=seed,
            jobs=jobs,
            folder=resume,
            progress=progress,
        )
        show_audit(json, {"method": None, "program": program, **result.to_json()}, result, out)
        return
    if neighbour is not None or score is not None:
        raise SettingError("--neighbour and --score are for a stranger's --program.")
    epsilon = 1.0 if epsilon is None else epsilon
    bundle = Path(subject) if Path(subject).is_dir() else None
    if bundle is not None:
        if end_to_end:
            raise SettingError("an end-to-end audit trains anew; give the method's name, not a bundle.")
        if settings:
            raise SettingError("a bundle is audited with its own settings; leave --set away.")
        release = bundles.load(bundle)
        chosen = methods.build(release.method, release.settings)
        card = release.card
        promise = card.claimed or card.proven
        budget = Budget(
            promise.epsilon if promise else epsilon,
            promise.delta if promise else delta,
            card.neighbours,
            # Each of a prediction release's answers has the noise of them all.
            getattr(release, "queries", 1),
        )
        o.note_inside(release, bundle)
    else:
        chosen = methods.build(subject, o.read_settings(settings))
        budget = Budget(epsilon, delta, check_neighbours(neighbours), queries)
    if end_to_end:
        split = load(data, progress=progress, **about)
        dataset, chosen_canary = _with_canary(split, canary)
        options = ["--epsilon", str(epsilon), "--delta", str(delta), "--neighbours", budget.neighbours]
        options += [] if chosen.place == "losses" else ["--queries", str(queries)]
        options += [] if network is None else ["--network", network]
        options += [word for text in settings or () for word in ("--set", text)]
        result = audit_end_to_end(
            dataset,
            partial(train_once, subject, options),
            name=" ".join([subject, *options]),
            delta=delta,
            relation=budget.neighbours,
            canary=chosen_canary,
            records=records,
            trials=100 if trials is None else trials,
            confidence=confidence,
            seed=seed,
            jobs=jobs,
            folder=resume,
            progress=progress,
        )
    else:
        o.check_unit(unit, 1)
        game = chosen.person_game(budget) if unit == "person" else chosen.game(budget)
        result = audit(
            game, trials=2000 if trials is None else trials, confidence=confidence, seed=seed, progress=progress
        )
    if bundle is not None:
        bundles.write_card(bundle, card.with_audit(result.audited))
    result = result.with_power()
    show_audit(json, {"method": chosen.name, **result.to_json()}, result, out)


def show_audit(json: bool, document: dict[str, Any], result: AuditResult | OneRunResult, out: Path | None) -> None:
    """Print what an audit found, and write it to a file if that is asked for."""
    from noiseproof.files import write_whole

    document = {"kind": "audit", **document}
    if out is not None:
        write_whole(out, output.as_json(document))
    found = result.audited
    promised = [document[name] and f"{document[name]['epsilon']:.3g}" for name in ("claimed", "proven")]
    output.answer(
        json,
        document,
        found.game,
        ("claimed ε", "proven ε", "audited ε at least", "δ", "unit", "confidence", "trials", "verdict"),
        [(*promised, found.epsilon, found.delta, document["unit"], found.confidence, found.trials, result.verdict)],
        caption=None if result.power is None else result.power.sentence,
    )
    output.note(*document["notes"])


def _audit_program(
    program: Program, data: Path, neighbour: Path | None, canary: str | None, claimed: Claim, **options: Any
) -> AuditResult:
    """Audit a program on two files; the second is written here where a record is named instead."""
    import tempfile

    from noiseproof.audits import audit_program
    from noiseproof.audits.neighbouring import without_row

    if (neighbour is None) == (canary is None):
        raise SettingError("give the second file with --neighbour, or name the record that it lacks with --canary.")
    if neighbour is not None:
        return audit_program(program, data, neighbour, claimed, **options)
    assert canary is not None
    if not canary.isdecimal():
        raise SettingError(f"--canary takes the row of a record of {data}, from 0, not {canary!r}.")
    with tempfile.TemporaryDirectory(prefix="noiseproof-") as folder:
        return audit_program(
            program, data, without_row(data, int(canary), Path(folder) / f"data{data.suffix}"), claimed, **options
        )


def train_once(method: str, options: Sequence[str], world: World, out: Path) -> Observed | None:
    """One whole run by the command that a user types; what it let out, where that is no bundle."""
    import contextlib
    import io

    from noiseproof import methods
    from noiseproof.audits.observed import observe_records
    from noiseproof.cli import main
    from noiseproof.errors import NoiseproofError

    given = ["--data", str(world.data), *(["--schema", str(world.schema)] if world.schema else []), *options, "--json"]
    if methods.get(method).place == "losses":
        out.mkdir()
        out /= "records.npz" if world.schema is None else "records.csv"
        command = ["synth", method, "--no-quality", "--out", str(out), *given]
    else:
        command = ["train", method, "--no-baseline", "--out", str(out), *given]
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            main(command)
    except SystemExit as stop:
        if stop.code:
            raise NoiseproofError(said.getvalue().rpartition("error:")[2].strip()) from None
    return observe_records(out, world) if command[0] == "synth" else None


def _with_canary(split: Split, canary: str | None) -> tuple[Dataset, Canary | None]:
    """All records, without the one that is to be the canary."""
    import torch

    dataset = split.train.joined(split.test)
    if canary is None:
        return dataset, None
    row, _, name = canary.partition(":")
    classes = dataset.public.classes
    if not row.isdecimal() or int(row) >= len(dataset) or (name and name not in classes):
        raise SettingError(
            f"--canary takes a row from 0 to {len(dataset) - 1} and perhaps a class after a colon, not {canary!r}."
        )
    rows = torch.cat(split.rows) if split.rows is not None else torch.arange(len(dataset))
    place = int((rows == int(row)).nonzero()[0, 0])
    label = classes.index(name) if name else int(dataset.labels[place])
    others = torch.arange(len(dataset)) != place
    return dataset.take(others), (dataset.features[place].clone(), label)
