"""Audits: lower bounds on epsilon, from playing against a mechanism."""

from __future__ import annotations

from noiseproof.audits.audit import AuditError, AuditResult, audit, play
from noiseproof.audits.end_to_end import audit_end_to_end
from noiseproof.audits.one_run import Guesses, guess, one_run_bound, one_run_epsilon, one_run_gaussian_epsilon
from noiseproof.audits.two_worlds import Bound, Event, counting_bound, gaussian_bound

__all__ = [
    "AuditError",
    "AuditResult",
    "Bound",
    "Event",
    "Guesses",
    "audit",
    "audit_end_to_end",
    "counting_bound",
    "gaussian_bound",
    "guess",
    "one_run_bound",
    "one_run_epsilon",
    "one_run_gaussian_epsilon",
    "play",
]
