"""Ctrl-C and SIGTERM ask a run to stop; it does so between two steps, after writing a checkpoint."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self


class StopSignals:
    """While inside `with`, remembers that a signal asked to stop; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.asked = False
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self.before[number] = signal.signal(number, self.ask)
            except ValueError:  # not the main thread: the caller handles signals
                return self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True
