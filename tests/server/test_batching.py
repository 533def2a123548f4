"""The two queues: batches of requests that arrive together, and slow work in the background."""

import asyncio
import os
import sys
import threading
from collections.abc import Sequence

import pytest

from posrec.server.batching import NICENESS, BackgroundQueue, Batcher, Overloaded, lower_priority
from posrec.server.http.messages import Disconnected


def test_requests_that_arrive_while_computing_form_the_next_batches() -> None:
    sizes: list[int] = []
    going = threading.Event()

    def double(numbers: Sequence[int]) -> list[int]:
        going.wait(60)
        return [2 * number for number in numbers]

    async def play() -> list[int]:
        batcher = Batcher(double, max_batch=4, observe=lambda size, _: sizes.append(size))
        batcher.start()
        first = batcher.submit(1)
        await asyncio.sleep(0.05)
        rest = [batcher.submit(number) for number in range(2, 11)]
        await asyncio.sleep(0.05)
        going.set()
        answers = await asyncio.gather(first, *rest)
        await batcher.stop()
        return answers

    assert asyncio.run(play()) == [2 * number for number in range(1, 11)]
    assert sizes == [1, 4, 4, 1]


def test_requests_are_answered_again_after_memory_has_run_out() -> None:
    """Wherever that is: beside a batch, or while the next one is chosen."""

    async def play() -> list[int]:
        failing = [True]

        def fail_once(*_: int) -> None:
            if failing.pop() if failing else False:
                raise MemoryError

        batcher = Batcher(lambda numbers: [2 * number for number in numbers], observe=fail_once)
        batcher.start()
        with pytest.raises(MemoryError):
            await asyncio.wait_for(batcher.submit(1), 60)
        answers = [await asyncio.wait_for(batcher.submit(2), 60)]
        failing.append(True)
        really, batcher.next_batch = batcher.next_batch, lambda: [fail_once(), *really()][1:]  # type: ignore[method-assign]
        with pytest.raises(MemoryError):
            await asyncio.wait_for(batcher.submit(3), 60)
        answers.append(await asyncio.wait_for(batcher.submit(4), 60))
        await batcher.stop()
        return answers

    assert asyncio.run(play()) == [4, 8]


def test_stopping_waits_for_the_batch_that_is_computed() -> None:
    async def play() -> int:
        going = threading.Event()

        def double(numbers: Sequence[int]) -> list[int]:
            going.wait(60)
            return [2 * number for number in numbers]

        batcher = Batcher(double)
        batcher.start()
        answer = batcher.submit(4)
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
        assert await batcher.submit(4) == 4
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
        accepted = [batcher.submit(0)]
        await asyncio.sleep(0.05)
        accepted += [batcher.submit(number) for number in (1, 2, 3)]
        await asyncio.sleep(0.05)
        with pytest.raises(Overloaded):
            await batcher.submit(4)
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
            await batcher.submit(0)
        answer: float = await batcher.submit(4)
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

    async def play() -> None:
        batcher = Batcher(clock.compute, queue=1000, max_batch=1, clock=clock)
        batcher.start()
        await batcher.submit(0.0055)
        accepted = [batcher.submit(0.0055) for _ in range(5)]
        with pytest.raises(Overloaded):
            batcher.submit(0.0055)
        assert await asyncio.gather(*accepted) == [0.0055] * 5
        await batcher.stop()

    asyncio.run(play())


def test_short_batches_are_computed_inline_and_long_ones_in_the_thread() -> None:
    clock = Clock()

    async def play() -> int:
        batcher = Batcher(clock.compute, inline=0.004, clock=clock)
        batcher.start()
        for pause in (0.001, 0.001, 0.5, 0.001):
            assert await batcher.submit(pause) == pause
        await batcher.stop()
        return threading.get_ident()

    here = asyncio.run(play())
    # The first is not known to be short yet, and the long one raises the average for a while.
    assert [thread == here for thread in clock.threads] == [False, True, True, False]


@pytest.mark.parametrize(
    ("seconds_each", "most"),
    [
        (0.0, 128),  # nothing is known yet: the whole queue
        (0.0001, 128),  # 18 batches of 1.6 ms fit into 30 ms; the queue is the limit
        (0.0004, 64),  # four batches of 6.4 ms: 75 requests would fit, but eleven of them would wait for a fifth batch
        (0.0006, 48),  # three batches of 9.6 ms
        (0.02, 48),  # three full batches may always wait
    ],
)
def test_whole_batches_wait(seconds_each: float, most: int) -> None:
    batcher = Batcher(lambda queries: queries, queue=128, max_batch=16)
    batcher.seconds_each_busy = seconds_each
    with batcher.place(most - 2):
        batcher.refuse_more(2)
        with pytest.raises(Overloaded):
            batcher.refuse_more(3)
    batcher.refuse_more(10 * most)  # alone it is accepted
    batcher.thread.shutdown()


def test_a_batch_has_a_bounded_amount_of_work() -> None:
    batches: list[list[int]] = []

    async def play() -> None:
        batcher = Batcher(lambda works: batches.append(list(works)) or works, max_batch=8)
        answers = [batcher.submit(work, work) for work in (1, 4, 3, 2, 6, 1, 20, 1)]
        batcher.start()
        await asyncio.gather(*answers)
        await batcher.stop()

    asyncio.run(play())
    assert batches == [[1, 4, 3], [2, 6], [1], [20], [1]]


def test_what_a_client_has_asked_for_is_not_computed_once_it_has_left() -> None:
    computed: list[str] = []
    going, left = threading.Event(), threading.Event()

    def compute(names: Sequence[str]) -> Sequence[str]:
        going.wait(60)
        computed.extend(names)
        return names

    async def play() -> None:
        queue, batcher = BackgroundQueue(10), Batcher(compute, max_batch=1)
        batcher.start()
        first = [batcher.submit("a"), asyncio.create_task(queue.run(lambda: compute(["b"])))]
        await asyncio.sleep(0.05)
        later = [
            batcher.submit("c", has_left=left.is_set),
            batcher.submit("d"),
            asyncio.create_task(queue.run(lambda: compute(["e"]), left.is_set)),
            asyncio.create_task(queue.run(lambda: compute(["f"]))),
        ]
        await asyncio.sleep(0)
        left.set()
        going.set()
        answers = await asyncio.gather(*first, *later, return_exceptions=True)
        assert [isinstance(one, Disconnected) for one in answers] == [False, False, True, False, True, False]
        queue.stop()
        await batcher.stop()

    asyncio.run(play())
    assert sorted(computed) == ["a", "b", "d", "f"]


def test_slow_work_is_bounded_by_its_sum() -> None:
    queue = BackgroundQueue(10)
    with queue.place(100), pytest.raises(Overloaded), queue.place(1):  # alone the first is accepted
        pass
    with queue.place(4), queue.place(6), pytest.raises(Overloaded), queue.place(1):
        pass
    assert queue.work == 0
    queue.stop()


def test_recommendations_are_answered_while_explanations_wait() -> None:
    release, running, together = threading.Event(), [], []

    def explanation() -> str:
        running.append(1)
        together.append(len(running))
        assert release.wait(60)
        running.pop()
        return "explained"

    async def play() -> None:
        queue, batcher = BackgroundQueue(3), Batcher(lambda queries: queries)
        batcher.start()
        explaining = [asyncio.create_task(queue.run(explanation)) for _ in range(3)]
        await asyncio.sleep(0)  # all three are waiting or being computed
        assert [await batcher.submit(number) for number in range(5)] == [0, 1, 2, 3, 4]
        assert not any(task.done() for task in explaining)
        release.set()
        assert await asyncio.gather(*explaining) == ["explained"] * 3
        queue.stop()
        await batcher.stop()

    asyncio.run(play())
    assert together == [1, 1, 1]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a priority for each thread")
def test_the_thread_has_a_low_priority_and_the_others_keep_theirs() -> None:
    async def play() -> int:
        queue = BackgroundQueue(1)
        found: int = await queue.run(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        queue.stop()
        return found

    before = os.getpriority(os.PRIO_PROCESS, os.getpid())
    assert asyncio.run(play()) == max(before, NICENESS)
    assert os.getpriority(os.PRIO_PROCESS, os.getpid()) == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a priority for each thread")
def test_a_priority_that_is_lower_already_stays() -> None:
    """Only root may raise it: a server under `nice -n 15` could not compute explanations otherwise."""
    found = []

    def in_a_thread() -> None:
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, 15)
        lower_priority()
        found.append(os.getpriority(os.PRIO_PROCESS, thread))

    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    assert found == [15]
