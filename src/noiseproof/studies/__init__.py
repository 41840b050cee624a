"""The papers' tables and figures, ours beside theirs."""

from noiseproof.studies.study import Column, Scale, Study, StudyResult, Table, get, names

__all__ = ["Column", "Scale", "Study", "StudyResult", "Table", "get", "names"]
