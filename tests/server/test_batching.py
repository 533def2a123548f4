"""Batching: requests that arrive together, the bound on the queue, errors."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from posrec.server.batching import Batcher, Overloaded


def test_requests_that_arrive_while_computing_form_the_next_batches() -> None:
    sizes: list[int] = []
    going = threading.Event()

    def double(numbers: Sequence[int]) -> list[int]:
        going.wait(60)
        return [2 * number for number in numbers]

    async def play() -> list[int]:
        batcher = Batcher(double, max_batch=4, observe=sizes.append)
        batcher.start()
        first = asyncio.create_task(batcher.ask(1))
        await asyncio.sleep(0.05)
        rest = [asyncio.create_task(batcher.ask(number)) for number in range(2, 11)]
        await asyncio.sleep(0.05)
        going.set()
        answers = await asyncio.gather(first, *rest)
        await batcher.stop()
        return answers

    assert asyncio.run(play()) == [2 * number for number in range(1, 11)]
    assert sizes == [1, 4, 4, 1]


def test_stopping_waits_for_the_batch_that_is_computed() -> None:
    async def play() -> int:
        going = threading.Event()

        def double(numbers: Sequence[int]) -> list[int]:
            going.wait(60)
            return [2 * number for number in numbers]

        batcher = Batcher(double)
        batcher.start()
        answer = asyncio.create_task(batcher.ask(4))
        await asyncio.sleep(0.05)
        stopping = asyncio.create_task(batcher.stop())
        await asyncio.sleep(0.05)
        assert not stopping.done()
        going.set()
        await stopping
        return await asyncio.wait_for(answer, 60)

    assert asyncio.run(play()) == 8


def test_a_place_is_kept_for_a_query_that_is_not_known_yet() -> None:
    async def play() -> None:
        batcher = Batcher(lambda numbers: numbers, queue=2)
        with batcher.place(), batcher.place():
            for refused in (batcher.submit, lambda _: batcher.place().__enter__()):
                with pytest.raises(Overloaded):
                    refused(1)
            answer = batcher.submit(3, has_place=True)
        batcher.start()
        assert await asyncio.wait_for(answer, 60) == 3
        assert await batcher.ask(4) == 4
        await batcher.stop()

    asyncio.run(play())


def test_a_full_queue_refuses_more_and_answers_the_rest() -> None:
    going = threading.Event()

    def slow(numbers: Sequence[int]) -> Sequence[int]:
        going.wait(60)
        return numbers

    async def play() -> None:
        batcher = Batcher(slow, queue=3, max_batch=2)
        batcher.start()
        accepted = [asyncio.create_task(batcher.ask(0))]
        await asyncio.sleep(0.05)
        accepted += [asyncio.create_task(batcher.ask(number)) for number in (1, 2, 3)]
        await asyncio.sleep(0.05)
        with pytest.raises(Overloaded):
            await batcher.ask(4)
        accepted[2].cancel()  # a cancelled request is not computed
        going.set()
        answers = await asyncio.gather(*accepted, return_exceptions=True)
        assert [answers[0], answers[1], answers[3]] == [0, 1, 3]
        assert isinstance(answers[2], asyncio.CancelledError)
        await batcher.stop()

    asyncio.run(play())


def test_an_error_is_raised_and_the_next_batch_is_computed() -> None:
    def picky(numbers: Sequence[int]) -> list[float]:
        return [1 / number for number in numbers]

    async def play() -> float:
        batcher = Batcher(picky)
        batcher.start()
        with pytest.raises(ZeroDivisionError):
            await batcher.ask(0)
        answer: float = await batcher.ask(4)
        await batcher.stop()
        return answer

    assert asyncio.run(play()) == 0.25


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


def test_the_queue_is_shorter_where_requests_take_long() -> None:
    """At 5.5 ms a request only five fit into MAX_WAIT, although the queue has room for a thousand."""
    clock = Clock()

    async def play() -> list[Any]:
        batcher = Batcher(clock.compute, queue=1000, max_batch=1, clock=clock)
        batcher.start()
        await batcher.ask(0.0055)
        asked = [asyncio.create_task(batcher.ask(0.0055)) for _ in range(20)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        await batcher.stop()
        return answers

    answers = asyncio.run(play())
    assert answers[:5] == [0.0055] * 5
    assert [type(answer) for answer in answers[5:]] == [Overloaded] * 15


def test_short_batches_are_computed_inline_and_long_ones_in_the_thread() -> None:
    clock = Clock()

    async def play() -> int:
        batcher = Batcher(clock.compute, inline=0.004, clock=clock)
        batcher.start()
        for pause in (0.001, 0.001, 0.5, 0.001):
            assert await batcher.ask(pause) == pause
        await batcher.stop()
        return threading.get_ident()

    here = asyncio.run(play())
    # The first is not known to be short yet, and the long one raises the average for a while.
    assert [thread == here for thread in clock.threads] == [False, True, True, False]
