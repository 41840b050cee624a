"""The papers' tables and figures, ours beside theirs."""

from __future__ import annotations

from papers.study import Column, Scale, Study, StudyResult, Table, get, names

__all__ = ["Column", "Scale", "Study", "StudyResult", "Table", "get", "names"]
