"""The two queues of a worker: quick recommendations, computed in batches, and slow work in the
background. Both are bounded by the estimated work of what they hold (work.py).

A quick request that finds its queue full waits in line before it is refused: to refuse costs about
as much as to answer, and clients that ask again at once would leave no time for answers. Batches
are computed in a thread, or in the event loop if they are expected to take at most `inline`
seconds, since switching between threads costs more.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from posrec.server.errors import Disconnected, Overloaded

PATIENCE = 2.0  # seconds in line for a full queue, until a request is refused
INLINE = 0.004  # seconds that a batch may take in the event loop
SMOOTHING = 0.9  # the weight of the earlier average when a batch is added to it

Result = TypeVar("Result")
# Whether the client has closed the connection.
HasLeft = Callable[[], Awaitable[bool]] | None


class WaitingQuery(NamedTuple):
    query: Any
    answer: asyncio.Future[Any]
    since: float
    work: int


class Batcher:
    """`compute` turns queries into answers, `max_batch` is the work of a full batch, and `observe`
    gets the sizes of each batch and of the rest of the queue. After a batch of several requests,
    the next one waits for more, at most `gather` seconds."""

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
        self.thread = ThreadPoolExecutor(1, "posrec-compute")
        self.compute = compute
        self.most = queue
        self.work = 0
        # Requests that wait for room in the queue, with their work.
        self.line: deque[tuple[asyncio.Future[None], int]] = deque()
        self.max_batch = max_batch
        self.gather = gather
        self.observe = observe
        self.waiting: deque[WaitingQuery] = deque()
        self.arrived = asyncio.Event()
        self.full = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.inline = inline
        self.clock = clock
        self.seconds_each = 0.0  # a moving average of the seconds per unit of work
        self.computing = False
        self.last_size = 0  # of the last batch
        self.last_end = 0.0  # when the last batch was finished

    async def wait_for_room(self, work: int) -> None:
        """First come, first served. Who has waited submits at once, or lets in others."""
        if not self.line and self.has_room(work):
            return
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.line.append((room, work))
        try:
            async with asyncio.timeout(PATIENCE):
                await room
        except TimeoutError:
            self.let_in()  # it may have been its turn in the same moment
            raise Overloaded from None

    def has_room(self, work: int, expected: int = 0) -> bool:
        """`expected`: the work of requests that were let in and are not in the queue yet."""
        taken = self.work + expected
        return not taken or taken + work <= self.most

    def submit(self, query: Any, work: int) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.waiting.append(WaitingQuery(query, answer, self.clock(), work))
        self.work += work
        self.arrived.set()
        if self.work >= self.max_batch:
            self.full.set()
        return answer

    def next_batch(self) -> list[WaitingQuery]:
        batch: list[WaitingQuery] = []
        work = 0
        while self.waiting:
            if work and work + self.waiting[0].work > self.max_batch:
                break
            oldest = self.waiting.popleft()
            self.work -= oldest.work
            if not oldest.answer.done():  # otherwise it was cancelled
                batch.append(oldest)
                work += oldest.work
        if not self.waiting:
            self.arrived.clear()
        self.let_in()
        return batch

    def let_in(self) -> None:
        """As many from the line as there is room for."""
        expected = 0
        while self.line and self.has_room(self.line[0][1], expected):
            room, work = self.line.popleft()
            if not room.done():  # otherwise it has waited for too long
                room.set_result(None)
                expected += work

    def start(self) -> None:
        self.task = asyncio.create_task(self.run_forever())

    async def run_forever(self) -> None:
        """Compute batches, whatever happens: memory may run out anywhere."""
        while True:
            await self.arrived.wait()
            batch: list[WaitingQuery] = []
            try:
                await self.wait_for_more()
                batch = self.next_batch()
                if batch:
                    self.computing = True
                    await self.compute_batch(batch)
            except Exception as error:
                if not batch:  # it could not be chosen
                    batch = list(self.waiting)
                    self.waiting.clear()
                    self.arrived.clear()
                    self.work -= sum(waiting.work for waiting in batch)
                for waiting in batch:
                    if not waiting.answer.done():
                        waiting.answer.set_exception(error)
            self.computing = False
            await asyncio.sleep(0)  # let inline answers be sent before the next batch

    async def compute_batch(self, batch: list[WaitingQuery]) -> None:
        began = self.clock()
        work = sum([waiting.work for waiting in batch])
        self.last_size = len(batch)
        self.observe(len(batch), len(self.waiting))
        queries = [waiting.query for waiting in batch]
        if 0 < self.seconds_each * work < self.inline:
            answers = self.compute(queries)
        else:
            loop = asyncio.get_running_loop()
            answers = await loop.run_in_executor(self.thread, self.compute, queries)
        for waiting, answer in zip(batch, answers, strict=True):
            if not waiting.answer.done():
                waiting.answer.set_result(answer)
        self.last_end = self.clock()
        self.seconds_each = smoothed(self.seconds_each, (self.last_end - began) / work)

    async def wait_for_more(self) -> None:
        first = self.waiting[0].since
        is_alone = self.last_size < 2 or first - self.last_end > self.gather
        if is_alone or self.work >= self.max_batch:
            return
        left = first + self.gather - self.clock()
        if left > 0.0002:  # a shorter sleep costs more than it saves
            self.full.clear()
            timer = asyncio.get_running_loop().call_later(left, self.full.set)
            await self.full.wait()
            timer.cancel()

    async def stop(self) -> None:
        while self.waiting or self.line or self.computing:
            await asyncio.sleep(0.005)
        if self.task is not None:
            self.task.cancel()
        self.thread.shutdown(wait=True)


def smoothed(before: float, now: float) -> float:
    if not before:
        return now
    return SMOOTHING * before + (1 - SMOOTHING) * now


class BackgroundQueue:
    """One piece of slow work at a time. A request has a place for its whole work, and its pieces
    take turns with others'. A request for which there is no place is refused at once."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.work = 0
        self.thread = ThreadPoolExecutor(1, "posrec-background")
        self.turn = asyncio.Lock()  # first come, first served

    def refuse_more(self, work: int) -> None:
        if self.work and self.work + work > self.most:
            raise Overloaded

    @contextmanager
    def place(self, work: int) -> Iterator[None]:
        """Until the block ends."""
        self.work += work
        try:
            yield
        finally:
            self.work -= work

    async def run(
        self, piece: Callable[[], Result], has_left: HasLeft = None
    ) -> Result:
        """Raises Disconnected if the client has left before its turn."""
        async with self.turn:
            if has_left is not None and await has_left():
                raise Disconnected
            return await asyncio.get_running_loop().run_in_executor(self.thread, piece)

    async def compute(
        self, function: Callable[[], Result], work: int, has_left: HasLeft = None
    ) -> Result:
        """All work of a request in one piece."""
        self.refuse_more(work)
        with self.place(work):
            return await self.run(function, has_left)

    def stop(self) -> None:
        self.thread.shutdown(wait=False, cancel_futures=True)
