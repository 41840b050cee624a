"""votes: every record votes for its class, as far as it is similar to the query, with noise on the count."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch.nn import functional

from noiseproof.data import Dataset, Public
from noiseproof.errors import BundleError, SettingError
from noiseproof.methods import register
from noiseproof.methods.common import Share
from noiseproof.methods.predictions.answers import ScoreChange, least_noise
from noiseproof.methods.predictions.scores import ScoreMethod, ScoreRelease
from noiseproof.privacy import Budget, Game, Neighbours, Randomness
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import Saved

_RAMPS = {"numbers": (0.35, 0.45), "categories": (0.45, 0.6), "pictures": (0.5, 0.7)}
"""Where votes are 0, and 1, for what kinds of records; for vectors and rows of numbers, rows with categories, pictures."""
_WIDE = 128
"""Vectors of so many features and more are taken for bits, most of them 0."""
_ENTRIES = 1 << 24
"""Similarities that are in memory at once."""


class VotesRelease(ScoreRelease):
    """Answers by the votes of secret records: vectors of length 1, and their labels."""

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """The same answers, if the votes can be counted; older bundles left their ramp open, and whether records are centred."""
        saved = replace(saved, settings=_of_older(saved))
        Votes(**saved.settings)  # which checks them
        records, labels = saved.tensors["records"], saved.tensors["labels"]
        if labels.dtype != torch.long or not ((labels >= 0) & (labels < len(saved.public.classes))).all():
            raise BundleError("the bundle's votes are for classes that there are not; make it again.")
        if records.shape != (len(labels), math.prod(saved.public.shape)):
            raise BundleError("the bundle's votes are of records of another shape; make it again.")
        return super().restore(saved)

    def _scores(self, features: torch.Tensor) -> torch.Tensor:
        method, classes = Votes(**self.settings), len(self.public.classes)
        low, high = method.ramp(self.public)
        queries = unit(features, centred=method.centres(self.public))
        scores = torch.zeros(len(queries), classes, dtype=torch.float64)
        rows = max(1, _ENTRIES // max(1, len(queries)))
        names = [name for name in ("records", "labels", "weights") if name in self._tensors]
        for records, labels, *weights in zip(*(self._tensors[name].split(rows) for name in names), strict=True):
            cosines = queries @ records.T
            votes = cosines.sub_(low).div_(high - low).clamp_(-method.against, 1.0).double()
            ballots = functional.one_hot(labels, classes).double()
            scores += votes @ (ballots * weights[0][:, None] if weights else ballots)
        return scores


@register
@dataclass(frozen=True)
class Votes(ScoreMethod):
    """Every record votes for its class with a public similarity to the query: few records, many classes, small epsilon.

    The vote is the cosine of the two records (of all but long vectors: of their deviations from their own mean),
    read on a ramp: 1 from `high` on, 0 at `low`, and down to `against` below, so that large classes do not win by their
    size. Nothing is trained, the records themselves are kept inside, and the network is not used. The defaults for long
    vectors suit sparse bits: they were set with Location, a published set, in view. For private records choose them by what
    is known of such records, not by trying.

    Formal guarantee
    ----------------
    (epsilon, delta)-DP for all of the budget's queries together, which may be chosen adaptively; pure epsilon for a
    single one. Unit: record. Neighbours: add-or-remove or replace-one, as the budget says. A record's vote depends on
    the record and the query alone and is at most 1 in size, for one class: adding or removing it changes one score by at
    most 1, replacing it two scores. A person has one vote in all, which their records share: what it adds to the scores is
    the mean of such vectors, and no longer. Costs nothing to train; an answer costs one product with all the records.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> release = npf.train("votes", records, epsilon=3, queries=10)
        >>> release.card.verdict
        'proven'
        >>> release.predict(torch.rand(4, 4)).sum(1)  # labels, as vectors with a single 1
        tensor([1., 1., 1., 1.])
    """

    name: ClassVar[str] = "votes"
    takes_network: ClassVar[bool] = False
    release: ClassVar[type[ScoreRelease]] = VotesRelease
    assumptions: ClassVar[tuple[str, ...]] = (
        "the similarity's settings were not chosen by looking at the private records",
        "sums of votes are exact (floating-point error of the sum is not accounted for)",
        "the number of records, which the card states, is public",
    )

    low: float | None = None
    """The similarity, a cosine, at which a vote is 0; None takes 0.35, for tables with categories, in which people have much in
    common, 0.45, for pictures 0.5."""
    high: float | None = None
    """The similarity from which on it is 1; None takes 0.45, for tables with categories 0.6, for pictures 0.7."""
    against: Share = 0.2
    """How much a record that is not similar votes against its class, at most."""
    centred: bool | None = None
    """Whether a record's own mean is taken off it first; None does so for all but vectors of 128 features and more, which are
    taken for bits, most of them 0: of others the features are positive and seldom 0, so that any two are similar."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for suited in _RAMPS.values():
            low, high = self._given(*suited)
            if not -1 <= low < high <= 1:
                raise SettingError(f"votes needs -1 <= low < high <= 1, not {low} and {high}.")

    def ramp(self, public: Public) -> tuple[float, float]:
        """Where a vote is 0, and where it is 1, for such records."""
        mixed = any(not column.numeric for column in public.columns)
        return self._given(*_RAMPS["categories" if mixed else "pictures" if public.kind == "image" else "numbers"])

    def _given(self, low: float, high: float) -> tuple[float, float]:
        return low if self.low is None else self.low, high if self.high is None else self.high

    def centres(self, public: Public) -> bool:
        """Whether such records lose their own mean."""
        bits = public.kind == "vector" and math.prod(public.shape) >= _WIDE
        return not bits if self.centred is None else self.centred

    def score_change(self, neighbours: Neighbours) -> ScoreChange:
        """How far one record, or person, moves a query's scores: by 1 at most in all, or by two such changes."""
        if neighbours == "add-or-remove":
            return ScoreChange(l1=1.0, l2=1.0, span=1.0, neighbours=neighbours)
        # Two classes by 1 each, or one class by at most 1 + against.
        return ScoreChange(l1=2.0, l2=max(math.sqrt(2), 1 + self.against), span=2.0, neighbours=neighbours)

    def fit(
        self, network: object, dataset: Dataset, budget: Budget, *, rng: Randomness, progress: Progress = SILENT
    ) -> VotesRelease:
        """Keep the records, and calibrate the noise."""
        (low, high), centred = self.ramp(dataset.public), self.centres(dataset.public)
        answer = least_noise(self.score_change(budget.neighbours), self.answer, budget)
        ran = {"standard deviation": answer.spread, "ramp": [low, high]}
        voters = {"records": unit(dataset.features, centred=centred), "labels": dataset.labels}
        if dataset.weights is not None:
            voters["weights"] = dataset.weights
        # What was taken for what was left open is kept: a later version may take something else.
        taken = replace(self, low=low, high=high, centred=centred)
        return taken._release(voters, answer, dataset, budget, rng, ran)

    def _game(self, budget: Budget, canaries: int) -> Game:
        """A record equal to the query, beside two that are not."""
        return self._record_game("a record equal to the query", torch.eye(2), budget, canaries)


def _of_older(saved: Saved) -> dict[str, Any]:
    """A bundle's settings, with what was meant by those that were left open before they were kept as they were taken."""
    kind, given = saved.public.kind, saved.settings
    low, high = _RAMPS["pictures" if kind == "image" else "numbers"]
    meant = {"low": low, "high": high, "centred": kind != "vector" if "centred" in given else kind == "image"}
    return {**given, **{name: value for name, value in meant.items() if given.get(name) is None}}


def unit(features: torch.Tensor, *, centred: bool) -> torch.Tensor:
    """The records as vectors of length 1, less their own mean if `centred`; a record of zeros stays one."""
    flat = features.float().flatten(1)
    if centred:
        flat = flat - flat.mean(1, keepdim=True)
    # What is not finite counts as nothing: one record must not make everybody's score NaN.
    return functional.normalize(flat, dim=1).nan_to_num_(0.0, 0.0, 0.0)
