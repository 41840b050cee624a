"""Run tests/regressions on 0.1 and here: each of its tests must fail there, by an assertion, and hold here.

python docs/tools/regressions.py            # makes a worktree of 0.1 for the time that it takes
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
OLD = "20f3222"
"""The commit of 0.1."""


def outcomes(source: Path, folder: Path) -> dict[str, str]:
    """For each item its outcome with the package in `source`: empty if all its tests hold, else what they found."""
    report = folder / "report.xml"
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{ROOT}", "COLUMNS": "200"}
    words = ["-q", "--noconftest", "-p", "no:cacheprovider", "-m", "slow or not slow", f"--junitxml={report}"]
    command = [sys.executable, "-m", "pytest", *words, "tests/regressions"]
    subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False)
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        item = case.attrib["name"].removeprefix("test_")[:2]
        failure = case.find("failure") if case.find("error") is None else case.find("error")
        said = "" if failure is None else failure.attrib["message"].splitlines()[0]
        found[item] = found.get(item, "") or said
    return found


def main() -> None:
    """Print both outcomes for every item; exit 1 unless all fail on 0.1 and hold here."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(folder / "old"), OLD], check=True)
        try:
            old, here = outcomes(folder / "old" / "src", folder), outcomes(ROOT / "src", folder)
        finally:
            subprocess.run([*git, "remove", "--force", str(folder / "old")], check=True)
    shown = [item for item in here if "assert" in old[item].lower() and not here[item]]
    for item in here:
        print(f"{item}  0.1: {old[item] or 'holds'}\n    now: {here[item] or 'holds'}")
    print(f"{len(shown)} of {len(here)} fail on 0.1 by what they assert and hold here.")
    sys.exit(len(shown) < len(here))


if __name__ == "__main__":
    main()
