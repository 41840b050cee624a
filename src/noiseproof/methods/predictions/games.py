"""Games at the predictions: two worlds that differ in one record, and one answer that is to tell which it came from."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from noiseproof.data.dataset import Dataset, Public
from noiseproof.methods.common import seeded_by
from noiseproof.methods.predictions.sensitivity import Sensitivity
from noiseproof.networks import Network, StackedNetwork
from noiseproof.privacy import Budget, Claim, Game, Reproducible

if TYPE_CHECKING:
    from noiseproof.methods.predictions.logits import Logits
    from noiseproof.methods.predictions.neuron import NeuronMethod
    from noiseproof.methods.predictions.scores import ScoreRelease
    from noiseproof.methods.predictions.teachers import Teachers
    from noiseproof.methods.predictions.votes import Votes


def neuron_game(method: NeuronMethod, budget: Budget, classes: int = 3) -> Game:
    """One answer of Algorithm 1 to two networks whose output neurons differ by no more than d-z.

    That is all the method's proof asks for, so a bound above the claim refutes it even if d-z were right. With three
    classes and more, two of them got no noise and show the exact ratio of one of the networks: the score is how much
    nearer some pair's ratio is to world 1's than any is to world 0's. With two, only their difference is seen, and it is
    the score itself.
    """
    noise = method.noise(Sensitivity((14, 128, classes), 10_000), Budget(budget.epsilon, queries=budget.queries))
    # Every pair of classes differs by something else in the two worlds.
    steps = torch.linspace(-1, 1, classes, dtype=torch.float64) * noise.neuron
    logits = torch.stack([-steps / 2, steps / 2]) + torch.linspace(0, 1, classes, dtype=torch.float64)

    def ratios(values: torch.Tensor) -> torch.Tensor:
        first, second = torch.triu_indices(classes, classes, 1)
        return values[:, first] - values[:, second]

    known = ratios(logits)

    def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
        answers = noise.answers(logits[world].expand(trials, -1).clone(), seeded_by(generator))
        seen = ratios(answers.log())
        if classes == 2:
            return -seen[:, 0]
        # Noise so large that the others' probabilities are 0 leaves no ratio to see: it is far from both worlds.
        seen = seen.nan_to_num(nan=torch.inf)
        # By the logarithm: what is exact is some 1e-16 away, what only happens to be near is not.
        distance = [(seen - known[which]).abs().amin(1).clamp(1e-16, 1e300).log() for which in (0, 1)]
        return distance[0] - distance[1]

    # The claim at the delta that it names itself: for Gaussian noise theorem 2's, which is .127 at epsilon 1.
    claimed = method.claim_of(noise.epsilon)
    delta = max(claimed.delta, budget.delta if method.law == "laplace" else 0.0)
    what = "the exact ratio of two classes" if classes > 2 else "two classes, given d-z"
    gaussian = classes == 2 and method.law == "gaussian"
    return Game(f"{method.name}: {what}", play, "add-or-remove", delta, claimed, gaussian=gaussian)


def logits_game(method: Logits, budget: Budget) -> Game:
    """A record of the other class, with features of norm 1 that one more record has, and an answer to them."""
    one = torch.tensor([[1.0, 0.0]])
    worlds = _neighbours(Dataset("game", one, torch.zeros(1, dtype=torch.int64), _public(2)), one[0], budget)
    return _answers_game(
        f"{method.name}: a record against another", lambda world: _fitted(method, worlds[world], budget), one, budget
    )


def votes_game(method: Votes, budget: Budget) -> Game:
    """A record equal to the query, beside two that are not."""
    one = torch.tensor([[1.0, 0.0]])
    worlds = _neighbours(Dataset("game", torch.eye(2), torch.tensor([0, 1]), _public(2)), one[0], budget)
    return _answers_game(
        f"{method.name}: a record equal to the query", lambda world: _fitted(method, worlds[world], budget), one, budget
    )


def teachers_game(method: Teachers, budget: Budget) -> Game:
    """Teachers that are sure, half of them of each of two classes, but for one that changes its mind."""
    from noiseproof.methods.predictions.teachers import Ensemble, TeachersRelease

    public = _public(1)
    count = method.count(budget, 2, 1000) // 2 * 2 + 1
    answer = method.noise(budget, 2, count)
    network = Network("linear", (1,), 2)
    minds = torch.arange(count) % 2
    biases = 50.0 * torch.stack([functional.one_hot(minds, 2), functional.one_hot(minds, 2)])
    biases[0, -1] = torch.tensor([0.0, 50.0])

    def release(world: int) -> TeachersRelease:
        parameters = {
            name: biases[world] if value.ndim == 1 else torch.zeros(count, *value.shape)
            for name, value in network.build().named_parameters()
        }
        # Only the networks matter here; the card is that of a training that never ran.
        records = Dataset("game", torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64), public)
        card = method.card(records, budget, Reproducible(0), why="a game's teachers are not trained")
        stack = StackedNetwork(network, parameters)
        return TeachersRelease(
            Ensemble(stack, count), answer, card, public, method.settings(), queries=1, rng=Reproducible(0)
        )

    return _answers_game(f"{method.name}: one of {count} changes its mind", release, torch.zeros(1, 1), budget)


def _answers_game(name: str, release: Callable[[int], ScoreRelease[Any]], query: torch.Tensor, budget: Budget) -> Game:
    """One answer to `query`, scored by its likelihood ratio (or what rises with it) given both worlds' scores."""
    from noiseproof.methods.predictions.answers import GaussianAnswer, LaplaceAnswer, prove

    answer = release(0).answer
    scores = torch.cat([release(world)._scores(query) for world in (0, 1)])

    def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
        seen = answer.noised(scores[world].expand(trials, -1).clone(), seeded_by(generator))
        if isinstance(answer, LaplaceAnswer):
            return (seen - scores[0]).abs().sum(1) - (seen - scores[1]).abs().sum(1)
        return seen @ (scores[1] - scores[0])

    proven = prove(answer, Budget(budget.epsilon, budget.delta, budget.neighbours), ())
    claimed = Claim(epsilon=proven.epsilon, delta=budget.delta, neighbours=budget.neighbours, source="its proof")
    gaussian = isinstance(answer, GaussianAnswer)
    return Game(name, play, budget.neighbours, budget.delta, claimed, proven, gaussian=gaussian)


def _fitted(method: Logits | Votes, dataset: Dataset, budget: Budget) -> ScoreRelease[Any]:
    network = Network("linear", dataset.public.shape, dataset.classes)
    return method.fit(network, dataset, budget, rng=Reproducible(0))


def _neighbours(dataset: Dataset, record: torch.Tensor, budget: Budget) -> tuple[Dataset, Dataset]:
    """World 0 without the record (under replace-one with the first class for a label) and world 1 with it, as class 1."""
    labels = [torch.cat([dataset.labels, torch.tensor([label])]) for label in (0, 1)]
    features = torch.cat([dataset.features, record[None]])
    without, with_it = (Dataset(dataset.name, features, each, dataset.public) for each in labels)
    return dataset if budget.neighbours == "add-or-remove" else without, with_it


def _public(features: int) -> Public:
    return Public(shape=(features,), classes=("0", "1"))
