"""Private records, and what is public about them."""

from __future__ import annotations

from noiseproof.data.arrays import from_arrays
from noiseproof.data.bounds import buy_bounds
from noiseproof.data.dataset import Column, Dataset, Public
from noiseproof.data.formats import register_format
from noiseproof.data.items import from_torch
from noiseproof.data.library import catalogue
from noiseproof.data.load import load
from noiseproof.data.raw import cluster_labels
from noiseproof.data.schema import Schema, read_schema
from noiseproof.data.splits import Split, neighbours, shards, split
from noiseproof.data.tables import decode, layout

__all__ = [
    "Column",
    "Dataset",
    "Public",
    "Schema",
    "Split",
    "buy_bounds",
    "catalogue",
    "cluster_labels",
    "decode",
    "from_arrays",
    "from_torch",
    "layout",
    "load",
    "neighbours",
    "read_schema",
    "register_format",
    "shards",
    "split",
]
