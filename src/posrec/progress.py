"""What long work reports while it runs: messages, and how much is done.

Library code reports to a `Progress`: a bar in a terminal or a notebook, or else lines on standard
error, one every half minute.
"""

import json
import re
import sys
import time
from collections.abc import Iterator
from html import escape
from typing import Any, Self

from rich import progress as bars
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.text import Text

# Control characters (C0 except tab and line feed, DEL, C1), and changes of the text's direction.
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Text from a file with control characters, which could command a terminal, written out.

    >>> printable("Tent\\x1b[2J")
    'Tent\\\\x1b[2J'
    """
    return CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def printable_json(value: Any, indent: int | None = None) -> str:
    """JSON as a terminal may show it, without control characters.

    >>> print(printable_json({"title": "Zelt\\x9b2J"}))
    {"title": "Zelt\\u009b2J"}
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent, default=str)
    return CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


class TerminalConsole(Console):
    """Prints every text as it is: no markup, and control characters are written out."""

    def __init__(self, **options: Any) -> None:
        super().__init__(emoji=False, markup=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """A table measures the text that this returns."""
        return super().render_str(printable(text), **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterator[Segment]:
        """Everything that is printed passes here; styles become control characters later."""
        for segment in super().render(renderable, options):
            if not segment.control:
                segment = segment._replace(text=printable(segment.text))
            yield segment


class Progress:
    """Prints messages, and every half minute how much is done; override a method to show more."""

    LINE_SECONDS = 30
    next_line = 0.0  # when a line is printed; 0 before the first update

    def message(self, text: str) -> None:
        print(printable(text), file=sys.stderr)

    def update(self, work: str, done: float, total: float, note: str = "") -> None:
        """`done` of `total`, in any unit; a new name of `work` starts a new bar."""
        now = time.monotonic()
        if self.next_line and now >= self.next_line:
            share = f"{work}: {done / (total or 1):.0%}"
            self.message(f"{share}, {note}" if note else share)
        if now >= self.next_line:
            self.next_line = now + self.LINE_SECONDS

    def validated(self, epoch: int, metrics: dict[str, float]) -> None:
        """The validation metrics of a finished epoch; may raise to end the training."""


class SilentProgress(Progress):
    def message(self, text: str) -> None:
        pass

    def update(self, work: str, done: float, total: float, note: str = "") -> None:
        pass


class TerminalProgress(Progress):
    """Draws a bar inside `with`; prints lines if standard error is not a terminal."""

    def __init__(self) -> None:
        self.console = TerminalConsole(stderr=True, highlight=False)
        self.bars = bars.Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.bars.stop()

    def message(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def update(self, work: str, done: float, total: float, note: str = "") -> None:
        if self.bars.disable:
            super().update(work, done, total, note)
            return
        if work not in self.tasks:
            self.tasks[work] = self.bars.add_task(work, total=total, note="")
        self.bars.update(self.tasks[work], completed=done, total=total, note=note)


class NotebookProgress(Progress):
    """Draws a bar under the cell of a notebook, and prints messages."""

    INTERVAL = 0.2  # seconds between two drawings; every one is sent to the browser

    def __init__(self) -> None:
        self.handle: Any = None
        self.work = ""
        self.drawn_at = 0.0

    def update(self, work: str, done: float, total: float, note: str = "") -> None:
        now = time.monotonic()
        if work == self.work and done < total and now - self.drawn_at < self.INTERVAL:
            return
        from IPython.display import HTML, display

        self.work = work
        self.drawn_at = now
        bar = f'<progress value="{min(done, total):g}" max="{total:g}"></progress>'
        drawing = HTML(f"{escape(work)} {bar} {escape(note)}")
        if self.handle is None:
            self.handle = display(drawing, display_id=True)
        else:
            self.handle.update(drawing)


def default_progress() -> Progress:
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    in_notebook = type(shell).__name__ == "ZMQInteractiveShell"
    return NotebookProgress() if in_notebook else Progress()
