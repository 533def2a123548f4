"""The two queues: batches of requests that arrive together, and slow work in the background."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from posrec.server import batching
from posrec.server.batching import BackgroundQueue, Batcher
from posrec.server.errors import Disconnected, Overloaded


def play(
    make_batcher: Callable[[], Batcher], story: Callable[[Batcher], Awaitable[Any]]
) -> Any:
    """Run a story with a batcher, which is made inside the event loop."""

    async def run() -> Any:
        batcher = make_batcher()
        batcher.start()
        result = await asyncio.wait_for(story(batcher), 60)
        await batcher.stop()
        return result

    return asyncio.run(run())


def submit(batcher: Batcher, query: Any, work: int = 1) -> asyncio.Future[Any]:
    return batcher.submit(query, work)


async def ask(batcher: Batcher, query: Any, work: int = 1) -> Any:
    await batcher.wait_for_room(work)
    return await batcher.submit(query, work)


class Gate:
    """Computes when it is open."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()
        self.computed: list[Any] = []

    def compute(self, queries: Sequence[Any]) -> list[Any]:
        self.reached.set()
        assert self.open.wait(60)
        self.computed += queries
        return list(queries)

    async def until_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 60)


def test_requests_that_arrive_while_computing_form_the_next_batches() -> None:
    sizes: list[int] = []
    gate = Gate()

    async def story(batcher: Batcher) -> Any:
        first = submit(batcher, 1)
        await gate.until_reached()
        rest = [submit(batcher, number) for number in range(2, 11)]
        gate.open.set()
        return await asyncio.gather(first, *rest)

    def make_batcher() -> Batcher:
        return Batcher(
            gate.compute, max_batch=4, observe=lambda size, _: sizes.append(size)
        )

    assert play(make_batcher, story) == list(range(1, 11))
    assert sizes == [1, 4, 4, 1]


def test_requests_are_answered_again_after_memory_has_run_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory_is_short = True

    def fail_once(*_: int) -> None:
        nonlocal memory_is_short
        if memory_is_short:
            memory_is_short = False
            raise MemoryError

    async def story(batcher: Batcher) -> None:
        nonlocal memory_is_short
        with pytest.raises(MemoryError):  # where a batch is observed
            await submit(batcher, 1)
        assert await submit(batcher, 2) == 2
        next_batch = batcher.next_batch

        def next_batch_or_fail() -> Any:
            fail_once()
            return next_batch()

        monkeypatch.setattr(batcher, "next_batch", next_batch_or_fail)
        memory_is_short = True
        with pytest.raises(MemoryError):  # where a batch is put together
            await submit(batcher, 3)
        assert await submit(batcher, 4) == 4

    play(lambda: Batcher(lambda numbers: numbers, observe=fail_once), story)


def test_stopping_waits_for_the_batch_that_is_computed() -> None:
    gate = Gate()

    async def story(batcher: Batcher) -> Any:
        answer = submit(batcher, 4)
        await gate.until_reached()
        stopping = asyncio.create_task(batcher.stop())
        await asyncio.sleep(0.05)  # in which it would stop if it did not wait
        assert not stopping.done()
        gate.open.set()
        await stopping
        return await answer

    assert play(lambda: Batcher(gate.compute), story) == 4


def test_who_finds_the_queue_full_waits_in_line() -> None:
    gate = Gate()
    lengths: list[int] = []

    def compute(queries: Sequence[Any]) -> list[Any]:
        lengths.append(current[0].work)
        return gate.compute(queries)

    current: list[Batcher] = []

    async def story(batcher: Batcher) -> None:
        current.append(batcher)
        asked = [asyncio.create_task(ask(batcher, 0))]
        await gate.until_reached()
        asked += [asyncio.create_task(ask(batcher, number)) for number in range(1, 20)]
        await asyncio.sleep(0)
        assert len(batcher.line) == 16
        asked[2].cancel()  # in the queue
        asked[7].cancel()  # in the line
        gate.open.set()
        await asyncio.gather(*asked, return_exceptions=True)

    play(lambda: Batcher(compute, queue=3, max_batch=2), story)
    # First come, first served, and the queue never has more than three.
    assert gate.computed == [number for number in range(20) if number not in (2, 7)]
    assert max(lengths) <= 3


def test_who_has_waited_in_line_for_too_long_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()

    async def story(batcher: Batcher) -> None:
        first = submit(batcher, 0)
        await gate.until_reached()
        second = submit(batcher, 1)
        monkeypatch.setattr(batching, "PATIENCE", 0.01)
        with pytest.raises(Overloaded):
            await ask(batcher, 2)
        monkeypatch.setattr(batching, "PATIENCE", 60.0)
        third = asyncio.create_task(ask(batcher, 3))
        gate.open.set()
        answers = await asyncio.gather(first, second, third)
        assert tuple(answers) == (0, 1, 3)

    play(lambda: Batcher(gate.compute, queue=1, max_batch=1), story)


class Clock:
    """A clock that only computing moves, so that a busy machine changes nothing."""

    def __init__(self) -> None:
        self.now = 1.0
        self.threads: list[int] = []

    def __call__(self) -> float:
        return self.now

    def compute(self, seconds: Sequence[float]) -> Sequence[float]:
        self.threads.append(threading.get_ident())
        self.now += sum(seconds)
        return seconds


def test_alone_any_request_is_accepted() -> None:
    async def story(batcher: Batcher) -> None:
        assert batcher.has_room(1000)
        assert batcher.has_room(2, expected=126)
        assert not batcher.has_room(3, expected=126)

    play(lambda: Batcher(lambda queries: queries), story)


def test_short_batches_are_computed_inline_and_long_ones_in_the_thread() -> None:
    clock = Clock()

    async def story(batcher: Batcher) -> int:
        for seconds in (0.001, 0.001, 0.5, 0.001):
            assert await submit(batcher, seconds) == seconds
        return threading.get_ident()

    loop_thread = play(lambda: Batcher(clock.compute, inline=0.004, clock=clock), story)
    is_inline = [thread == loop_thread for thread in clock.threads]
    # The first is not known to be short yet, and the long one raises the average for a while.
    assert is_inline == [False, True, True, False]


def test_a_batch_has_a_bounded_amount_of_work() -> None:
    batches: list[list[int]] = []

    def compute(works: Sequence[int]) -> Sequence[int]:
        batches.append(list(works))
        return works

    async def story(batcher: Batcher) -> None:
        works = (1, 4, 3, 2, 6, 1, 20, 1)
        await asyncio.gather(*(submit(batcher, work, work) for work in works))

    play(lambda: Batcher(compute, max_batch=8), story)
    assert batches == [[1, 4, 3], [2, 6], [1], [20], [1]]


def test_slow_work_is_not_done_once_the_client_has_left() -> None:
    quick = Gate()
    slow = Gate()
    queue = BackgroundQueue(10)
    second_has_left = False

    async def stays() -> bool:
        return False

    async def leaves() -> bool:
        return second_has_left

    async def story(batcher: Batcher) -> None:
        nonlocal second_has_left
        works = [
            queue.run(lambda: slow.compute(["first"]), stays),
            queue.run(lambda: slow.compute(["second"]), leaves),
            queue.run(lambda: slow.compute(["third"]), None),
        ]
        tasks = [asyncio.create_task(work) for work in works]
        quick_answer = submit(batcher, "quick")
        await slow.until_reached()
        second_has_left = True
        quick.open.set()
        assert await quick_answer == "quick"  # does not wait for slow work
        slow.open.set()
        first, second, third = await asyncio.gather(*tasks, return_exceptions=True)
        assert (first, third) == (["first"], ["third"])
        assert isinstance(second, Disconnected)
        queue.stop()

    play(lambda: Batcher(quick.compute, max_batch=1), story)
    assert slow.computed == ["first", "third"]


def test_slow_work_is_bounded_by_its_sum() -> None:
    queue = BackgroundQueue(10)
    queue.refuse_more(100)  # alone, even too much is accepted
    with queue.place(4):
        queue.refuse_more(6)
        with pytest.raises(Overloaded):
            queue.refuse_more(7)
    assert queue.work == 0
    queue.stop()
