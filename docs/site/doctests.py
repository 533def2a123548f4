"""A griffe extension: the doctests of docstrings become code blocks."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(
    r"^(?P<indent> *)>>> .*(?:\n(?!\s*\n)(?P=indent).*)*", re.MULTILINE
)


class Doctests(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = DOCTEST.sub(fenced, obj.docstring.value)


def fenced(found: re.Match[str]) -> str:
    indent = found["indent"]
    return f"{indent}```pycon\n{found[0]}\n{indent}```"
