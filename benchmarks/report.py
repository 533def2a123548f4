"""Writes what a benchmark found to its JSON file, and prints it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posrec.io import read_json, write_json


def write_report(path: Path, report: dict[str, Any]) -> None:
    write_json(path, report)
    print(json.dumps(report, indent=2))


def replace_row(path: Path, row: dict[str, Any], key: Sequence[str]) -> None:
    """Write a row to a file of rows, in place of the one with the same values of `key`, and print it."""
    rows = read_json(path) if path.exists() else []
    others = [one for one in rows if any(one[name] != row[name] for name in key)]
    write_json(path, [*others, row])
    print(json.dumps(row, indent=2))
