"""Tasks in processes that share this machine, for benchmarks that train many models."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from threading import Thread
from typing import Any

from posrec.device import usable_cores, use_threads
from posrec.errors import RunStopped
from posrec.io.executor import Input, Result, ThisProcess


class SideBySide(ThisProcess):
    """An executor: processes that share this machine. None gets a task after `minutes`."""

    def __init__(self, processes: int, minutes: float) -> None:
        self.processes = processes
        self.deadline = time.monotonic() + 60 * minutes
        # The processes inherit the number.
        use_threads(max(1, usable_cores() // processes))

    def run(
        self, function: Callable[[Input], Result], inputs: Iterable[Input], **_: Any
    ) -> Iterator[tuple[Input, Result]]:
        context = multiprocessing.get_context("spawn")
        waiting = iter(inputs)
        running: dict[Future[Result], Input] = {}
        with ProcessPoolExecutor(self.processes, context, watch_parent) as pool:
            while True:
                while len(running) < self.processes and not self.is_over():
                    task_input = next(waiting, None)
                    if task_input is None:
                        break
                    running[pool.submit(function, task_input)] = task_input
                if not running:
                    break
                ended, _others = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    yield running.pop(future), future.result()
        if next(waiting, None) is not None:
            raise RunStopped("the time is over; the same command continues")

    def is_over(self) -> bool:
        return time.monotonic() >= self.deadline


def watch_parent() -> None:
    """A process ends when the one that started it is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait_for_its_end() -> None:
        parent.join()
        os._exit(1)

    Thread(target=wait_for_its_end, daemon=True).start()
