"""Algorithm 1 of Lu et al. (2022): noise on one output neuron, which the exponential mechanism picks."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import torch
from annotated_types import Ge
from torch import nn

from noiseproof import kernels
from noiseproof.data import Dataset, Public
from noiseproof.errors import SettingError
from noiseproof.methods import Method, register
from noiseproof.methods.common import MOST_ANSWERS, Count, Positive, initial_seed, seeded_by
from noiseproof.methods.predictions import lu
from noiseproof.networks import Network, Training, fit_stack
from noiseproof.privacy import Budget, Card, Game, Randomness, Reproducible
from noiseproof.privacy.card import Claim, Place
from noiseproof.privacy.events import DpEvent, GaussianDpEvent, PureDpEvent
from noiseproof.progress import SILENT, Progress
from noiseproof.releases.release import PredictionRelease, Saved, describe_network
from noiseproof.tensors import default_device


@dataclass(frozen=True)
class NeuronNoise:
    """The noise of one answer of claimed `epsilon`: which neuron, and how much. Vectorised over a batch of queries.

    Formal guarantee
    ----------------
    Claimed: epsilon-DP (Laplace) or epsilon-GDP (Gaussian) for one removed record (theorem 6). It does not hold for
    three classes and more, whatever the noise: the classes that got none keep their exact ratios, so one answer tells
    two trainings apart. For two classes, *given that no neuron moves by more than `neuron`* (which nothing proves), an
    answer is 2 epsilon / 5-DP (Laplace) or 2 epsilon / 3-GDP (Gaussian): only the difference of the two neurons is
    seen, it moves by at most twice `neuron`, and which one gets the (symmetric) noise does not matter.

    Examples:
        >>> import torch
        >>> from noiseproof.privacy import Secure
        >>> noise = NeuronNoise(epsilon=1.0, classes=2, neuron=0.1, probability=0.2, law="laplace")
        >>> noise.part, noise.scale
        (0.2, 0.5)
        >>> noise.answers(torch.zeros(3, 2), Secure()).shape
        torch.Size([3, 2])
    """

    epsilon: float
    """What an answer is claimed to cost; choosing the neuron and noising it get `part` of it each."""
    classes: int
    """Number of classes, which is that of the output neurons."""
    neuron: float
    """d-z: how far one output neuron is said to move."""
    probability: float
    """d-p: how far one probability is said to move."""
    law: lu.Law
    """The noise on the chosen neuron: `laplace`, claimed to be epsilon-DP, or `gaussian`, claimed to be epsilon-GDP."""

    @property
    def part(self) -> float:
        """The epsilon of the choice, and of the noise."""
        return lu.part_epsilon(self.epsilon, self.classes, self.law)

    @property
    def scale(self) -> float:
        """The noise's scale: Laplace's, or the standard deviation."""
        return self.neuron / self.part

    def answers(self, logits: torch.Tensor, rng: Randomness | NoiseAhead) -> torch.Tensor:
        """Noisy class probabilities (queries, classes), from the network's logits."""
        if isinstance(rng, NoiseAhead):
            return self._seeded_answers(logits, *rng.take(len(logits), logits.dtype))
        # Classes along the first dimension: over that torch's softmax is many times faster than over a short last one.
        columns = logits.t().contiguous()
        chosen = rng.choose(torch.softmax(columns, 0).mul_(self._keenness).t())[None, :]
        add = rng.add_laplace if self.law == "laplace" else rng.add_gaussian
        columns.scatter_(0, chosen, add(columns.gather(0, chosen), self.scale))
        return torch.softmax(columns, 0).t()

    def _seeded_answers(self, logits: torch.Tensor, uniforms: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """The answers with draws that were made before: uniforms that choose the neurons, and noise for them."""
        if self.classes <= kernels.MOST_CLASSES and kernels.suit(logits):
            return kernels.answers(logits, self._keenness, uniforms, noise)
        columns = logits.t().contiguous()
        preferences = torch.softmax(columns, 0).mul_(self._keenness)
        below = torch.softmax(preferences, 0).cumsum_(0) < uniforms
        columns.scatter_add_(0, below.sum(0, keepdim=True), noise)
        return torch.softmax(columns, 0).t()

    @cached_property
    def _keenness(self) -> float:
        return self.part / (2 * self.probability)


class NoiseAhead:
    """The draws of a seeded randomness for many answers at once, so that a small batch costs little more than its forward.

    For research only: noise that waits in memory, or that is added as an ordinary number, is not `Secure`'s.
    """

    _COUNT = 1 << 14

    def __init__(self, noise: NeuronNoise, rng: Reproducible) -> None:
        self._noise, self.rng = noise, rng
        self._uniforms = self._draws = torch.empty(1, 0)
        self._used = 0

    def take(self, count: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Uniforms below 1 and draws of the noise, (1, count) each."""
        if self._uniforms.dtype != dtype or self._used + count > self._uniforms.shape[1]:
            self._draw(max(count, self._COUNT), dtype)
        first = self._used
        self._used += count
        return self._uniforms.narrow(1, first, count), self._draws.narrow(1, first, count)

    def _draw(self, count: int, dtype: torch.dtype) -> None:
        # No uniform may be above the last cumulative weight, which is 1 but for rounding.
        below_one = 1 - 2 * self._noise.classes * torch.finfo(dtype).eps
        self._uniforms = self.rng.uniform((1, count)).to(dtype).clamp_(max=below_one)
        add = self.rng.add_laplace if self._noise.law == "laplace" else self.rng.add_gaussian
        self._draws = add(torch.zeros(1, count, dtype=dtype), self._noise.scale)
        self._used = 0


class NeuronRelease(PredictionRelease):
    """Answers of Algorithm 1 (Lu et al. 2022). Nothing is proven of them: see `NeuronNoise` and the card."""

    def __init__(
        self,
        module: nn.Module,
        network: Network,
        noise: NeuronNoise,
        card: Card,
        public: Public,
        settings: Mapping[str, Any],
        *,
        queries: int,
        rng: Randomness,
        asked: int = 0,
    ) -> None:
        super().__init__(card, public, settings, queries=queries, rng=rng, asked=asked)
        self._module = module.eval()
        self.network = self._network = network
        self.noise = noise
        self._ahead: NoiseAhead | None = None

    def training(self) -> Training:
        """The paper's, with the convexified loss at the alpha that was used."""
        chosen = {name: self.settings[name] for name in ("epochs", "batch_size", "lr", "l2")}
        return Training(**chosen, loss=lu.Convexified(self.card.ran["alpha"], self.settings["form"]))

    @property
    def events(self) -> tuple[DpEvent, ...]:
        """What the authors claim that one answer costs: nothing here is proven."""
        each = self.noise.epsilon
        return (PureDpEvent(each) if self.noise.law == "laplace" else GaussianDpEvent(1 / each),)

    def _answer(self, features: torch.Tensor, rng: Randomness) -> torch.Tensor:
        ahead = self._ahead
        if ahead is None or ahead.rng is not rng:
            ahead = self._ahead = NoiseAhead(self.noise, rng) if isinstance(rng, Reproducible) else None
        source = rng if ahead is None else ahead
        with torch.no_grad():
            return self.noise.answers(self._module(features.float()), source)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The secret weights: the bundle stays on the trusted side."""
        return {name: value.detach().cpu() for name, value in self._module.state_dict().items()}

    def description(self) -> dict[str, Any]:
        """The network's recipe, the noise, and the queries that are gone."""
        return {**super().description(), "network": describe_network(self._network), "noise": asdict(self.noise)}

    @classmethod
    def restore(cls, saved: Saved) -> NeuronRelease:
        """The same answers, with as many queries left as when it was saved."""
        module = saved.network.build()
        saved.put_into(module)
        noise = NeuronNoise(**saved.description["noise"])
        return cls(module, saved.network, noise, saved.card, saved.public, saved.settings, **cls._spent(saved))


PAPER = (
    "Lu, Asghar, Kaafar, Webb, Dickinson: A differentially private framework for deep learning with convexified loss "
    "functions. IEEE Transactions on Information Forensics and Security 17, 2022"
)

_DROWNED = 10.0
"""Noise of a scale that two logits of a network with an L2 term seldom differ by."""
_MANY = (
    "With three classes and more no finite epsilon holds: the classes that got no noise keep their exact ratios, so that "
    "one answer can tell two trainings apart. Besides, "
)
_UNPROVEN = (
    "the sensitivity of an output neuron rests on a convex loss, a training that ends at its minimiser, a change "
    "that spreads evenly over all weights and hidden neurons that do not change, none of which holds."
)


@dataclass(frozen=True)
class NeuronMethod(Method):
    """Lu et al.'s framework: train on the convexified loss, then noise one output neuron an answer."""

    place: ClassVar[Place] = "predictions"
    paper: ClassVar[str | None] = PAPER
    proves: ClassVar[bool] = False
    law: ClassVar[lu.Law]

    epochs: Annotated[int, Ge(0)] = 100
    """Passes over the records, in shuffled batches."""
    batch_size: Count = 100
    """Records of a step, over which the convexified loss is taken."""
    lr: Positive = 1e-3
    """Adam's learning rate."""
    l2: Positive = 1e-3
    """Keras's factor: l2 * ||W||^2 over the kernels is added to the loss."""
    form: lu.Form = "paper"
    """`paper`: eq. 22; `code`: as the authors' program has it."""
    alpha: Positive | None = None
    """None takes Table 4's for the sets that are in it, and 1 for others."""
    search: bool = False
    """Whether alpha is searched for on a validation split of the private records, in (0, 10] by steps of 0.5."""
    peaks: Literal["one", "seen"] = "one"
    """`one`: neurons are at most 1, as in Table 6; `seen`: the largest values on the private records."""

    def network(self, public: Public) -> Network:
        """The paper's: one hidden layer, of which the method is defined."""
        return Network("lu-mlp", public.shape, len(public.classes))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha is not None and self.search:
            raise SettingError(f"{self.name} is either given an alpha or searches for one, not both.")

    def _training(self) -> Training:
        return Training(epochs=self.epochs, batch_size=self.batch_size, lr=self.lr, l2=self.l2)

    def fit(
        self, network: Network, dataset: Dataset, budget: Budget, *, rng: Randomness, progress: Progress = SILENT
    ) -> NeuronRelease:
        """Train a dense network on the convexified loss, without noise; its answers get the noise."""
        lu.dense_layers(network.build())  # refuses other networks before the training
        seed = initial_seed(rng)
        notes: tuple[str, ...] = ()
        if self.search:
            alpha = lu.search_alpha(network, dataset, self._training(), self.form, seed=seed, progress=progress)
            notes += ("alpha was chosen by accuracies on the private records, which no guarantee accounts for.",)
        else:
            alpha = lu.published_alpha(dataset.name) if self.alpha is None else self.alpha
        if self.peaks == "seen":
            notes += ("The largest neuron values were read off the private records, which no guarantee accounts for.",)
        training = replace(self._training(), loss=lu.Convexified(alpha, self.form))
        everyone = torch.arange(len(dataset))
        device = default_device()
        features, labels = dataset.features.to(device), dataset.labels.to(device)
        trained = fit_stack(network, features, labels, [everyone], training, seeds=[seed], progress=progress)
        module = trained.to("cpu").module(0).eval()
        sensitivity = lu.Sensitivity.of(
            module, len(dataset), l2=self.l2, seen=dataset.features if self.peaks == "seen" else None
        )
        noise = self.noise(sensitivity, budget)
        if self.peaks == "one" and noise.scale > _DROWNED:  # from peaks of records the scale is for no note to tell
            left = "a guess" if dataset.classes == 2 else "about half of the network's accuracy"
            notes += (
                f"The noise on a neuron has scale {noise.scale:.3g}, more than logits differ by, so that it mostly comes first "
                f"or last of all: what is left is hardly more than {left}. Fewer queries or more records make it less.",
            )
        card = self.card(
            dataset,
            budget,
            rng,
            claimed=self.claim(budget),
            why=(_MANY if dataset.classes > 2 else "For two classes the noise would do, but ") + _UNPROVEN,
            ran=self._ran(alpha, sensitivity, noise, budget),
            notes=notes,
        )
        return NeuronRelease(
            module, network, noise, card, dataset.public, self.settings(), queries=budget.queries, rng=rng
        )

    def noise(self, sensitivity: lu.Sensitivity, budget: Budget) -> NeuronNoise:
        """The noise of each of the budget's answers."""
        return NeuronNoise(
            lu.answer_epsilon(budget.epsilon, budget.queries, self.law),
            sensitivity.classes,
            sensitivity.neuron,
            sensitivity.probability,
            self.law,
        )

    def _ran(self, alpha: float, sensitivity: lu.Sensitivity, noise: NeuronNoise, budget: Budget) -> dict[str, Any]:
        return {
            "epochs": self.epochs,
            "batch_size": self.batch_size,
            "sampler": "shuffled epochs",
            "alpha": alpha,
            "form": self.form,
            "rho": sensitivity.lipschitz,
            "d-omega": sensitivity.weight,
            "d-z": sensitivity.neuron,
            "d-p": sensitivity.probability,
            "oaro": sensitivity.stability,
            "queries": budget.queries,
            "epsilon of an answer": noise.epsilon,
            "noise": self.law,
            "scale": noise.scale,
        }

    def claim(self, budget: Budget) -> Claim:
        """What the authors' arithmetic says of all of the budget's answers together."""
        return self.claim_of(budget.epsilon)

    @abstractmethod
    def claim_of(self, epsilon: float) -> Claim:
        """What the authors state for an answer, or answers, of that epsilon."""

    def game(self, budget: Budget, classes: int = 3) -> Game:
        """The budget's answers of Algorithm 1, of two networks whose output neurons differ by no more than d-z.

        That is all the method's proof asks for, so a bound above the claim refutes it even if d-z were right. With three
        classes and more, two of them got no noise and show the exact ratio of one of the networks: the score is how much
        nearer some pair's ratio is to world 1's than any is to world 0's. With two, only their difference is seen, and
        the sum of it is the score. Of more than a thousand answers a thousand are played.
        """
        noise = self.noise(lu.Sensitivity((14, 128, classes), 10_000), Budget(budget.epsilon, queries=budget.queries))
        # Every pair of classes differs by something else in the two worlds.
        steps = torch.linspace(-1, 1, classes, dtype=torch.float64) * noise.neuron
        logits = torch.stack([-steps / 2, steps / 2]) + torch.linspace(0, 1, classes, dtype=torch.float64)

        def ratios(values: torch.Tensor) -> torch.Tensor:
            first, second = torch.triu_indices(classes, classes, 1)
            return values[:, first] - values[:, second]

        known, queries = ratios(logits), min(budget.queries, MOST_ANSWERS)

        def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
            rng, nearest, total = seeded_by(generator), torch.full((2, trials), torch.inf), torch.zeros(trials)
            for _ in range(queries):
                seen = ratios(noise.answers(logits[world].expand(trials, -1).clone(), rng).log())
                total = total - seen[:, 0]
                # Noise so large that the others' probabilities are 0 leaves no ratio to see: it is far from both worlds.
                seen = seen.nan_to_num(nan=torch.inf)
                nearest = torch.minimum(nearest, torch.stack([(seen - each).abs().amin(1) for each in known]))
            if classes == 2:
                return total
            # By the logarithm: what is exact is some 1e-16 away, what only happens to be near is not.
            distance = nearest.clamp(1e-16, 1e300).log()
            return distance[0] - distance[1]

        # The claim at the delta that it names itself: for Gaussian noise theorem 2's, which is .127 at epsilon 1.
        claimed = self.claim_of(noise.epsilon * (queries if self.law == "laplace" else math.sqrt(queries)))
        delta = max(claimed.delta, budget.delta if self.law == "laplace" else 0.0)
        what = "the exact ratio of two classes" if classes > 2 else "two classes, given d-z"
        gaussian = classes == 2 and self.law == "gaussian"
        return Game(f"{self.name}: {what}", play, "add-or-remove", delta, claimed, gaussian=gaussian)


@register
@dataclass(frozen=True)
class NeuronGaussian(NeuronMethod):
    """Lu et al.'s private predictions: Gaussian noise on one output neuron, picked by the exponential mechanism.

    The budget's epsilon covers all of its queries; each gets epsilon / sqrt(queries), of which choosing the neuron and
    noising it get a part of 1 / sqrt(4 classes + 1) each. The budget's delta is not used.

    Formal guarantee
    ----------------
    None. Claimed: epsilon-GDP for one removed record, stated as (epsilon, delta(epsilon)) by theorem 2, whose delta is
    .127 at epsilon 1 and .99995 at 10. It fails for three classes and more; for two it would hold if no neuron moved by
    more than d-z. See `NeuronNoise`, `Sensitivity`.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> card = npf.train("neuron-gaussian", records, epsilon=1, epochs=2).card
        >>> card.verdict, card.claimed.epsilon, round(card.claimed.delta, 3)
        ('nothing proven', 1.0, 0.127)
    """

    name: ClassVar[str] = "neuron-gaussian"
    claims: ClassVar[str] = "epsilon-GDP for a record, over all queries: epsilon / sqrt(queries) each"
    law: ClassVar[lu.Law] = "gaussian"

    def claim_of(self, epsilon: float) -> Claim:
        """epsilon-GDP, as theorem 2 reads it."""
        delta = min(lu.theorem2_delta(epsilon), math.nextafter(1.0, 0.0))  # it rounds to 1 from epsilon 19 on
        return Claim(epsilon=epsilon, delta=delta, source="Lu et al., theorems 6, 3 and 2, section 5.3")


@register
@dataclass(frozen=True)
class NeuronLaplace(NeuronMethod):
    """Lu et al.'s private predictions: Laplace noise on one output neuron, picked by the exponential mechanism.

    The budget's epsilon covers all of its queries; each gets epsilon / queries, of which choosing the neuron and noising
    it get a part of 1 / (2 classes + 1) each.

    Formal guarantee
    ----------------
    None. Claimed: epsilon-DP for one removed record (theorem 6, and sequential composition over queries). It fails for
    three classes and more; for two it would hold if no neuron moved by more than d-z. See `NeuronNoise`, `Sensitivity`.

    Examples:
        >>> import torch
        >>> import noiseproof as npf
        >>> records = npf.data.from_arrays(torch.rand(200, 4), torch.arange(200) % 2, classes=2, low=0, high=1)
        >>> release = npf.train("neuron-laplace", records, epsilon=3, queries=10, epochs=2)
        >>> release.card.verdict, release.card.ran["epsilon of an answer"]
        ('nothing proven', 0.3)
        >>> release.predict(torch.rand(4, 4)).shape, release.queries_left
        (torch.Size([4, 2]), 6)
    """

    name: ClassVar[str] = "neuron-laplace"
    claims: ClassVar[str] = "epsilon for a record, over all queries: epsilon / queries each"
    law: ClassVar[lu.Law] = "laplace"

    def claim_of(self, epsilon: float) -> Claim:
        """epsilon-DP."""
        return Claim(epsilon=epsilon, delta=0.0, source="Lu et al., theorems 6 and 1, section 5.3")
