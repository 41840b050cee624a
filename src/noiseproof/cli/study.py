"""`noiseproof study`, `bench` and `tpvd`: papers and speed. `papers` and `bench` are in the repository, not in the wheel."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from noiseproof.cli import output
from noiseproof.cli.options import Jobs, Json, RayOption, Seed, completes
from noiseproof.cli.registry import command
from noiseproof.errors import SettingError, UnsupportedError


@command("study", "Example: noiseproof study lin --scale small --out runs/lin")
def study(
    paper: Annotated[
        str,
        typer.Argument(
            help="Whose paper: lin, lu, ma, mao or phan.", autocompletion=completes(("lin", "lu", "ma", "mao", "phan"))
        ),
    ],
    scale: Annotated[
        str,
        typer.Option(
            help="small (two cores, minutes), effect (the paper's networks, hours) or paper (its own sizes).",
            autocompletion=completes(("small", "effect", "paper")),
        ),
    ] = "small",
    only: Annotated[
        str | None, typer.Option(help="Only these data sets: Location,MNIST (lu), mnist,svhn (lin, phan).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for tables, figures and finished cells.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the cells that are finished in --out.")] = False,
    finished: Annotated[
        bool, typer.Option("--finished", help="Run nothing: make the tables of the cells that are finished in --out.")
    ] = False,
    jobs: Jobs = None,
    ray: RayOption = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Run a paper's experiments again and print every table with our numbers beside theirs."""
    from noiseproof.parallel.tasks import asked

    if scale not in ("small", "effect", "paper"):
        raise SettingError(f"the scale is small, effect or paper, not {scale!r}.")
    chosen = load_part("papers").get(paper)
    if only is not None:
        chosen = chosen.only([name.strip() for name in only.split(",")])
    if ray is not None and not chosen.on_clusters:
        raise UnsupportedError(
            f"the study {paper} keeps files on this machine as it goes; use --jobs instead of --ray."
        )
    folder = out or Path("runs") / f"{paper}-{scale}"
    with asked(jobs, ray):
        how = {"resume": resume, "workers": jobs, "finished": finished}
        result = chosen.run(scale, folder, seed=seed, progress=output.RichProgress(), **how)
    if json:
        output.emit(result.to_json())
        return
    for table in result.tables:
        output.stdout.print(table.render())
    output.say(f"{len(result.figures)} figures and all tables are in {result.out}.")


@command("bench", "Example: noiseproof bench --against opacus; noiseproof bench synthetic")
def bench(
    what: Annotated[
        str | None,
        typer.Argument(
            help="One of steps, noise, shadows, predictions, parameters, generators, inputs, scaling, growth, batches, "
            "serve, soak, synthetic; all up to scaling if none is named."
        ),
    ] = None,
    against: Annotated[str | None, typer.Option(help="Also measure a peer: opacus (extra `bench`).")] = None,
    only: Annotated[str | None, typer.Option(help="The same as naming one.")] = None,
    repeats: Annotated[int, typer.Option(help="Repetitions that each median is taken over.")] = 30,
    json: Json = False,
) -> None:
    """Measure speed against plain torch and other libraries, interleaved in one run: medians and ratios."""
    from noiseproof import kernels

    if what is not None and only is not None:
        raise SettingError("name a benchmark once: `noiseproof bench synthetic` and `--only synthetic` are the same.")
    rows = load_part("bench").run(against=against, only=what or only, repeats=repeats, progress=output.RichProgress())
    with_kernels = kernels.compiled is not None
    output.answer(
        json,
        {"rows": rows, "kernels": with_kernels},
        None,
        ("what", "ours", "theirs", "ratio", "unit"),
        [(row["what"], row["ours"], row["theirs"], row["ratio"], row.get("unit", "ms")) for row in rows],
        caption="ratio: ours over theirs, both measured in this run, interleaved; medians. "
        f"{'With' if with_kernels else 'Without'} compiled kernels.",
    )


@command("tpvd", "Example: noiseproof tpvd plain-model noised-model")
def compare_weights(
    reference: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The network trained without noise.")],
    noisy: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The same network trained with noise.")],
    json: Json = False,
) -> None:
    """Print the total parameters value difference of two networks (Lin et al.). It says nothing of privacy."""
    from noiseproof.networks import tpvd
    from noiseproof.releases import ModelRelease, bundles

    modules = []
    for path in (reference, noisy):
        release = bundles.load(path)
        if not isinstance(release, ModelRelease):
            raise UnsupportedError(f"{path} holds no network's weights; TPVD compares two of them.")
        modules.append(release.module)
    value = tpvd(*modules)
    output.tell(json, {"tpvd": value}, f"TPVD {value:.4f}: how far the weights moved, which promises nothing.")


def load_part(name: str) -> ModuleType:
    """The package `name` of the checkout that noiseproof runs from.

    Raises:
        UnsupportedError: If noiseproof was installed from a wheel.
    """
    import noiseproof

    root = Path(noiseproof.__file__).parents[2]
    if not (root / name / "__init__.py").is_file():
        raise UnsupportedError(
            f"`{name}` is part of the repository, not of the installed package; clone the repository, run `make install`"
            " there and use its .venv/bin/noiseproof."
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
        # Worker processes and Ray tasks find it the same way.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    return importlib.import_module(name)
