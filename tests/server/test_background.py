"""Explanations are computed one at a time at low priority, and never hold up recommendations."""

import asyncio
import os
import sys
import threading

import pytest

from posrec.server.batching import Batcher, Overloaded
from posrec.server.live.background import NICENESS, BackgroundQueue, lower_priority


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
        with pytest.raises(Overloaded):
            await queue.run(explanation)
        assert [await batcher.ask(number) for number in range(5)] == [0, 1, 2, 3, 4]
        assert not any(task.done() for task in explaining)
        release.set()
        assert await asyncio.gather(*explaining) == ["explained"] * 3
        assert await queue.run(explanation) == "explained"  # there is room again
        queue.stop()
        await batcher.stop()

    asyncio.run(play())
    assert together == [1, 1, 1, 1]


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
