"""The two queues of a worker: quick recommendations, which are computed in batches, and slow work in the background.

Both are bounded by the estimated work of what they hold, in units of a plain request (work.py).
A request that finds its queue full is refused at once rather than answered late; one that finds it empty is accepted.
Slow work is not done once the client has left.

Quick requests that arrive together are computed together, as one batch, and one batch at a time. A request that arrives
alone is computed at once. If the last batch held several requests, more are expected, and the next batch waits for
them, at most `gather` seconds. Work of at most `queue` units may wait, or of as many full batches as are computed
within MAX_WAIT. Three full batches may always wait.

Batches are computed in a thread of their own, so that requests are read meanwhile. Handing a batch to the thread and
back costs two switches between threads, so the event loop itself computes batches that are expected to take at most
`inline` seconds. Where every core has a worker of its own, the thread would compete with the event loop for the core,
and the limit is higher.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

from posrec.server.errors import Disconnected, Overloaded

MAX_WAIT = 0.03  # seconds
LEAST_BATCHES = 3
INLINE, INLINE_OF_SEVERAL = 0.0015, 0.004  # seconds: `inline` of a single worker, and of several workers
SMOOTHING = 0.9  # the weight of the earlier average when a batch is added to it


class BoundedQueue:
    """The work that waits, at most `most` for all requests together, and the thread that does it."""

    def __init__(self, most: int, thread: ThreadPoolExecutor) -> None:
        self.most, self.thread = most, thread
        self.work = 0

    def refuse_more(self, work: int = 1) -> None:
        """Raise Overloaded where there is no room for so much work."""
        if self.work and self.work + work > self.most:
            raise Overloaded

    @contextmanager
    def place(self, work: int) -> Iterator[None]:
        """Take the place of a request, which is given back after the block; raises Overloaded where there is none."""
        self.refuse_more(work)
        self.work += work
        try:
            yield
        finally:
            self.work -= work


class Waiting(NamedTuple):
    """A query in the queue: its answer to come, when it came, and its work."""

    query: Any
    answer: asyncio.Future[Any]
    since: float
    work: int


class Batcher(BoundedQueue):
    """`compute` turns a list of queries into a list of answers; `observe` is called with the number of queries of each
    batch and of those that still wait. `max_batch` is the work of a full batch."""

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
        super().__init__(queue, ThreadPoolExecutor(1, thread_name_prefix="posrec-compute"))
        self.compute, self.queue, self.max_batch, self.gather, self.observe = compute, queue, max_batch, gather, observe
        self.waiting: deque[Waiting] = deque()
        self.arrived = asyncio.Event()
        self.full = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.inline, self.clock = inline, clock
        self.seconds_each = 0.0  # a moving average of the seconds per unit of work
        # The same for full batches, from the end of the batch before where there was no pause: a request costs more
        # than its computing. It must be read and answered, and so must those that are refused meanwhile.
        self.seconds_each_busy = 0.0
        self.last_size = 0  # of the last batch
        self.computing = False
        self.last_end = 0.0  # when it was finished

    def submit(self, query: Any, work: int) -> asyncio.Future[Any]:
        """The answer to come. Whoever calls has asked `refuse_more`, or has taken a place."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.append(Waiting(query, answer, self.clock(), work))
        self.work += work
        self.arrived.set()
        if self.work >= self.max_batch:
            self.full.set()
        return answer

    def limit_wait(self, seconds_each: float) -> None:
        """Let only as much work wait as is done in time: whole batches, since the first request of one more batch would
        wait for all."""
        batches = int(MAX_WAIT / max(seconds_each * self.max_batch, 1e-9))
        self.most = min(self.queue, max(LEAST_BATCHES, batches) * self.max_batch)

    def next_batch(self) -> list[Waiting]:
        """The oldest queries, together at most the work of a full batch, without those that nobody waits for."""
        batch: list[Waiting] = []
        work = 0
        while self.waiting and (not work or work + self.waiting[0].work <= self.max_batch):
            oldest = self.waiting.popleft()
            self.work -= oldest.work
            if oldest.answer.done():  # cancelled
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
        began, work, is_full = self.clock(), sum([one.work for one in batch]), bool(self.waiting)
        self.last_size = len(batch)
        self.observe(len(batch), len(self.waiting))
        queries = [one.query for one in batch]
        if 0 < self.seconds_each * work < self.inline:
            answers = self.compute(queries)
        else:
            answers = await asyncio.get_running_loop().run_in_executor(self.thread, self.compute, queries)
        for one, answer in zip(batch, answers, strict=True):
            if not one.answer.done():
                one.answer.set_result(answer)
        before, self.last_end = self.last_end, self.clock()
        self.seconds_each = smoothed(self.seconds_each, (self.last_end - began) / work)
        if is_full or work >= self.max_batch:
            start = before if batch[0].since < before else began  # without a pause since the batch before, or not
            self.seconds_each_busy = smoothed(self.seconds_each_busy, (self.last_end - start) / work)
            self.limit_wait(self.seconds_each_busy)

    async def wait_for_more(self) -> None:
        """Wait for more requests where the last batch suggests that they will come."""
        first = self.waiting[0].since
        if self.last_size < 2 or first - self.last_end > self.gather or self.work >= self.max_batch:
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


class BackgroundQueue(BoundedQueue):
    """Slow work, which must not delay quick recommendations: one piece at a time.

    Explanations, batches of sessions and expensive recommendations are computed here, the latter in pieces, so that
    those of several requests take turns. A request takes a place for its whole work.
    """

    def __init__(self, most: int) -> None:
        super().__init__(most, ThreadPoolExecutor(1, "posrec-background"))
        self.turn = asyncio.Lock()  # first come, first served

    async def run(self, piece: Callable[[], Any], has_left: Callable[[], Awaitable[bool]] | None = None) -> Any:
        """The result of a piece; raises Disconnected where the client has left before its turn."""
        async with self.turn:
            if has_left is not None and await has_left():
                raise Disconnected
            return await asyncio.get_running_loop().run_in_executor(self.thread, piece)

    def stop(self) -> None:
        self.thread.shutdown(wait=False, cancel_futures=True)
