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
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}"
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@functools.cache
def source_texts() -> tuple[str, ...]:
    return tuple(
        text
        for path in SOURCE.rglob("*.py")
        for text in texts(path.read_text(encoding="utf-8"))
    )


def occurs(message: str, sources: tuple[str, ...]) -> bool:
    """Whether one of `sources` has the parts between the dots of `message`, in their order."""
    pattern = re.compile(".*".join(map(re.escape, message.split("..."))), re.DOTALL)
    return any(pattern.search(text) for text in sources)


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_occurs_in_the_source(message: str) -> None:
    assert occurs(message, source_texts())


def test_no_message_is_listed_twice() -> None:
    assert len(set(MESSAGES)) == len(MESSAGES) > 50
