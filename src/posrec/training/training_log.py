"""The log of a training run: a line of `log.jsonl` for each epoch, and with `--track` the same for
a tracker (tracking.py)."""

import json
from pathlib import Path
from typing import Any

from posrec.io import to_json, write_text
from posrec.training.tracking import Tracker

LOG = "log.jsonl"


class TrainingLog:
    """Writes into the folder `run`; without one it writes nothing."""

    def __init__(self, run: Path | None, tracker: Tracker) -> None:
        self.path = None if run is None else run / LOG
        self.point = tracker.point  # it is not in `log.jsonl`
        self.tracker = tracker

    def resume_after(self, epoch: int) -> None:
        """Remove what a killed process wrote after its last checkpoint: the lines of later epochs,
        and one that is not complete."""
        if self.path is None or not self.path.exists():
            return
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        complete = [line for line in lines if line.endswith("\n")]
        earlier = [line for line in complete if not is_later(line, epoch)]
        write_text(self.path, "".join(earlier))

    def epoch(self, epoch: int, **entry: Any) -> None:
        """Write a line, whose numbers the tracker gets (`name/key` in a dict)."""
        if self.path is None:
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(to_json({"epoch": epoch, **entry}) + "\n")
        values: dict[str, float] = {}
        for name, value in entry.items():
            if isinstance(value, dict):
                values |= {f"{name}/{key}": number for key, number in value.items()}
            else:
                values[name] = value
        self.tracker.epoch(values, epoch)


def is_later(line: str, epoch: int) -> bool:
    """Whether the line is of a later epoch. Lines with a `part` are of the part before."""
    entry = json.loads(line)
    return "part" not in entry and entry["epoch"] > epoch
