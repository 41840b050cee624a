"""A release's card as a model card for the Hugging Face hub."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from noiseproof.errors import UnsupportedError

if TYPE_CHECKING:
    from noiseproof.releases.release import Release

_PIPELINES = {
    ("table", "classification"): "tabular-classification",
    ("table", "regression"): "tabular-regression",
    ("table", "count"): "tabular-regression",
    ("image", "classification"): "image-classification",
}


def model_card(release: Release) -> str:
    """`README.md` for a repository of the hub: metadata that it reads, then what people must know.

    Args:
        release: What is to be published.

    Returns:
        Markdown with a YAML header.

    Raises:
        UnsupportedError: If the release must not leave: a rehearsal, or a bundle that stays inside.

    Examples:
        >>> import noiseproof as npf
        >>> release = npf.train("dp-sgd", "digits", epsilon=3, epochs=1)
        >>> print(model_card(release))  # what `README.md` is to hold
        ---
        library_name: noiseproof
        ...
        # dp-sgd: a differentially private model
        ...

    Formal guarantee
    ----------------
    It is computed from the card, the settings and what is public, all of which may leave with the release.
    """
    card, public = release.card, release.public
    if card.verdict == "rehearsal":
        raise UnsupportedError("this release is a rehearsal, which must not leave; train it without a seed.")
    if release.stays_inside:
        raise UnsupportedError(f"{release.method}'s bundle holds what must stay inside; serve its answers instead.")
    tags = ["noiseproof", "differential-privacy", release.method]
    header = ["library_name: noiseproof", "tags:", *(f"- {tag}" for tag in tags)]
    pipeline = _PIPELINES.get((public.kind, public.task))
    if pipeline is not None and release.kind == "model":
        header.append(f"pipeline_tag: {pipeline}")
    learned = f"{len(public.classes)} classes" if public.classes else f"a number in {list(public.target_bounds or ())}"
    lines = [
        *("---", *header, "---", ""),
        f"# {release.method}: a differentially private {release.kind}",
        *("", card.text, ""),
        "| | ε | δ | |",
        "| --- | --- | --- | --- |",
        *(f"| {' | '.join(cells)} |" for cells in card.promises),
        "",
        f"Protected: one {card.unit}, neighbours by {card.neighbours}; randomness {card.randomness}. "
        f"Records of shape {list(public.shape)} ({public.kind}), {learned}.",
        "",
        *(
            ["## What the proof assumes", "", *(f"- {one}" for one in card.proven.assumptions), ""]
            if card.proven
            else []
        ),
        *(["## Notes", "", *(f"- {one}" for one in card.notes), ""] if card.notes else []),
        *("## Settings", "", "```json", json.dumps(release.settings, indent=2, default=str), "```", ""),
        *("## Use", "", "```python", "import noiseproof as npf", "", 'release = npf.load_bundle("FOLDER")', "```", ""),
    ]
    return "\n".join(lines)
