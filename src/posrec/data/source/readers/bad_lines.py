"""Broken lines of a log: reported together, or counted, left out and written to a file."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from posrec.errors import InputError
from posrec.io import whole_file
from posrec.progress import Progress

MAX_REPORTED = 10  # broken lines at which the reading stops
# In a reason: what was found in place of an id, a time or JSON.
VALUES = re.compile(r"^'.*' (?=in column)|(?<= is ).*(?=, )|\(.*\)$")
MAX_CAUSES = 10  # of broken lines in a message


class BadLine(NamedTuple):
    """A line (or a row of a table) that can't be read, and why."""

    file: str
    number: int
    reason: str
    text: str  # as it is in the file
    advice: str = ""  # if there is better advice than to fix or remove it
    unit: str = "line"

    @property
    def cause(self) -> str:
        """The reason without values that differ from line to line."""
        return VALUES.sub("", self.reason)

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}: {self.reason}"


@dataclass
class BadLines:
    policy: str  # that of `--bad-lines`: stop or skip
    limit: float  # the largest share of lines that may be skipped
    path: Path  # for JSON lines of what is skipped
    good: Counter[str] = field(default_factory=Counter)  # other lines, by file
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)  # by file, cause
    first: dict[tuple[str, str], BadLine] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)

    @property
    def count(self) -> int:
        return self.counts.total()

    def add(self, lines: Iterable[BadLine]) -> None:
        """Under `stop`, raise as soon as there are enough lines to report."""
        skipped = []
        for line in lines:
            key = (line.file, line.cause)
            self.counts[key] += 1
            self.first.setdefault(key, line)
            if self.policy == "stop" and self.count == MAX_REPORTED:
                raise self.stop_error()
            about = {"file": line.file, "reason": line.reason, "text": line.text}
            entry = about | {line.unit: line.number}
            skipped.append(json.dumps(entry, ensure_ascii=False) + "\n")
        if self.policy == "skip" and skipped:
            with self.path.open("a", encoding="utf-8") as file:
                file.writelines(skipped)
            self.files = [self.path]

    def merge(self, other: "BadLines") -> None:
        self.good += other.good
        self.counts += other.counts
        for key, line in other.first.items():
            self.first.setdefault(key, line)
        self.files += other.files

    def finish(self, progress: Progress) -> None:
        if not self.counts:
            return
        if self.policy == "stop":
            raise self.stop_error()
        for file in dict.fromkeys(file for file, _ in self.counts):
            counts = {key: n for key, n in self.counts.items() if key[0] == file}
            good = Counter({file: self.good[file]})
            of_file = replace(self, good=good, counts=Counter(counts))
            # One line is allowed, as a file may be cut off in its last line.
            of_file.check_share(f"{file}: ", at_least=1)
        summary = self.check_share()
        progress.message(f"{summary} and were left out:{self.listed()}")

    def check_share(self, name: str = "", at_least: int = 0) -> str:
        """How many lines are broken; raises if these are too many."""
        good = self.good.total()
        total = good + self.count
        share = self.count / total
        summary = f"{name}{self.count:,} of {total:,} lines ({share:.2%}) are broken"
        if good and self.count <= max(at_least, self.limit * total):
            return summary
        advice = "leave the file out, or describe it with --format or --columns"
        if good:
            summary += f", more than {self.limit:.2%}"
            advice = "raise --bad-lines-limit, or fix"
        raise InputError(
            f"{summary}, so the log was not used; {advice}:{self.listed()}"
        )

    def stop_error(self) -> InputError:
        count = self.count
        if count == 1:
            (line,) = self.first.values()
            summary = str(line)
            them = "it"
            lines = ""
        else:
            # The reading stops there, so that there may be more.
            at_least = "at least " if count >= MAX_REPORTED else ""
            summary = f"{at_least}{count} lines are broken"
            them = "them"
            lines = f":{self.listed()}"
        advices = [line.advice for line in self.first.values() if line.advice]
        advice = advices[0] if advices else f"fix or remove {them}"
        return InputError(
            f"{summary}; {advice}, or pass --bad-lines skip to leave {them} out{lines}"
        )

    def listed(self) -> str:
        """A line for each cause, the most frequent first."""
        causes: Counter[str] = Counter()
        first: dict[str, BadLine] = {}
        for key, count in self.counts.items():
            causes[key[1]] += count
            first.setdefault(key[1], self.first[key])
        lines = []
        for cause, count in causes.most_common(MAX_CAUSES):
            several = f"{count:,} {first[cause].unit}s such as " if count > 1 else ""
            lines.append(f"\n  {several}{first[cause]}")
        return "".join(lines)


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
