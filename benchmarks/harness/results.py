"""The arguments of a benchmark and its result file, with the command and the conditions."""

import argparse
import json
import os
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.measuring import this_module
from posrec.io import read_json, write_json


def parser_for(about: str | None, out: str | None = None) -> argparse.ArgumentParser:
    """A parser whose help is the script's docstring; `out` is the default of the option --out."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if out is not None:
        parser.add_argument(
            "--out", type=Path, default=Path(out), help="the result file"
        )
    return parser


def options(about: str | None, out: str, **defaults: Any) -> argparse.Namespace:
    """Parse --out and an option for each default, of the default's type."""
    parser = parser_for(about, out)
    for name, default in defaults.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        else:
            parser.add_argument(
                flag, type=type(default), default=default, help=f"[default: {default}]"
            )
    return parser.parse_args()


def command() -> str:
    """The command line of this script, from the root of the repository."""
    return shlex.join(["python", "-m", this_module(), *sys.argv[1:]])


def conditions() -> dict[str, Any]:
    """The machine and versions that every result records."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    if torch.cuda.is_available():
        machine += f", {torch.cuda.get_device_name()}"
    return {
        "load_average": round(os.getloadavg()[0], 2),
        "threads": torch.get_num_threads(),
        "machine": machine,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Write a result with its command and conditions, and print it."""
    record = {"command": command(), **result, **conditions()}
    write_json(path, record)
    print(json.dumps(record, indent=2))


def write_row(path: Path, row: Mapping[str, Any], key: Sequence[str]) -> None:
    """The same for a file of rows: the row replaces the one with the same values of `key`."""
    rows = read_json(path) if path.exists() else []
    record = {"command": command(), **row, **conditions()}
    others = [old for old in rows if any(old[name] != row[name] for name in key)]
    write_json(path, [*others, record])
    print(json.dumps(record, indent=2))
