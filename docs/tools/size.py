"""How large the package is: files, lines of code, and what a few everyday calls pass through.

`python docs/tools/size.py [FOLDER]` counts lines that are neither blank, nor comment, nor docstring.
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from collections import defaultdict
from pathlib import Path

_LAYOUT = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
)


def code_lines(text: str) -> int:
    """Lines of a module that hold code."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings)


def main(root: Path) -> None:
    """Print the totals, then a line a package."""
    found = {path: path.read_text("utf-8") for path in sorted(root.rglob("*.py"))}
    code = {path: code_lines(text) for path, text in found.items()}
    raw = {path: len(text.splitlines()) for path, text in found.items()}
    print(
        f"{len(code)} files, {sum(code.values())} lines of code ({sum(raw.values())} in all), median "
        f"{statistics.median(raw.values()):g} lines a file, {sum(n < 40 for n in raw.values())} files under 40 lines, "
        f"{sum(n > 400 for n in raw.values())} over 400"
    )
    parts: dict[str, list[int]] = defaultdict(list)
    for path, lines in code.items():
        parts["/".join(path.relative_to(root).parts[:-1][:2]) or "."].append(lines)
    for part, lines in sorted(parts.items()):
        print(f"{part:24} {len(lines):4} files {sum(lines):6} lines")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "src/noiseproof"))
