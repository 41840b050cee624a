"""The page: one HTML file that needs nothing else, for one comparison or several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from noiseproof.palette import PALETTE
from noiseproof.privacy.card import Audit, Claim, Proof
from noiseproof.releases.measures import NAMES, stated
from noiseproof.report.charts import KINDS, Chart, Drawing, charts
from noiseproof.run import Comparison

if TYPE_CHECKING:
    from jinja2 import Template

MARKS = {
    **{"proven": "✓", "weaker than claimed": "▽", "nothing proven": "∅"},
    **{"refuted": "✗", "rehearsal": "◌", "failed": "!"},
}
"""A sign for each verdict, so that colour is not all that tells it."""


def render(comparisons: Sequence[Comparison]) -> str:
    """The page of these comparisons, in the order given.

    Args:
        comparisons: Results, as `noiseproof compare` made them.

    Returns:
        An HTML document that fetches nothing.

    Formal guarantee
    ----------------
    None: accuracies and attacks were measured on private records without noise. The page says so; it is for the data's
    owner. It names the run by a fingerprint keyed with a salt that is not on the page.
    """
    return _template().render(
        comparisons=comparisons, charts=charts, drawings=_drawings, facts_about=_facts, kinds=KINDS, palette=PALETTE
    )


@cache
def _template() -> Template:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(marks=MARKS, names=NAMES, stated=stated)
    environment.filters.update(text=text, epsilon=epsilon, px="{:.1f}".format)
    environment.filters["fields"] = lambda value: (
        value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    )
    environment.tests["nested"] = lambda value: isinstance(value, Mapping) and bool(value)
    return environment.get_template("page.html")


def _drawings(chart: Chart) -> tuple[Drawing, Drawing]:
    """The chart for wide and for narrow windows, each in the pixels that it is shown at."""
    return Drawing(chart, "wide", 900, 440), Drawing(chart, "narrow", 328, 320)


def text(value: Any) -> str:
    """A value of a card as a reader would write it."""
    if value is None or value == {}:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return "infinite" if math.isinf(value) else f"{value:.4g}".replace("e-0", "e-")
    if isinstance(value, list | tuple):
        return ", ".join(text(item) for item in value) or "—"
    return str(value)


def epsilon(promise: Claim | Proof | Audit | None) -> str:
    """The epsilon of a claim, a proof or an audit in a cell."""
    return "—" if promise is None else "infinite" if math.isinf(promise.epsilon) else f"{promise.epsilon:.3g}"


def _facts(comparison: Comparison) -> dict[str, Any]:
    """How a comparison was run."""
    about, plan = comparison.about, comparison.plan
    return {
        "data": comparison.data,
        "training records": about.records,
        "test records": about.test_records,
        "record shape": " × ".join(str(side) for side in about.shape),
        "classes": about.classes,
        "bounds and classes come from": "public knowledge" if about.bounds == "public" else "the private records",
        "neighbours": comparison.neighbours,
        "delta": comparison.delta,
        "queries": comparison.queries,
        "attack": plan["attack"],
        "audit trials in each world": plan["trials"],
        "seed": plan["seed"],
        "versions": comparison.versions,
        "run (keyed fingerprint of records, plan and versions)": comparison.run,
    }
