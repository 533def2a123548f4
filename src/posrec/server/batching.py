"""The two queues of a worker: recommendations, which are computed in batches, and slow work in the background.

Requests that arrive together are computed together, as one batch, and one batch at a time. A request that arrives alone
is computed at once. If the last batch held several requests, more are expected, and the next batch waits for them, at
most `gather` seconds. When the queue is full a request is refused at once rather than answered late: at most `queue`
requests may wait, or as many full batches as are computed within MAX_WAIT. Three full batches may always wait.

Batches are computed in a thread of their own, so that requests are read meanwhile. Handing a batch to the thread and
back costs two switches between threads, so the event loop itself computes batches that are expected to take at most
`inline` seconds. Where every core has a worker of its own, the thread would compete with the event loop for the core,
and the limit is higher.
"""

import asyncio
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from posrec.server.http.messages import Refused

MAX_WAIT = 0.03  # seconds
LEAST_BATCHES = 3
INLINE, INLINE_OF_SEVERAL = 0.0015, 0.004  # seconds: `inline` of a single worker, and of several workers
SMOOTHING = 0.9  # the weight of the earlier average when a batch is added to it
NICENESS = 10  # of the thread for slow work; 0 is the default, 19 the lowest priority


class Overloaded(Refused):
    """The queue is full."""

    def __init__(self) -> None:
        super().__init__(503, "too many requests are waiting; try again shortly")


class Batcher:
    """`compute` turns a list of queries into a list of answers; `observe` is called with the size of each batch
    and the number of queries that still wait."""

    def __init__(
        self,
        compute: Callable[[Sequence[Any]], Sequence[Any]],
        queue: int = 128,
        max_batch: int = 16,
        gather: float = 0.001,
        observe: Callable[[int, int], None] = lambda size, waiting: None,
        inline: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.compute, self.queue, self.max_batch, self.gather, self.observe = compute, queue, max_batch, gather, observe
        self.waiting: deque[tuple[Any, asyncio.Future[Any], float]] = deque()
        self.kept_places = 0
        self.arrived = asyncio.Event()
        self.full = asyncio.Event()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="posrec-compute")
        self.task: asyncio.Task[None] | None = None
        self.inline, self.clock = inline, clock
        self.seconds_each = 0.0  # a moving average of the seconds per request
        # The same for full batches, from the end of the batch before where there was no pause: a request costs more
        # than its computing. It must be read and answered, and so must those that are refused meanwhile.
        self.seconds_each_busy = 0.0
        self.last_size = 0  # of the last batch
        self.computing = False
        self.last_end = 0.0  # when it was finished

    @contextmanager
    def place(self) -> Iterator[None]:
        """Keep a place in the queue for a query that is submitted in the block, once it is known; raises Overloaded
        where the queue is full."""
        self.refuse_more()
        self.kept_places += 1
        try:
            yield
        finally:
            self.kept_places -= 1

    def submit(self, query: Any, has_place: bool = False) -> asyncio.Future[Any]:
        """The answer to come; raises Overloaded where the queue is full."""
        if not has_place:
            self.refuse_more()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.append((query, answer, self.clock()))
        self.arrived.set()
        if len(self.waiting) >= self.max_batch:
            self.full.set()
        return answer

    def refuse_more(self) -> None:
        """Raise Overloaded where the queue is full; called before any other work is done for a request."""
        if len(self.waiting) + self.kept_places >= min(self.queue, self.most_in_time()):
            raise Overloaded

    def most_in_time(self) -> int:
        """How many may wait: whole batches, since the first request of one more batch would wait for all of them."""
        if not self.seconds_each_busy:
            return self.queue
        batches = int(MAX_WAIT / (self.seconds_each_busy * self.max_batch))
        return max(LEAST_BATCHES, batches) * self.max_batch

    def start(self) -> None:
        self.task = asyncio.create_task(self.work())

    async def work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self.arrived.wait()
            await self.wait_for_more()
            batch = [self.waiting.popleft() for _ in range(min(self.max_batch, len(self.waiting)))]
            if not self.waiting:
                self.arrived.clear()
            batch = [(query, answer, since) for query, answer, since in batch if not answer.done()]  # not cancelled
            if not batch:
                continue
            self.last_size = len(batch)
            self.observe(len(batch), len(self.waiting))
            began, self.computing = self.clock(), True
            try:
                queries = [query for query, _, _ in batch]
                if 0 < self.seconds_each * len(batch) < self.inline:
                    answers = self.compute(queries)
                else:
                    answers = await loop.run_in_executor(self.thread, self.compute, queries)
                for (_, future, _), answer in zip(batch, answers, strict=True):
                    if not future.done():
                        future.set_result(answer)
            except Exception as error:  # every request of the batch gets the error
                for _, future, _ in batch:
                    if not future.done():
                        future.set_exception(error)
            before, self.last_end, self.computing = self.last_end, self.clock(), False
            self.seconds_each = smoothed(self.seconds_each, (self.last_end - began) / len(batch))
            if len(batch) == self.max_batch:
                start = before if batch[0][2] < before else began  # without a pause since the batch before, or not
                self.seconds_each_busy = smoothed(self.seconds_each_busy, (self.last_end - start) / len(batch))
            await asyncio.sleep(0)  # let inline answers be sent before the next batch

    async def wait_for_more(self) -> None:
        """Wait for more requests where the last batch suggests that they will come."""
        first = self.waiting[0][2]
        if self.last_size < 2 or first - self.last_end > self.gather or len(self.waiting) >= self.max_batch:
            return
        left = first + self.gather - self.clock()
        if left > 0.0002:  # a shorter sleep costs more than it saves
            self.full.clear()
            timer = asyncio.get_running_loop().call_later(left, self.full.set)
            await self.full.wait()
            timer.cancel()

    async def stop(self) -> None:
        """Stop after all waiting requests are answered."""
        while self.waiting or self.computing:
            await asyncio.sleep(0.005)
        if self.task is not None:
            self.task.cancel()
        self.thread.shutdown(wait=True)


def smoothed(before: float, now: float) -> float:
    return SMOOTHING * before + (1 - SMOOTHING) * now if before else now


class BackgroundQueue:
    """Slow work, such as explanations, which must not delay recommendations: one piece at a time, at low priority.

    At most `most` pieces of work are waiting or being done; more are refused at once.
    """

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
