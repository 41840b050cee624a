"""What can go wrong, each as one sentence that says what was wrong and what to do.

No message ever contains a private value: columns, shapes, counts and file names may be named, records may not.
"""

from __future__ import annotations


class NoiseproofError(Exception):
    """Something failed; the message is one sentence for people. The command line exits with 1."""


class SettingError(NoiseproofError, ValueError):
    """A setting is outside what is possible (an epsilon of 0, a rate over 1). The command line exits with 2."""


class DataError(NoiseproofError):
    """Records cannot be read or used as they are."""


class BudgetError(NoiseproofError):
    """A spend does not fit into what is left of a budget; nothing was released."""


class LedgerError(NoiseproofError):
    """The ledger cannot be reached, read or believed; nothing was released."""


class BundleError(NoiseproofError):
    """A bundle on disk is missing, truncated or changed."""


class UnsupportedError(NoiseproofError):
    """What was asked for has no sound implementation here: a layer that mixes records, an event no accountant knows."""


class MissingPartError(NoiseproofError):
    """An optional dependency is not installed; the message names the extra that brings it."""
