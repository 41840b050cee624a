"""Every command and every piece of Python in README and docs runs, and prints what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest
from snippets import Block, Session, agree, commands, read

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = {page: read(page) for page in PAGES}


def run(blocks, folder):
    with Session(folder) as session:
        for block in blocks:
            session.run(block)


def name(page):
    return str(page.relative_to(ROOT))


def runnable(slow):
    """Pages with something to run: without the slow blocks, or, where there are any, all of it."""
    for page, blocks in BLOCKS.items():
        ready = [block for block in blocks if not block.skipped]
        quick = [block for block in ready if not block.slow]
        if slow and len(quick) < len(ready):
            yield pytest.param(ready, id=name(page))
        if not slow and quick:
            yield pytest.param(quick, id=name(page))


@pytest.mark.parametrize("blocks", list(runnable(slow=False)))
def test_a_page_does_what_it_says(blocks, tmp_path):
    run(blocks, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("blocks", list(runnable(slow=True)))
def test_a_page_with_slow_blocks_does_what_it_says(blocks, tmp_path):
    run(blocks, tmp_path)


def block(text, language="console", marks=(), shown=""):
    return Block(Path("page.md"), 1, language, text, marks, shown)


def test_a_wrong_word_in_an_output_fails(tmp_path):
    with Session(tmp_path) as session:
        session.run(block("$ echo 3 records\n4 records\n"))
        with pytest.raises(AssertionError, match="the page shows"):
            session.run(block("$ echo 3 records\n3 people\n"))
        with pytest.raises(AssertionError, match="the page shows"):
            session.run(block("$ echo 3 records\n4 records\n", marks=("exact",)))
        with pytest.raises(AssertionError, match="the page shows"):
            session.run(block("print('yes')", "python", shown="no\n"))


def test_a_command_that_fails_fails_unless_its_error_is_shown(tmp_path):
    with Session(tmp_path) as session:
        session.run(block("$ noiseproof train no-such-method\nerror: there is no method 'no-such-method'; ...\n"))
        with pytest.raises(AssertionError, match="exited with 2"):
            session.run(block("$ noiseproof train no-such-method\n"))
        with pytest.raises(AssertionError, match="exited with 3"):
            session.run(block("$ bash -c 'exit 3'\n"))


def test_commands_share_files_and_variables_and_python_shares_names(tmp_path):
    with Session(tmp_path) as session:
        session.run(block("$ export WORD=one\n$ cat > file <<'EOF'\n> two\n> EOF\n$ echo $WORD $(cat file)\none two\n"))
        session.run(
            block("import os\nfrom pathlib import Path\nword = os.environ['WORD'] + Path('file').read_text()", "python")
        )
        session.run(block("print(word)", "python", shown="onetwo\n"))


def test_an_ellipsis_is_anything_and_layout_does_not_count():
    assert agree("┏━━┓\n┃ a ┃ b ┃", "| a".replace("|", "┃") + "   b")
    assert agree("first\n...\nlast", "first\n1\n2\nlast")
    assert not agree("first\n...\nlast", "first\n1\n2")
    assert agree("a ... nothing proven ... 3", "a\n│ 0.9 │ nothing │ 2 │\n│     │ proven  │   │\n3")
    assert agree("accuracy 94.4%", "accuracy 91%")
    assert not agree("verdict proven", "verdict refuted")


def test_a_block_is_skipped_with_a_reason_only(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- test: skip -->\n```console\n$ false\n```\n")
    with pytest.raises(ValueError, match="say why"):
        read(page)
    page.write_text("<!-- test: skip, because it fails -->\n```console\n$ false\n```\n\n```console\n$ true\n```\n")
    assert [found.skipped for found in read(page)] == [True, False]


def test_continued_commands_are_one():
    assert list(commands(block("$ cat <<E\n> a\n> E\na\n$ true\n"))) == [("cat <<E\na\nE", "a\n"), ("true", "")]
