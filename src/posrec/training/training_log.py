"""The log of a training run: a line of `log.jsonl` for each epoch, and with `--track` the same for
TensorBoard."""

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from posrec.io import write_text

LOG = "log.jsonl"
EVENTS = "tensorboard"


class TrainingLog:
    """Writes into the folder `run`. With `track`, it writes scalars into the folder `tensorboard`
    there too. Without a folder it writes nothing."""

    def __init__(self, run: Path | None, track: bool = False) -> None:
        self.path = None if run is None else run / LOG
        self.events: Any = None
        if run is not None and track:
            from torch.utils.tensorboard import SummaryWriter

            self.events = SummaryWriter(str(run / EVENTS))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self.events is not None:
            self.events.close()

    def resume_after(self, epoch: int) -> None:
        """Remove the lines of later epochs: a process that was killed wrote them after its last
        checkpoint."""
        if self.path is not None and self.path.exists():
            lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
            write_text(
                self.path,
                "".join(
                    line
                    for line in lines
                    if is_whole(line) and not is_later(line, epoch)
                ),
            )

    def epoch(self, epoch: int, **entry: Any) -> None:
        """Write a line, and a TensorBoard point for each number in it; those of a dictionary are
        `name/key`."""
        if self.path is None:
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"epoch": epoch, **entry}) + "\n")
        for name, value in entry.items():
            for part, number in (
                value.items() if isinstance(value, dict) else {"": value}.items()
            ):
                self.point(f"{name}/{part}" if part else name, number, epoch)

    def point(self, name: str, value: float, at: int) -> None:
        """Write a point for TensorBoard; it is not in `log.jsonl`."""
        if self.events is not None:
            self.events.add_scalar(name, value, at)


def is_whole(line: str) -> bool:
    """Whether the process was not killed while it wrote the line."""
    return line.endswith("\n")


def is_later(line: str, epoch: int) -> bool:
    """Whether the line is about an epoch after this one. Lines with a `part` are of the part before
    this training."""
    entry = json.loads(line)
    return "part" not in entry and entry["epoch"] > epoch
