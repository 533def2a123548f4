"""What every result records, the machine and versions; and files with a row for each measurement."""

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from posrec.io import read_json, write_json


def conditions() -> dict[str, Any]:
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    return {
        "load_average": round(os.getloadavg()[0], 2),
        "threads": torch.get_num_threads(),
        "machine": f"{machine}, {torch.cuda.get_device_name()}" if torch.cuda.is_available() else machine,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def replace_row(path: Path, row: dict[str, Any], key: Sequence[str]) -> None:
    """Print a row and write it to a JSON file of rows, in place of the one with the same values of `key`."""
    rows = read_json(path) if path.exists() else []
    others = [one for one in rows if any(one[name] != row[name] for name in key)]
    write_json(path, [*others, row])
    print(json.dumps(row, indent=2))
