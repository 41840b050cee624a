"""The colours of every chart, for people of all kinds of colour vision."""

from __future__ import annotations

PALETTE = (
    *(("#4d4d4d", "#c8c8c8"), ("#0072b2", "#56b4e9"), ("#b84700", "#ff9557"), ("#00755a", "#2ccb9b")),
    *(("#a23b7c", "#ee9fcb"), ("#806000", "#f0c24b"), ("#5b4bb7", "#b3a7ff"), ("#007a8a", "#4fd8e6")),
)
"""Each colour on light and on dark ground. Lines and points differ in more than colour wherever it is used."""
