"""How long a client may take to send its request: those that take longer are given up, however many there are.

One look at all of them every second; a timer for each request would cost more than the rest of its way in.
"""

import asyncio
import time

LOOK = 1.0  # seconds


class Patience:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.sending: dict[asyncio.Task[object], float] = {}  # whose body is not there yet, and since when
        self.late: set[asyncio.Task[object]] = set()  # given up
        self.looking = False

    def begin(self, task: asyncio.Task[object]) -> None:
        self.sending[task] = time.monotonic()
        if not self.looking:
            self.looking = True
            asyncio.get_running_loop().call_later(LOOK, self.look)

    def end(self, task: asyncio.Task[object]) -> None:
        """It is all there."""
        self.sending.pop(task, None)

    def look(self) -> None:
        now = time.monotonic()
        for task, began in list(self.sending.items()):
            if now - began > self.seconds:
                del self.sending[task]
                self.late.add(task)
                task.cancel()
        self.looking = bool(self.sending)
        if self.looking:
            asyncio.get_running_loop().call_later(LOOK, self.look)

    def was_late(self, task: asyncio.Task[object]) -> bool:
        """Whether this is why it was cancelled; asked once."""
        late = task in self.late
        self.late.discard(task)
        return late
