"""Who spent what: budgets that cannot be overdrawn, in SQLite or PostgreSQL, with receipts and a checkable history."""

from __future__ import annotations

from noiseproof.serve.ledger.amounts import Amount
from noiseproof.serve.ledger.answers import Answers
from noiseproof.serve.ledger.bindings import Binding
from noiseproof.serve.ledger.copies import backup, recover, restore
from noiseproof.serve.ledger.database import Database, LedgerAwayError, LedgerUnsureError
from noiseproof.serve.ledger.heads import Checkpoint
from noiseproof.serve.ledger.history import History
from noiseproof.serve.ledger.keys import Caller, Keys
from noiseproof.serve.ledger.ledger import Ledger
from noiseproof.serve.ledger.records import Balance, DataSetBalance, Paid, Promise, Receipt, Refused, Retry, Spend

__all__ = [
    "Amount",
    "Answers",
    "Balance",
    "Binding",
    "Caller",
    "Checkpoint",
    "DataSetBalance",
    "Database",
    "History",
    "Keys",
    "Ledger",
    "LedgerAwayError",
    "LedgerUnsureError",
    "Paid",
    "Promise",
    "Receipt",
    "Refused",
    "Retry",
    "Spend",
    "backup",
    "recover",
    "restore",
]
