"""Broken lines of a log: reported together, or counted, left out and written to a file."""

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from posrec.errors import InputError
from posrec.io import whole_file
from posrec.progress import Progress

MAX_REPORTED = 10  # broken lines in an error
MAX_SHOWN = 3  # broken lines in a message


class BadLine(NamedTuple):
    """A line (or a row of a table) that can't be read, and why."""

    file: str
    number: int
    reason: str
    text: str  # as it is in the file
    advice: str = ""  # if there is better advice than to fix or remove it
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}: {self.reason}"


@dataclass
class BadLines:
    policy: str  # that of `--bad-lines`: stop or skip
    limit: float  # the largest share of lines that may be skipped
    path: Path  # for JSON lines of what is skipped
    count: int = 0
    first: list[BadLine] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)

    def add(self, lines: Iterable[BadLine]) -> None:
        """Under `stop`, raise as soon as there are enough lines to report."""
        skipped = []
        for line in lines:
            self.count += 1
            if len(self.first) < MAX_REPORTED:
                self.first.append(line)
            if self.policy == "stop" and self.count == MAX_REPORTED:
                raise self.stop_error()
            about = {"file": line.file, "reason": line.reason, "text": line.text}
            entry = about | {line.unit: line.number}
            skipped.append(json.dumps(entry, ensure_ascii=False) + "\n")
        if self.policy == "skip" and skipped:
            # The file may exist at first: a task whose process has died is run again.
            mode = "a" if self.files else "w"
            with self.path.open(mode, encoding="utf-8") as file:
                file.writelines(skipped)
            self.files = [self.path]

    def merge(self, other: "BadLines") -> None:
        self.count += other.count
        self.first = [*self.first, *other.first][:MAX_REPORTED]
        self.files += other.files

    def finish(self, good: int, progress: Progress) -> None:
        if not self.count:
            return
        if self.policy == "stop":
            raise self.stop_error()
        total = good + self.count
        share = self.count / total
        summary = f"{self.count:,} of {total:,} lines ({share:.2%}) are broken"
        if self.count > self.limit * total:
            raise InputError(
                f"{summary}, more than {self.limit:.2%}, so the log was not used; "
                f"raise --bad-lines-limit, or fix:{listed(self.first)}"
            )
        shown = listed(self.first[:MAX_SHOWN])
        progress.message(f"{summary} and were left out; the first:{shown}")

    def stop_error(self) -> InputError:
        if len(self.first) == 1:
            summary = str(self.first[0])
            them = "it"
            lines = ""
        else:
            # The reading stops there, so that there may be more.
            at_least = "at least " if self.count >= MAX_REPORTED else ""
            summary = f"{at_least}{len(self.first)} lines are broken"
            them = "them"
            lines = f":{listed(self.first)}"
        advices = [line.advice for line in self.first if line.advice]
        advice = advices[0] if advices else f"fix or remove {them}"
        return InputError(
            f"{summary}; {advice}, or pass --bad-lines skip to leave {them} out{lines}"
        )


def write_bad_lines(path: Path, files: Sequence[Path]) -> bool:
    if not files:
        path.unlink(missing_ok=True)
        return False
    # The user has not named this file, so a link there may be another's.
    with (
        whole_file(path, overwrite=True, follow=False) as unfinished,
        unfinished.open("wb") as out,
    ):
        for file in files:
            with file.open("rb") as lines:
                shutil.copyfileobj(lines, out)
    return True


def listed(lines: list[BadLine]) -> str:
    return "".join(f"\n  {line}" for line in lines)
