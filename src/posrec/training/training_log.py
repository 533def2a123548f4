"""The log of a training run: a line of `log.jsonl` for each epoch, and with `--track` the same for
TensorBoard."""

import json
from pathlib import Path
from typing import Any

from posrec.io import to_json, write_text

LOG = "log.jsonl"
EVENTS = "tensorboard"


class TrainingLog:
    """Writes into the folder `run`; with `track`, scalars into the folder `tensorboard` there too.
    Without a folder it writes nothing."""

    def __init__(self, run: Path | None, track: bool = False) -> None:
        self.path = None if run is None else run / LOG
        self.events: Any = None
        if run is not None and track:
            from torch.utils.tensorboard import SummaryWriter

            self.events = SummaryWriter(str(run / EVENTS))

    def close(self) -> None:
        if self.events is not None:
            self.events.close()

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
        """Write a line, and a TensorBoard point for each number in it (`name/key` in a dict)."""
        if self.path is None:
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(to_json({"epoch": epoch, **entry}) + "\n")
        for name, value in entry.items():
            if isinstance(value, dict):
                for key, number in value.items():
                    self.point(f"{name}/{key}", number, epoch)
            else:
                self.point(name, value, epoch)

    def point(self, name: str, value: float, at: int) -> None:
        """Write a point for TensorBoard; it is not in `log.jsonl`."""
        if self.events is not None:
            self.events.add_scalar(name, value, at)


def is_later(line: str, epoch: int) -> bool:
    """Whether the line is of a later epoch. Lines with a `part` are of the part before."""
    entry = json.loads(line)
    return "part" not in entry and entry["epoch"] > epoch
