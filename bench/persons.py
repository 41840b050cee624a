"""What a person's guarantee costs: accuracy by the bound on records a person, against other ways to the same promise.

    python -m bench.persons --out docs/data/persons.json --seeds 3

Three sets, all with rules that are public: Adult whose rows are dealt out to persons by a draw that looks at no value; a made
table of hospital visits, of which few persons have most; and made messages of authors, as counts of words. Everything is
trained by dp-sgd with a linear network. At person-level epsilon 1 and 3 and for k = 1, 5, 25 records a person:

- `persons`: persons are sampled, and the mean over k of their records is clipped;
- `records`: k records of each person are kept, records are sampled, and accounted for as a person's (a mixture);
- `group privacy`: k records of each person are kept, and the record-level promise is strong enough that k of them make epsilon;
- `one record`: one record of each person is kept, and records are persons;
- `record level`: all records, and epsilon for one *record*: a weaker promise, which is why it looks better.

`--steps` measures instead what a step of persons takes, against one of the same records without persons.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from noiseproof.data import Dataset, load
from noiseproof.data.dataset import Public
from noiseproof.data.splits import split
from noiseproof.engine.persons import PersonSampler
from noiseproof.files import write_whole
from noiseproof.privacy import Reproducible
from noiseproof.privacy.accountants import group_privacy
from noiseproof.releases import ModelRelease, Release, accuracy
from noiseproof.run.training import train

DELTA = 1e-5
EPSILONS = (1.0, 3.0)
BOUNDS = (1, 5, 25)
WAYS = ("persons", "records", "group privacy", "one record", "record level")
SETTINGS = {"max_grad_norm": 1.0, "lr": 2.0, "momentum": 0.9, "averaging": 0.5, "micro_batch_size": 8192}


def long_tailed(persons: int, generator: torch.Generator, *, most: int = 200) -> torch.Tensor:
    """How many records each person has: most have few, few have most (a Pareto law, cut off)."""
    draws = torch.rand(persons, generator=generator)
    return (draws ** (-1 / 1.1)).clamp(max=most).long().clamp(min=1)


def adult() -> tuple[Dataset, Dataset]:
    """Adult, its rows dealt out to persons in an order that looks at no value."""
    found, generator = load("adult"), torch.Generator().manual_seed(1)
    rows = len(found.train)
    counts = long_tailed(rows, generator).cumsum(0)
    groups = torch.bucketize(torch.randperm(rows, generator=generator), counts, right=True)
    return replace(found.train, groups=torch.unique(groups, return_inverse=True)[1]), found.test


def visits() -> tuple[Dataset, Dataset]:
    """Made visits: what is measured varies by person and by visit, and so does whether somebody comes back within a month."""
    generator = torch.Generator().manual_seed(2)
    counts = long_tailed(1500, generator)
    groups = torch.repeat_interleave(torch.arange(len(counts)), counts)
    own, today = (torch.randn(count, 40, generator=generator) for count in (len(counts), len(groups)))
    values = (0.6 * own[groups] + 0.8 * today) / 4
    slope = torch.linspace(1.5, -1.5, 40)
    risk = values @ slope - 0.3 + 0.3 * torch.randn(len(counts), generator=generator)[groups]
    labels = (torch.rand(len(groups), generator=generator) < torch.sigmoid(3 * risk)).long()
    features = (values + 0.5).clamp(0, 1)
    parts = split(Dataset("visits", features, labels, Public((40,), ("no", "yes")), groups), seed=0)
    return parts.train, parts.test


def messages() -> tuple[Dataset, Dataset]:
    """Made messages: 30 words of 200, by topic and by author; which of 5 topics is it?"""
    generator = torch.Generator().manual_seed(3)
    counts = long_tailed(3000, generator)
    groups = torch.repeat_interleave(torch.arange(len(counts)), counts)
    labels = torch.randint(5, (len(groups),), generator=generator)
    topics = torch.randn(5, 200, generator=generator)
    style = torch.randn(len(counts), 200, generator=generator)
    chances = torch.softmax(0.9 * topics[labels] + 0.7 * style[groups], dim=1)
    words = torch.multinomial(chances, 30, replacement=True, generator=generator)
    bags = torch.zeros(len(groups), 200).scatter_add_(1, words, torch.ones(words.shape))
    public = Public((200,), tuple("abcde"))
    parts = split(Dataset("messages", (bags / 5).clamp(max=1), labels, public, groups), seed=0)
    return parts.train, parts.test


SETS = {"adult": adult, "visits": visits, "messages": messages}


def kept(dataset: Dataset, bound: int, seed: int) -> Dataset:
    """At most so many records of each person, chosen uniformly; without their persons."""
    assert dataset.groups is not None
    chosen, _ = PersonSampler(dataset.groups, bound, Reproducible(seed)).records_of(torch.arange(dataset.persons))
    return replace(dataset.take(chosen), groups=None)


def record_budget(epsilon: float, size: int) -> tuple[float, float]:
    """The record-level (epsilon, delta) of which so many records make the person's."""
    one = epsilon / size
    return one, DELTA / (group_privacy(one, 1.0 / 2**40, size)[1] * 2**40)


def trained(way: str, dataset: Dataset, epsilon: float, bound: int, seed: int) -> Release:
    """One training at that person-level epsilon (for `record level`: at that epsilon of a record)."""
    settings: dict[str, Any] = dict(SETTINGS, max_records_per_person=bound)
    delta = DELTA
    if way == "records":
        settings["person_sampling"] = "records"
    elif way == "group privacy":
        epsilon, delta = record_budget(epsilon, bound)
        dataset = kept(dataset, bound, seed)
    elif way == "one record":
        dataset = kept(dataset, 1, seed)
    elif way == "record level":
        dataset = replace(dataset, groups=None)
    units = dataset.persons * (bound if way == "records" else 1)
    settings |= {"batch_size": max(1, units // 8), "epochs": 12.0}
    release = train("dp-sgd", dataset, epsilon=epsilon, delta=delta, network="linear", seed=seed, **settings)
    assert release.card.unit == ("person" if way in ("persons", "records") else "record")
    return release


def measure(name: str, seeds: int) -> list[dict[str, Any]]:
    """All rows of one set."""
    records, test = SETS[name]()
    assert records.groups is not None
    counts = torch.bincount(records.groups)
    facts = {"data": name, "persons": records.persons, "records": len(records), "most": int(counts.max())}
    rows = []
    for epsilon in EPSILONS:
        for way in WAYS:
            for bound in BOUNDS if way in ("persons", "records", "group privacy") else (1,):
                found = []
                for seed in range(seeds):
                    release = trained(way, records, epsilon, bound, seed)
                    assert isinstance(release, ModelRelease)
                    found.append(100 * accuracy(release, test))
                spread = stdev(found) / math.sqrt(seeds) if seeds > 1 else math.nan
                row = {"way": way, "epsilon": epsilon, "bound": bound, "accuracy": mean(found), "error": spread}
                print(
                    f"{name:9} {way:14} epsilon {epsilon:g} k {bound:2d}: {row['accuracy']:.1f} +- {spread:.1f}",
                    flush=True,
                )
                rows.append(facts | row)
    return rows


def draw(rows: list[dict[str, Any]], out: Path) -> None:
    """Accuracy against the bound on records a person, one panel a set and epsilon."""
    import matplotlib.pyplot as plt

    from noiseproof.palette import PALETTE

    colours = [light for light, _ in PALETTE[1:]]
    styles = dict(zip(WAYS, zip(colours, ("o-", "s-", "^-", "--", ":"), strict=False), strict=False))
    names = list(dict.fromkeys(row["data"] for row in rows))
    figure, panels = plt.subplots(len(EPSILONS), len(names), figsize=(11, 6), sharex=True, squeeze=False)
    for across, name in enumerate(names):
        for down, epsilon in enumerate(EPSILONS):
            panel = panels[down][across]
            for way in WAYS:
                mine = [row for row in rows if (row["data"], row["epsilon"], row["way"]) == (name, epsilon, way)]
                colour, style = styles[way]
                if way in ("one record", "record level"):
                    label = f"{way} (a weaker promise)" if way == "record level" else way
                    panel.axhline(mine[0]["accuracy"], color=colour, linestyle=style, label=label)
                else:
                    bounds, values = [row["bound"] for row in mine], [row["accuracy"] for row in mine]
                    panel.errorbar(bounds, values, [row["error"] for row in mine], fmt=style, color=colour, label=way)
            panel.set_xscale("log")
            panel.set_xticks(BOUNDS, [str(bound) for bound in BOUNDS])
            panel.set_title(f"{name}, epsilon {epsilon:g}", fontsize=10)
            if down:
                panel.set_xlabel("records of a person, at most")
            if not across:
                panel.set_ylabel("accuracy on others, %")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=5, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(out, metadata={"Date": None})
    plt.close(figure)


def step_ratios(repeats: int) -> list[dict[str, Any]]:
    """A step of persons over a step of the same records: 4 records a person, and a long-tailed number, at most 32."""
    from bench import steps
    from bench.networks import NETWORKS

    found = []
    for network in ("mlp", "cnn", "lstm"):
        setting = steps.Setting(network)
        records = torch.arange(len(setting.labels))
        uneven = long_tailed(len(records), torch.Generator().manual_seed(1), most=32).cumsum(0)
        groups = {"even": records // 4, "uneven": torch.bucketize(records, uneven, right=True)}
        contenders = {"records": steps.ours(setting)}
        contenders |= {name: steps.ours(setting, groups=each) for name, each in groups.items()}
        times = steps._take_turns(contenders, repeats)
        for name, each in groups.items():
            counts = torch.bincount(each)
            what = f"{network}, {NETWORKS[network].batch} records of {len(counts)} persons, at most {int(counts.max())} each"
            found.append(steps._row(what, times[name], times["records"], "ms"))
            print(f"{what}: {times[name]:.3f} / {times['records']:.3f} ms = {found[-1]['ratio']:.2f}", flush=True)
    return found


def main() -> None:
    """Measure, write the rows and draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("persons.json"))
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, metavar="REPEATS", help="measure steps instead, in so many turns")
    parser.add_argument("--data", nargs="*", default=list(SETS))
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if given.steps:
        write_whole(given.out, json.dumps(step_ratios(given.steps), indent=1))
        return
    for name in given.data:
        rows += measure(name, given.seeds)
        write_whole(given.out, json.dumps(rows, indent=1))
    if given.picture is not None:
        draw(rows, given.picture)


if __name__ == "__main__":
    main()
