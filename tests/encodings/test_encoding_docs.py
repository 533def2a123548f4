"""The documentation's Python blocks run, and every command of the errata prints what the page
shows."""

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PYTHON = re.compile(r"```python\n(.*?)```", flags=re.DOTALL)
OWN = PYTHON.findall((DOCS / "own_encoding.md").read_text())
BLOCKS = PYTHON.findall((DOCS / "encodings.md").read_text())
BLOCKS += [block for block in OWN if "def nearness" in block]
ERRATA = re.split(r"^## ", (DOCS / "errata.md").read_text(), flags=re.MULTILINE)[1:]


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_python_blocks_about_encodings_run(block: str) -> None:
    assert "assert" in block
    exec(compile(block, "docs/encodings.md or own_encoding.md", "exec"), {})


@pytest.mark.parametrize(
    "entry", ERRATA, ids=[entry.splitlines()[0] for entry in ERRATA]
)
def test_each_erratum_has_a_command_that_prints_what_is_shown(entry: str) -> None:
    match = re.search(r"```sh\n(.*?)```\n\n```text\n(.*?)```", entry, flags=re.DOTALL)
    assert match, "no command, or not what it prints"
    program, option, code = shlex.split(match[1])
    assert (program, option) == ("python", "-c")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "docs/errata.md", "exec"), {})
    assert printed.getvalue() == match[2]
