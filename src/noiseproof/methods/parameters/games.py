"""Games at the parameters: one model, or one shard's record, and what its absence does to a published network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from noiseproof.methods.common import seeded_by
from noiseproof.methods.parameters.collection import Collection, Layout
from noiseproof.methods.parameters.density import scores
from noiseproof.privacy import Budget, Claim, Game

if TYPE_CHECKING:
    from noiseproof.methods.parameters.dp_pg import PublishingMethod
    from noiseproof.methods.parameters.shards import ShardMean, ShardPg


_PARAMETERS = 100
_TOGETHER = 50
"""Trials that are drawn as the layers of one network; layers are drawn independently."""


def model_game(method: PublishingMethod, budget: Budget, parameters: int = _PARAMETERS) -> Game:
    """One model less: half of all models have 1 where the others have -1, and one of those with 1 is left out.

    With both halves as many, a draw is as likely to be near 1 as near -1; with one less it is likelier near -1. Every
    parameter is such a draw. The score is how many of them are below 0: what differs in the grids' ends does not even
    count. A third as many parameters lie around 100, so that a method which treats large ones apart has them. Trials
    run the method's own draw.
    """
    models = method.models // 2 * 2
    sides = torch.ones(models, 1).index_fill(0, torch.arange(models // 2), -1.0).expand(models, parameters)
    large = 100 + torch.linspace(-1, 1, models)[:, None] + torch.linspace(0, 1, parameters // 3)
    rows = torch.cat([sides, large], dim=1)
    worlds = (rows, rows[:-1])

    def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
        rng = seeded_by(generator)
        found = []
        for start in range(0, trials, _TOGETHER):
            count = min(_TOGETHER, trials - start)
            layout = Layout(tuple((f"{layer}.weight", (rows.shape[1],)) for layer in range(count)))
            drawn = method.draw(Collection(worlds[world].repeat(1, count), layout), budget, rng).values
            found.append((drawn.reshape(count, -1)[:, :parameters] < 0).sum(1))
        return torch.cat(found).double()

    claimed = method.claim(budget)
    return Game(
        f"{method.name}: one of {models} models is left out",
        play,
        "add-or-remove",
        budget.delta,
        claimed,
        unit="model",
    )


def shard_mean_game(method: ShardMean, budget: Budget) -> Game:
    """A record turns its shard's update from one direction to the opposite one; the other shards do not move."""
    shards, parameters = 10, 3
    updates = torch.zeros(2, shards, parameters)
    updates[0, 0, 0], updates[1, 0, 0] = -1e3, 1e3
    means = [method.mean(world) for world in updates]
    mechanism = method.mechanism(budget, shards)

    def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
        noised = mechanism.release(means[world].expand(trials, -1).clone(), seeded_by(generator))
        return noised[:, 0].double()

    proven = method.proof(budget, mechanism, ())
    claimed = Claim(epsilon=proven.epsilon, delta=budget.delta, neighbours=budget.neighbours, source="its proof")
    return Game(
        f"{method.name}: an update turns round",
        play,
        budget.neighbours,
        budget.delta,
        claimed,
        proven,
        gaussian=True,
    )


def shard_pg_game(method: ShardPg, budget: Budget) -> Game:
    """A record moves its shard's update from one side of 0 to the other, at every parameter; half of the others lie there.

    The score is the likelihood ratio of what was drawn, but for a constant: how much more world 1 likes it.
    """
    shards, parameters = 50, 16
    density = method.density()
    place = density.radius / 2
    sides = torch.full((2, parameters, shards), place, dtype=torch.float64)
    sides[:, :, : shards // 2] = -place
    sides[0, :, -1] = -place
    mechanism = method.mechanism(budget, shards, parameters)
    # The grid is public, and so the same in both worlds.
    grid, width = density.grid(sides[0])
    scored = torch.stack([scores(values, grid, width, density) for values in sides])

    def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
        chosen = mechanism.release(scored[world].expand(trials, -1, -1), seeded_by(generator))
        gains = (scored[1] - scored[0]).expand(trials, -1, -1).gather(2, chosen[..., None])
        return gains.sum((1, 2)) / mechanism.sensitivity

    proven = method.proof(budget, mechanism, parameters, ())
    claimed = Claim(epsilon=proven.epsilon, delta=budget.delta, neighbours=budget.neighbours, source="its proof")
    return Game(f"{method.name}: an update changes sides", play, budget.neighbours, budget.delta, claimed, proven)
