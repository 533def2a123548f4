"""What the tables of all pages share: the figures, and a table as mdformat writes it, so that
generated and formatted pages are the same."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Table = list[list[str]]


@cache
def result(name: str) -> Any:
    """A file of results/."""
    return json.loads((ROOT / "results" / f"{name}.json").read_text(encoding="utf-8"))


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the head."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    rule = "| " + " | ".join(["--"] * len(rows[0])) + " |"
    return "\n".join([head, rule, *body])
