"""What long work tells the outside: a sentence worth hearing, and how far it has come.

Library code speaks to a `Listener`; the command line passes one that draws a progress bar. The default prints
sentences to standard error and draws nothing.
"""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class Listener:
    """Hears of guesses and progress; override what you want to show."""

    def say(self, sentence: str) -> None:
        print(sentence, file=sys.stderr)

    def progress(self, work: str, done: float, total: float, note: str = "") -> None:
        """`done` of `total` in whatever unit the work counts; a new `work` starts a new bar."""

    def validated(self, epoch: int, metrics: dict[str, float]) -> None:
        """The validation metrics of a finished epoch, under early stopping; may raise to end the training."""


class SilentListener(Listener):
    def say(self, sentence: str) -> None:
        pass


class TerminalListener(Listener):
    """Draws a bar on standard error while inside `with`; where that is no terminal only the sentences are printed."""

    def __init__(self) -> None:
        self.console = Console(stderr=True, highlight=False, emoji=False)
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
        after = (TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
        disable = not self.console.is_terminal
        self.bars = Progress(*columns, *after, console=self.console, transient=True, disable=disable)
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.bars.stop()

    def say(self, sentence: str) -> None:
        self.console.print(sentence, markup=False, soft_wrap=True)

    def progress(self, work: str, done: float, total: float, note: str = "") -> None:
        if work not in self.tasks:
            self.tasks[work] = self.bars.add_task(work, total=total, note="")
        self.bars.update(self.tasks[work], completed=done, total=total, note=note)
