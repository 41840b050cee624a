"""Private predictions over HTTP, for many clients, paid for from a ledger that cannot be overdrawn."""

from __future__ import annotations

from noiseproof.serve.app import create_app
from noiseproof.serve.client import Client, ServiceError
from noiseproof.serve.service import Settings

__all__ = ["Client", "ServiceError", "Settings", "create_app"]
