"""The two queues of a worker: quick recommendations, computed in batches, and slow work in the
background.

Both are bounded by the estimated work of what they hold, in plain requests (work.py). A request
that finds its queue full is refused at once rather than answered late. Batches are computed one at
a time in a thread, so that requests are read meanwhile. The event loop itself computes those that
are expected to take at most `inline` seconds, since switching between threads costs more.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

from posrec.server.errors import Disconnected, Overloaded

MAX_WAIT = 0.03  # seconds of computing that may wait, in full batches
LEAST_BATCHES = 3  # which may always wait
# Seconds: `inline` of a single worker, and of several, whose threads would compete for the cores.
INLINE = 0.0015
INLINE_OF_SEVERAL = 0.004
SMOOTHING = 0.9  # the weight of the earlier average when a batch is added to it


class BoundedQueue:
    def __init__(self, most: int, thread: ThreadPoolExecutor) -> None:
        self.most = most
        self.thread = thread
        self.work = 0

    def refuse_more(self, work: int = 1) -> None:
        if self.work and self.work + work > self.most:
            raise Overloaded

    @contextmanager
    def place(self, work: int) -> Iterator[None]:
        """Take the place of a request until the block ends."""
        self.refuse_more(work)
        self.work += work
        try:
            yield
        finally:
            self.work -= work


class Waiting(NamedTuple):
    query: Any
    answer: asyncio.Future[Any]
    since: float
    work: int


class Batcher(BoundedQueue):
    """`compute` turns queries into answers; `observe` gets the sizes of each batch and of the rest
    of the queue.

    `max_batch` is the work of a full batch. Where the last batch held several requests, the next
    one waits for more, at most `gather` seconds.
    """

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
        super().__init__(
            queue, ThreadPoolExecutor(1, thread_name_prefix="posrec-compute")
        )
        self.compute = compute
        self.queue = queue
        self.max_batch = max_batch
        self.gather = gather
        self.observe = observe
        self.waiting: deque[Waiting] = deque()
        self.arrived = asyncio.Event()
        self.full = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.inline = inline
        self.clock = clock
        self.seconds_each = 0.0  # a moving average of the seconds per unit of work
        # The same for full batches, with what passes between two of them: requests are also read,
        # answered and refused.
        self.seconds_each_busy = 0.0
        self.last_size = 0  # of the last batch
        self.computing = False
        self.last_end = 0.0  # when it was finished

    def submit(self, query: Any, work: int) -> asyncio.Future[Any]:
        """Whoever calls has asked `refuse_more`, or has taken a place."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.append(Waiting(query, answer, self.clock(), work))
        self.work += work
        self.arrived.set()
        if self.work >= self.max_batch:
            self.full.set()
        return answer

    def limit_wait(self, seconds_each: float) -> None:
        """Let as many whole batches wait as are computed in time."""
        batches = int(MAX_WAIT / max(seconds_each * self.max_batch, 1e-9))
        self.most = min(self.queue, max(LEAST_BATCHES, batches) * self.max_batch)

    def next_batch(self) -> list[Waiting]:
        batch: list[Waiting] = []
        work = 0
        while self.waiting and (
            not work or work + self.waiting[0].work <= self.max_batch
        ):
            oldest = self.waiting.popleft()
            self.work -= oldest.work
            if oldest.answer.done():  # cancelled: nobody waits for it
                continue
            batch.append(oldest)
            work += oldest.work
        if not self.waiting:
            self.arrived.clear()
        return batch

    def start(self) -> None:
        self.task = asyncio.create_task(self.run_forever())

    async def run_forever(self) -> None:
        """Compute batches, whatever happens: memory may run out anywhere."""
        while True:
            await self.arrived.wait()
            batch: list[Waiting] = []
            try:
                await self.wait_for_more()
                batch = self.next_batch()
                if batch:
                    self.computing = True
                    await self.compute_batch(batch)
            except Exception as error:
                if not batch:  # it could not be chosen
                    batch = [*self.waiting]
                    self.waiting.clear()
                    self.arrived.clear()
                    self.work -= sum(one.work for one in batch)
                for one in batch:
                    if not one.answer.done():
                        one.answer.set_exception(error)
            self.computing = False
            await asyncio.sleep(0)  # let inline answers be sent before the next batch

    async def compute_batch(self, batch: list[Waiting]) -> None:
        began = self.clock()
        work = sum([one.work for one in batch])
        is_full = bool(self.waiting)
        self.last_size = len(batch)
        self.observe(len(batch), len(self.waiting))
        queries = [one.query for one in batch]
        if 0 < self.seconds_each * work < self.inline:
            answers = self.compute(queries)
        else:
            answers = await asyncio.get_running_loop().run_in_executor(
                self.thread, self.compute, queries
            )
        for one, answer in zip(batch, answers, strict=True):
            if not one.answer.done():
                one.answer.set_result(answer)
        before = self.last_end
        self.last_end = self.clock()
        self.seconds_each = smoothed(self.seconds_each, (self.last_end - began) / work)
        if is_full or work >= self.max_batch:
            start = (
                before if batch[0].since < before else began
            )  # without a pause since the batch before, or not
            self.seconds_each_busy = smoothed(
                self.seconds_each_busy, (self.last_end - start) / work
            )
            self.limit_wait(self.seconds_each_busy)

    async def wait_for_more(self) -> None:
        first = self.waiting[0].since
        if (
            self.last_size < 2
            or first - self.last_end > self.gather
            or self.work >= self.max_batch
        ):
            return
        left = first + self.gather - self.clock()
        if left > 0.0002:  # a shorter sleep costs more than it saves
            self.full.clear()
            timer = asyncio.get_running_loop().call_later(left, self.full.set)
            await self.full.wait()
            timer.cancel()

    async def stop(self) -> None:
        while self.waiting or self.computing:
            await asyncio.sleep(0.005)
        if self.task is not None:
            self.task.cancel()
        self.thread.shutdown(wait=True)


def smoothed(before: float, now: float) -> float:
    return SMOOTHING * before + (1 - SMOOTHING) * now if before else now


class BackgroundQueue(BoundedQueue):
    """One piece of slow work at a time. A request takes a place for its whole work, and its pieces
    take turns with those of others."""

    def __init__(self, most: int) -> None:
        super().__init__(most, ThreadPoolExecutor(1, "posrec-background"))
        self.turn = asyncio.Lock()  # first come, first served

    async def run(
        self,
        piece: Callable[[], Any],
        has_left: Callable[[], Awaitable[bool]] | None = None,
    ) -> Any:
        """Raises Disconnected where the client has left before its turn."""
        async with self.turn:
            if has_left is not None and await has_left():
                raise Disconnected
            return await asyncio.get_running_loop().run_in_executor(self.thread, piece)

    def stop(self) -> None:
        self.thread.shutdown(wait=False, cancel_futures=True)
