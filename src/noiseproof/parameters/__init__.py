"""Noise at the parameters: publish a network that none of the trained ones is.

As published: `dp-pg` and `dp-pgp` (Mao et al. 2020). Proven siblings: `shard-mean`, `shard-pg`.
"""

from noiseproof.parameters.collection import Collection
from noiseproof.parameters.density import FittedDensity, PublicDensity, published_sensitivity, true_sensitivity
from noiseproof.parameters.dp_pg import DpPg
from noiseproof.parameters.dp_pgp import DpPgp
from noiseproof.parameters.kmeans import private_kmeans
from noiseproof.parameters.shard_mean import ShardMean
from noiseproof.parameters.shard_pg import ShardPg
from noiseproof.parameters.training import train_collection

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
