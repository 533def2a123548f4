"""Broken lines of a log: reported together, or counted, left out and written to a file."""

import json
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

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
    """Collects the broken lines of a log. The policy is that of `--bad-lines`: stop or skip."""

    def __init__(self, policy: str = "stop", limit: float = 0.01) -> None:
        self.policy, self.limit = policy, limit
        self.count = 0
        self.first: list[BadLine] = []
        self.file: IO[str] | None = None  # all of them, as JSON lines; on disk, since there may be many

    def add(self, lines: Iterable[BadLine]) -> None:
        """Under `stop`, raise as soon as there are enough lines to report."""
        for line in lines:
            self.count += 1
            if len(self.first) < MAX_REPORTED:
                self.first.append(line)
            if self.policy == "stop" and self.count == MAX_REPORTED:
                raise self.stop_error()
            if self.policy == "skip":
                self.file = self.file or tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
                about = {name: value for name, value in asdict(line).items() if name in ("file", "reason", "text")}
                self.file.write(json.dumps({**about, line.unit: line.number}, ensure_ascii=False) + "\n")

    def move_to(self, path: Path) -> None:
        """Move the lines that were left out to a file, so that another process can `merge` them."""
        if self.file is not None:
            write_lines(path, [self.file])
            self.file = None

    def merge(self, other: "BadLines", path: Path) -> None:
        """Add those of another part of the log, whose lines that were left out are in a file."""
        self.count += other.count
        self.first = [*self.first, *other.first][:MAX_REPORTED]
        if path.exists():
            self.file = self.file or tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
            with path.open(encoding="utf-8") as lines:
                shutil.copyfileobj(lines, self.file)

    def finish(self, good: int, progress: Progress) -> None:
        """When the log is read: raise if lines are broken and may not be, otherwise report how many were left out."""
        if not self.count:
            return
        if self.policy == "stop":
            raise self.stop_error()
        total = good + self.count
        found = f"{self.count:,} of {total:,} lines ({self.count / total:.2%}) are broken"
        if self.count > self.limit * total:
            raise InputError(
                f"{found}, more than {self.limit:.2%}, so the log was not used; raise --bad-lines-limit, or fix:\n"
                + listed(self.first)
            )
        progress.message(f"{found} and were left out; the first:\n{listed(self.first[:MAX_SHOWN])}")

    def stop_error(self) -> InputError:
        skip, line = "pass --bad-lines skip to leave", self.first[0]
        if self.count == 1:
            advice = line.advice or f"fix or remove the {line.unit}"
            return InputError(f"{line}; {advice}\nOr {skip} the {line.unit} out.")
        found, which = f"{self.count} lines are broken", ""
        if self.count >= MAX_REPORTED:  # there may be more
            found, which = "the log has broken lines", f" The first {MAX_REPORTED}:"
        advice = next((other.advice for other in self.first if other.advice), "fix or remove them")
        return InputError(f"{found}; {advice}, or {skip} them out.{which}\n{listed(self.first)}")


def write_bad_lines(path: Path, logs: Sequence[BadLines]) -> bool:
    """Write the lines that were left out to a file, replacing that of an earlier run. Without any there is no file."""
    files = [log.file for log in logs if log.file is not None]
    if not files:
        path.unlink(missing_ok=True)
        return False
    with whole_file(path, overwrite=True) as unfinished:
        write_lines(unfinished, files)
    return True


def write_lines(path: Path, files: Sequence[IO[str]]) -> None:
    """Write the content of temporary files, which are used up."""
    with path.open("w", encoding="utf-8") as out:
        for file in files:
            file.seek(0)
            shutil.copyfileobj(file, out)
            file.close()


def listed(lines: list[BadLine]) -> str:
    return "\n".join(f"  {line}" for line in lines)
