"""Publish one network from many that saw disjoint shards: one record touches one of them."""

from __future__ import annotations

import noiseproof as npf
from noiseproof.audits import audit
from noiseproof.methods import get
from noiseproof.privacy import Budget


def main() -> None:
    """Train on shards, publish the noisy mean, and audit it beside a method whose networks share all records."""
    data = npf.load("digits")
    release = npf.train("shard-mean", data.train, epsilon=3, network="linear")
    card = release.card
    print(f"{card.verdict}: epsilon {card.proven.epsilon:.2f}, accuracy {npf.accuracy(release, data.test):.1%}")

    for name in ("shard-mean", "dp-pg"):
        game = get(name)().game(Budget(epsilon=3.0, delta=1e-5))
        result = audit(game, trials=300, timeout=None)
        print(f"{name}: at least {result.epsilon:.2f} of a promise of 3 for a {result.unit}: {result.verdict}")


if __name__ == "__main__":
    main()
