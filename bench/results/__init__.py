"""Proven accuracy: what the recipes reach at a proven epsilon, beside what the papers claimed; `make results`."""

from __future__ import annotations
