"""Is a claim true? Play against a mechanism and count; no look inside is needed."""

from __future__ import annotations

import torch

from noiseproof.audits import audit
from noiseproof.methods import get
from noiseproof.privacy import Budget, Claim, Game


def private_mean(records: torch.Tensor, trials: int, generator: torch.Generator) -> torch.Tensor:
    """Somebody's mean with Laplace noise, whose range is read off the records: that is its mistake."""
    scale = float(records.max() - records.min()) / len(records)
    noise = torch.empty(2, trials, dtype=torch.float64).exponential_(generator=generator)
    return records.double().mean() + scale * (noise[0] - noise[1])


def play(world: int, trials: int, generator: torch.Generator) -> torch.Tensor:
    """One record differs between the worlds; a larger score looks more like world 1."""
    records = torch.zeros(100)
    records[0] = 1.0
    records[1] = 3.0 * world
    return (private_mean(records, trials, generator) - 0.01).abs()


def main() -> None:
    """Audit the stranger, then two methods of the library."""
    claim = Claim(epsilon=1.0, delta=0.0, neighbours="replace-one", source="its manual")
    stranger = Game("a private mean", play, "replace-one", delta=0.0, claimed=claim)
    budget = Budget(epsilon=1.0, delta=1e-5)
    for game in (stranger, get("dp-sgd")().game(budget), get("neuron-laplace")().game(budget)):
        result = audit(game, trials=500, timeout=None)
        print(f"{game.name}: epsilon is at least {result.epsilon:.2f} of the 1 that is claimed: {result.verdict}")


if __name__ == "__main__":
    main()
