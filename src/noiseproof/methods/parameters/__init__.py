"""Noise at the parameters: publish a network that none of the trained ones is.

As published: `dp-pg` and `dp-pgp` (Mao et al. 2020). Proven siblings: `shard-mean`, `shard-pg`.
"""

from __future__ import annotations

from noiseproof.methods.parameters.collection import Collection
from noiseproof.methods.parameters.density import FittedDensity, PublicDensity, published_sensitivity, true_sensitivity
from noiseproof.methods.parameters.dp_pg import DpPg
from noiseproof.methods.parameters.dp_pgp import DpPgp, private_kmeans
from noiseproof.methods.parameters.shards import ShardMean, ShardPg
from noiseproof.methods.parameters.training import train_collection

__all__ = [
    "Collection",
    "DpPg",
    "DpPgp",
    "FittedDensity",
    "PublicDensity",
    "ShardMean",
    "ShardPg",
    "private_kmeans",
    "published_sensitivity",
    "train_collection",
    "true_sensitivity",
]
