"""nights.jsonl: a line for every night, with what became of it, why, and its figures."""

import json
from pathlib import Path
from typing import Any

from posrec.errors import InputError
from posrec.io.files import parse_json

FILE = "nights.jsonl"
PROMOTED = "promoted"
HELD = "held"  # by the gate
NOTHING_NEW = "nothing new"
FAILED = "failed"
COMPARED = 7  # nights, the latest promoted ones

Record = dict[str, Any]


def read_nights(home: Path) -> list[Record]:
    path = home / FILE
    if not path.exists():
        return []
    nights = [parse_json(line, path) for line in path.read_bytes().splitlines()]
    if not all(isinstance(night, dict) and "outcome" in night for night in nights):
        raise InputError(f"{path} has a line without an outcome; move the file away")
    return nights


def promoted_nights(home: Path) -> list[Record]:
    """The latest of those whose model was promoted, the oldest first."""
    nights = read_nights(home)
    promoted = [night for night in nights if night.get("outcome") == PROMOTED]
    return promoted[-COMPARED:]


def add_night(home: Path, record: Record) -> None:
    with (home / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
