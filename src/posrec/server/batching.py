"""Requests that arrive together are computed together.

One batch is computed at a time. A request that comes alone starts at once; where the last batch had company more is
expected, and the first of a batch waits for it, at most `gather` seconds. Beyond a number that may wait a request is
refused at once rather than answered late: `queue` of them, or fewer where they would wait for longer than LONGEST_WAIT.

Batches are computed in a thread of their own, so that requests are taken meanwhile. Where every core has a worker of
its own the thread only gets in the way of what reads and answers: then short batches are computed `on_the_spot`.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

LONGEST_WAIT = 0.1  # seconds
SHORT = 0.004  # seconds
MEMORY = 0.9  # of the pace so far, when a batch adds to it


class Overloaded(RuntimeError):
    """Too many requests wait already."""


class Batcher:
    """`compute` takes a list of queries and gives a list of answers; `observe` hears of the size of each batch."""

    def __init__(
        self,
        compute: Callable[[Sequence[Any]], Sequence[Any]],
        queue: int = 128,
        most: int = 32,
        gather: float = 0.001,
        observe: Callable[[int], None] = lambda size: None,
        on_the_spot: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.compute, self.queue, self.most, self.gather, self.observe = compute, queue, most, gather, observe
        self.waiting: deque[tuple[Any, asyncio.Future[Any], float]] = deque()
        self.arrived = asyncio.Event()
        self.full = asyncio.Event()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="posrec-compute")
        self.task: asyncio.Task[None] | None = None
        self.on_the_spot, self.clock = on_the_spot, clock
        self.pace = 0.0  # seconds a request takes, of late
        self.full_pace = 0.0  # and in full batches, where it takes least
        self.last = 0  # the size of the last batch
        self.ended = 0.0  # when it was done

    async def ask(self, query: Any) -> Any:
        self.refuse_more()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.append((query, answer, self.clock()))
        self.arrived.set()
        if len(self.waiting) >= self.most:
            self.full.set()
        return await answer

    def refuse_more(self) -> None:
        """Raises where as many wait as may; to be asked before there is any work with a request."""
        in_time = int(LONGEST_WAIT / self.full_pace) if self.full_pace else self.queue
        if len(self.waiting) >= min(self.queue, max(self.most, in_time)):
            raise Overloaded

    def start(self) -> None:
        self.task = asyncio.create_task(self.work())

    async def work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self.arrived.wait()
            await self.gathered()
            batch = [self.waiting.popleft() for _ in range(min(self.most, len(self.waiting)))]
            if not self.waiting:
                self.arrived.clear()
            batch = [one for one in batch if not one[1].done()]  # whoever gave up meanwhile is not computed for
            if not batch:
                continue
            self.last = len(batch)
            self.observe(len(batch))
            began = self.clock()
            try:
                queries = [query for query, _, _ in batch]
                if self.on_the_spot and 0 < self.pace * len(batch) < SHORT:
                    answers = self.compute(queries)
                else:
                    answers = await loop.run_in_executor(self.thread, self.compute, queries)
                for (_, future, _), answer in zip(batch, answers, strict=True):
                    if not future.done():
                        future.set_result(answer)
            except Exception as error:  # whatever computing raises is the answer of every request in the batch
                for _, future, _ in batch:
                    if not future.done():
                        future.set_exception(error)
            self.ended = self.clock()
            pace = (self.ended - began) / len(batch)
            self.pace = smoothed(self.pace, pace)
            if len(batch) == self.most:
                self.full_pace = smoothed(self.full_pace, pace)
            await asyncio.sleep(0)  # what was computed on the spot is answered before the next batch

    async def gathered(self) -> None:
        """Wait for company, where some is expected."""
        first = self.waiting[0][2]
        if self.last < 2 or first - self.ended > self.gather or len(self.waiting) >= self.most:
            return
        left = first + self.gather - self.clock()
        if left > 0.0002:  # a shorter sleep costs more than it gathers
            self.full.clear()
            alarm = asyncio.get_running_loop().call_later(left, self.full.set)
            await self.full.wait()
            alarm.cancel()

    async def stop(self) -> None:
        """Once nothing waits any more."""
        while self.waiting:
            await asyncio.sleep(0.005)
        if self.task is not None:
            self.task.cancel()
        self.thread.shutdown(wait=True)


def smoothed(before: float, now: float) -> float:
    return MEMORY * before + (1 - MEMORY) * now if before else now
