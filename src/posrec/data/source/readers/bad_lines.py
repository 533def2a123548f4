"""Broken lines of a log: reported together, or counted, left out and written to a file."""

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from posrec.errors import InputError
from posrec.io import whole_file
from posrec.progress import Progress

MAX_REPORTED = 10  # broken lines in an error
MAX_SHOWN = 3  # broken lines in the message about those that were left out


@dataclass(frozen=True)
class BadLine:
    """A line (or a row of a table) that can't be read, and why."""

    file: str
    number: int
    reason: str
    text: str  # as it is in the file
    advice: str = ""  # to fix or remove it, unless it says more
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}: {self.reason}"


class BadLines:
    """Collects the broken lines of a log. The policy is that of `--bad-lines`: stop or skip.

    Those that are left out are written to `path` as JSON lines.
    """

    def __init__(self, policy: str, limit: float, path: Path) -> None:
        self.policy = policy
        self.limit = limit
        self.path = path
        self.count = 0
        self.first: list[BadLine] = []
        self.files: list[Path] = []

    def add(self, lines: Iterable[BadLine]) -> None:
        """Under `stop`, raise as soon as there are enough lines to report."""
        left_out = []
        for line in lines:
            self.count += 1
            if len(self.first) < MAX_REPORTED:
                self.first.append(line)
            if self.policy == "stop" and self.count == MAX_REPORTED:
                raise self.stop_error()
            about = {
                "file": line.file,
                "reason": line.reason,
                "text": line.text,
                line.unit: line.number,
            }
            left_out.append(json.dumps(about, ensure_ascii=False) + "\n")
        if self.policy == "skip" and left_out:
            # The file may be there already: a task whose process has died is run again.
            with self.path.open("a" if self.files else "w", encoding="utf-8") as file:
                file.writelines(left_out)
            self.files = [self.path]

    def merge(self, other: "BadLines") -> None:
        """Add those of another part of the log."""
        self.count += other.count
        self.first = [*self.first, *other.first][:MAX_REPORTED]
        self.files = [*self.files, *other.files]

    def finish(self, good: int, progress: Progress) -> None:
        """Raise if lines are broken and may not be, otherwise report how many were left out."""
        if not self.count:
            return
        if self.policy == "stop":
            raise self.stop_error()
        total = good + self.count
        found = (
            f"{self.count:,} of {total:,} lines ({self.count / total:.2%}) are broken"
        )
        if self.count > self.limit * total:
            raise InputError(
                f"{found}, more than {self.limit:.2%}, so the log was not used; raise --bad-lines-limit, or fix:\n"
                + listed(self.first)
            )
        progress.message(
            f"{found} and were left out; the first:\n{listed(self.first[:MAX_SHOWN])}"
        )

    def stop_error(self) -> InputError:
        if len(self.first) == 1:
            found = str(self.first[0])
            them = "it"
        else:
            which = (
                f"{self.count}"
                if self.count < MAX_REPORTED
                else f"at least {MAX_REPORTED}"
            )  # there may be more
            found = f"{which} lines are broken"
            them = "them"
        advice = next(
            (line.advice for line in self.first if line.advice), f"fix or remove {them}"
        )
        others = f":\n{listed(self.first)}" if len(self.first) > 1 else ""
        return InputError(
            f"{found}; {advice}, or pass --bad-lines skip to leave {them} out{others}"
        )


def write_bad_lines(path: Path, files: Sequence[Path]) -> bool:
    """Write the lines that were left out, replacing those of an earlier run."""
    if not files:
        path.unlink(missing_ok=True)
        return False
    with whole_file(path, overwrite=True) as unfinished, unfinished.open("wb") as out:
        for file in files:
            with file.open("rb") as lines:
                shutil.copyfileobj(lines, out)
    return True


def listed(lines: list[BadLine]) -> str:
    return "\n".join(f"  {line}" for line in lines)
