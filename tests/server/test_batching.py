"""The two queues: batches of requests that arrive together, and slow work in the background."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from posrec.server.batching import BackgroundQueue, Batcher
from posrec.server.errors import Disconnected, Overloaded


def play(
    batcher: Callable[[], Batcher], story: Callable[[Batcher], Awaitable[Any]]
) -> Any:
    async def tell() -> Any:
        running = batcher()
        running.start()
        result = await asyncio.wait_for(story(running), 60)
        await running.stop()
        return result

    return asyncio.run(tell())


def submit(batcher: Batcher, query: Any, work: int = 1) -> asyncio.Future[Any]:
    batcher.refuse_more(work)
    return batcher.submit(query, work)


class Gate:
    """Computes when it is open."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.computed: list[Any] = []

    def compute(self, queries: Sequence[Any]) -> list[Any]:
        assert self.open.wait(60)
        self.computed += queries
        return list(queries)


def test_requests_that_arrive_while_computing_form_the_next_batches() -> None:
    sizes: list[int] = []
    gate = Gate()

    async def story(batcher: Batcher) -> list[int]:
        first = submit(batcher, 1)
        await asyncio.sleep(0.05)
        rest = [submit(batcher, number) for number in range(2, 11)]
        await asyncio.sleep(0.05)
        gate.open.set()
        return await asyncio.gather(first, *rest)

    answers = play(
        lambda: Batcher(
            gate.compute, max_batch=4, observe=lambda size, _: sizes.append(size)
        ),
        story,
    )
    assert answers == list(range(1, 11))
    assert sizes == [1, 4, 4, 1]


def test_requests_are_answered_again_after_memory_has_run_out() -> None:
    failing = [True]

    def fail_once(*_: int) -> None:
        if failing.pop() if failing else False:
            raise MemoryError

    async def story(batcher: Batcher) -> list[int]:
        with pytest.raises(MemoryError):
            await submit(batcher, 1)
        answers = [await submit(batcher, 2)]
        failing.append(True)
        really, batcher.next_batch = (
            batcher.next_batch,
            lambda: [fail_once(), *really()][1:],
        )  # type: ignore[method-assign]
        with pytest.raises(MemoryError):
            await submit(batcher, 3)
        return [*answers, await submit(batcher, 4)]

    assert play(lambda: Batcher(lambda numbers: numbers, observe=fail_once), story) == [
        2,
        4,
    ]


def test_stopping_waits_for_the_batch_that_is_computed() -> None:
    gate = Gate()

    async def story(batcher: Batcher) -> int:
        answer = submit(batcher, 4)
        await asyncio.sleep(0.05)
        stopping = asyncio.create_task(batcher.stop())
        await asyncio.sleep(0.05)
        assert not stopping.done()
        gate.open.set()
        await stopping
        return await answer

    assert play(lambda: Batcher(gate.compute), story) == 4


def test_a_full_queue_refuses_more_and_answers_the_rest() -> None:
    gate = Gate()

    async def story(batcher: Batcher) -> None:
        accepted = [submit(batcher, 0)]
        await asyncio.sleep(0.05)
        accepted += [submit(batcher, number) for number in (1, 2)]
        with batcher.place(1):  # for a query that is not known yet
            for refused in (
                lambda: submit(batcher, 4),
                lambda: batcher.place(1).__enter__(),
            ):
                with pytest.raises(Overloaded):
                    refused()
        accepted.append(submit(batcher, 3))
        await asyncio.sleep(0.05)
        accepted[2].cancel()  # a cancelled request is not computed
        gate.open.set()
        await asyncio.gather(*accepted, return_exceptions=True)

    play(lambda: Batcher(gate.compute, queue=3, max_batch=2), story)
    assert gate.computed == [0, 1, 3]


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


@pytest.mark.parametrize(
    ("seconds_each", "most"),
    [
        (0.0001, 128),  # 18 batches of 1.6 ms fit into 30 ms; the queue is the limit
        (
            0.0004,
            64,
        ),  # four batches of 6.4 ms: 75 requests would fit, but eleven of them would wait for a fifth batch
        (0.0006, 48),  # three batches of 9.6 ms
        (0.02, 48),  # three full batches may always wait
    ],
)
def test_the_queue_is_shorter_where_requests_take_long(
    seconds_each: float, most: int
) -> None:
    clock = Clock()

    async def story(batcher: Batcher) -> None:
        await asyncio.gather(*(submit(batcher, seconds_each) for _ in range(16)))
        with batcher.place(most - 2):
            batcher.refuse_more(2)
            with pytest.raises(Overloaded):
                batcher.refuse_more(3)
        batcher.refuse_more(10 * most)  # alone it is accepted

    play(lambda: Batcher(clock.compute, clock=clock), story)


def test_short_batches_are_computed_inline_and_long_ones_in_the_thread() -> None:
    clock = Clock()

    async def story(batcher: Batcher) -> int:
        for pause in (0.001, 0.001, 0.5, 0.001):
            assert await submit(batcher, pause) == pause
        return threading.get_ident()

    here = play(lambda: Batcher(clock.compute, inline=0.004, clock=clock), story)
    # The first is not known to be short yet, and the long one raises the average for a while.
    assert [thread == here for thread in clock.threads] == [False, True, True, False]


def test_a_batch_has_a_bounded_amount_of_work() -> None:
    batches: list[list[int]] = []

    async def story(batcher: Batcher) -> None:
        await asyncio.gather(
            *(submit(batcher, work, work) for work in (1, 4, 3, 2, 6, 1, 20, 1))
        )

    play(
        lambda: Batcher(
            lambda works: batches.append(list(works)) or works, max_batch=8
        ),
        story,
    )
    assert batches == [[1, 4, 3], [2, 6], [1], [20], [1]]


def test_slow_work_is_not_done_once_the_client_has_left() -> None:
    quick = Gate()
    slow = Gate()
    left = asyncio.Event()
    queue = BackgroundQueue(10)

    async def has_left() -> bool:
        return left.is_set()

    async def story(batcher: Batcher) -> None:
        pieces = [
            queue.run(
                lambda name=name: slow.compute([name]),
                has_left if name == "b" else None,
            )
            for name in ("a", "b", "c")
        ]
        later = [asyncio.create_task(piece) for piece in pieces]
        first = submit(batcher, "d")
        await asyncio.sleep(0.05)
        left.set()
        quick.open.set()
        assert await first == "d"
        slow.open.set()
        answers = await asyncio.gather(*later, return_exceptions=True)
        assert [isinstance(answer, Disconnected) for answer in answers] == [
            False,
            True,
            False,
        ]
        queue.stop()

    play(lambda: Batcher(quick.compute, max_batch=1), story)
    assert (quick.computed, slow.computed) == (["d"], ["a", "c"])


def test_slow_work_is_bounded_by_its_sum() -> None:
    queue = BackgroundQueue(10)
    with (
        queue.place(100),
        pytest.raises(Overloaded),
        queue.place(1),
    ):  # alone the first is accepted
        pass
    with queue.place(4), queue.place(6), pytest.raises(Overloaded), queue.place(1):
        pass
    assert queue.work == 0
    queue.stop()
