"""Who spent what: budgets that cannot be overdrawn, in SQLite or PostgreSQL, with receipts and a checkable history."""

from noiseproof.ledger.amounts import Amount
from noiseproof.ledger.answers import Answers, RetryAnswer
from noiseproof.ledger.database import Database
from noiseproof.ledger.history import History
from noiseproof.ledger.keys import Caller, Keys
from noiseproof.ledger.ledger import Ledger, refusal
from noiseproof.ledger.spends import Balance, Paid, Receipt, Refused, Retry, Spend

__all__ = [
    "Amount",
    "Answers",
    "Balance",
    "Caller",
    "Database",
    "History",
    "Keys",
    "Ledger",
    "Paid",
    "Receipt",
    "Refused",
    "Retry",
    "RetryAnswer",
    "Spend",
    "refusal",
]
