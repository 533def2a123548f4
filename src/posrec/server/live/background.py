"""Slow work that must not delay recommendations: one piece at a time, in a thread of low priority."""

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from posrec.server.batching import Overloaded

NICENESS = 10  # 0 is usual, 19 the lowest priority


class BackgroundQueue:
    """At most `most` pieces of work are waiting or being done; more are refused at once."""

    def __init__(self, most: int) -> None:
        self.most, self.pending = most, 0
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="posrec-background", initializer=lower_priority)

    async def run(self, work: Callable[[], Any]) -> Any:
        if self.pending >= self.most:
            raise Overloaded
        self.pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self.thread, work)
        finally:
            self.pending -= 1

    def stop(self) -> None:
        self.thread.shutdown(wait=False, cancel_futures=True)


def lower_priority() -> None:
    """Lower the priority of the thread that calls. Only Linux has one for each thread."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        # A server started with a lower priority keeps it: only root may raise one.
        os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))
