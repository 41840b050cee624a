"""Audits: lower bounds on epsilon, from playing against a mechanism."""

from __future__ import annotations

from noiseproof.audits.audit import AuditError, AuditResult, audit, play
from noiseproof.audits.end_to_end import audit_end_to_end
from noiseproof.audits.one_run import (
    Guesses,
    OneRunBound,
    OneRunResult,
    guess,
    one_run_bound,
    one_run_epsilon,
    one_run_gaussian_epsilon,
    steinke_epsilon,
)
from noiseproof.audits.power import Power, one_run_power, two_worlds_power
from noiseproof.audits.program import Program, audit_program
from noiseproof.audits.two_worlds import Bound, Event, counting_bound, gaussian_bound

__all__ = [
    "AuditError",
    "AuditResult",
    "Bound",
    "Event",
    "Guesses",
    "OneRunBound",
    "OneRunResult",
    "Power",
    "Program",
    "audit",
    "audit_end_to_end",
    "audit_program",
    "counting_bound",
    "gaussian_bound",
    "guess",
    "one_run_bound",
    "one_run_epsilon",
    "one_run_gaussian_epsilon",
    "one_run_power",
    "play",
    "steinke_epsilon",
    "two_worlds_power",
]
