"""The folder of all nights: data/NIGHT, judged/NIGHT, runs/NIGHT, nights.jsonl, and `current`."""

import json
import shutil
from pathlib import Path
from typing import Any

from posrec.errors import InputError
from posrec.io.files import parse_json

FILE = "nights.jsonl"
COMPARED = 7  # nights, the latest promoted ones
PROMOTED = "promoted"
HELD = "held"  # by the gate
NOTHING_NEW = "nothing new"
FAILED = "failed"
KINDS = ("data", "judged", "runs")

Record = dict[str, Any]  # of a night


def read_nights(home: Path) -> list[Record]:
    path = home / FILE
    lines = path.read_bytes().splitlines() if path.exists() else []
    nights = [parse_json(line, path) for line in lines]
    if not all(isinstance(night, dict) and "outcome" in night for night in nights):
        raise InputError(f"{path} has a line without an outcome; move the file away")
    return nights


def promoted_nights(home: Path) -> list[Record]:
    nights = read_nights(home)
    return [night for night in nights if night["outcome"] == PROMOTED][-COMPARED:]


def add_night(home: Path, night: Record) -> None:
    with (home / FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(night) + "\n")


def switch(link: Path, target: Path) -> None:
    """Point `link` to `target` in one step: a reader sees the old target or the new one."""
    aside = link.with_name(f".{link.name}.new")
    aside.unlink(missing_ok=True)
    aside.symlink_to(target)
    aside.replace(link)


def remove_old(home: Path, keep: int) -> None:
    """Remove all but the latest nights, and never the one that is served."""
    nights = sorted(
        path.name for path in (home / "data").glob("[!.]*") if path.is_dir()
    )
    for name in nights[: max(0, len(nights) - keep)]:
        if name != (home / "current").resolve().name:
            remove_night(home, name)


def remove_night(home: Path, name: str) -> None:
    for kind in KINDS:
        shutil.rmtree(home / kind / name, ignore_errors=True)
    (home / "data" / f"{name}.bad-lines.jsonl").unlink(missing_ok=True)
