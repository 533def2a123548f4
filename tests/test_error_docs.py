"""docs/errors.md: every message that it quotes occurs in the source."""

import ast
import functools
import re
from collections.abc import Iterator

import pytest

from tests.helpers import ROOT, SOURCE

ROW = re.compile(r"^\| `(.+?)` \|", re.MULTILINE)
MESSAGES = ROW.findall((ROOT / "docs" / "errors.md").read_text(encoding="utf-8"))


def texts(code: str) -> Iterator[str]:
    """The strings of a module; every value that an f-string inserts is `{}`."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.JoinedStr):
            parts = [
                str(part.value) if isinstance(part, ast.Constant) else "{}"
                for part in node.values
            ]
            yield "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@functools.cache
def source_texts() -> list[str]:
    collected: list[str] = []
    for path in SOURCE.rglob("*.py"):
        collected += texts(path.read_text(encoding="utf-8"))
    return collected


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_occurs_in_the_source(message: str) -> None:
    """One string has the parts between the dots of the message, in their order."""
    pattern = re.compile(".*".join(map(re.escape, message.split("..."))), re.DOTALL)
    assert any(pattern.search(text) for text in source_texts())


def test_no_message_is_listed_twice() -> None:
    assert len(set(MESSAGES)) == len(MESSAGES) > 50
