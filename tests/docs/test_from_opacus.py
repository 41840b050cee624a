"""The page for people who come from Opacus: the lines that it says are added are those that are."""

from __future__ import annotations

import ast
import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "from-opacus.md").read_text(encoding="utf-8")


def test_both_scripts_are_one_plain_script_and_the_marked_lines_of_which_ours_has_no_more():
    _, theirs, ours, *_ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    plain = [[line for line in script.splitlines() if not line.endswith("# +")] for script in (theirs, ours)]
    kept = [[line for line in lines if line.strip()] for lines in plain]
    assert kept[0] == kept[1]
    added = [script.count("# +") for script in (theirs, ours)]
    assert added == [int(count) for count in re.findall(r"\+(\d+) lines", PAGE)] == [11, 3]
    assert len(ast.parse(ours).body) <= len(ast.parse(theirs).body)
