"""Executors: who does the tasks of a job, this process or the processes of a Ray cluster.

    with executor_of(engine, address) as executor:
        for job, result in executor.run(run_job, jobs, work="Jobs"):
            ...

Ray runs a task again if its process or machine dies, so what it writes is whole or not there.
"""

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import Any, TypeVar

from posrec.device import usable_cores, use_threads
from posrec.errors import InputError, RunFailed, first_line, imported
from posrec.progress import Progress, SilentProgress

Input = TypeVar("Input")
Result = TypeVar("Result")

# The values of --engine.
LOCAL = "local"
RAY = "ray"
ADDRESS = "RAY_ADDRESS"  # which Ray itself reads, and `ray job submit` sets
# No report of usage to Ray's makers; a task without GPUs keeps CUDA_VISIBLE_DEVICES as it is.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
OBJECT_MEMORY = 256 * 2**20  # for inputs and results; large things go through files
CONNECT_SECONDS = 5.0  # Ray itself would wait for two minutes and then end the process
RETRIES = 3  # of a task whose process or machine dies


class ThisProcess:
    cpus = 1

    def run(
        self,
        function: Callable[[Input], Result],
        inputs: Iterable[Input],
        *,
        work: str,
        progress: Progress | None = None,
        **_: Any,
    ) -> Iterator[tuple[Input, Result]]:
        """As `Cluster.run`, one task after the other; the function chooses its device itself."""
        progress = progress or SilentProgress()
        total = len(inputs) if isinstance(inputs, Sized) else 0
        for done, task_input in enumerate(inputs):
            progress.update(work, done, total)
            yield task_input, function(task_input)
        progress.update(work, total, total)

    def gpus_for(self, device: str) -> int:
        return 0


class Cluster:
    """A connection to Ray. All paths must be on a file system that every machine has."""

    def __init__(self, ray: Any) -> None:
        resources = ray.cluster_resources()
        self.ray = ray
        self.cpus = int(resources.get("CPU", 0))
        self.gpus = int(resources.get("GPU", 0))

    def run(
        self,
        function: Callable[[Input], Result],
        inputs: Iterable[Input],
        *,
        work: str,
        gpus: int = 0,
        in_order: bool = False,
        progress: Progress | None = None,
    ) -> Iterator[tuple[Input, Result]]:
        """Run `function(input)` for every input as a task of its own; yield inputs with results.

        Inputs are taken only as tasks end, so that there may be any number. An error of `function`
        is raised here; then, or if the iteration is left early, the other tasks are cancelled.

        Args:
            function: it is pickled, as inputs are; every process loads it once.
            gpus: GPUs of a task, beside its one core; Ray makes only those visible to it.
            in_order: yield the results in the order of the inputs, else as they finish.
        """
        progress = progress or SilentProgress()
        total = len(inputs) if isinstance(inputs, Sized) else 0
        at_once = self.tasks_at_once(gpus)
        # In order, finished tasks wait for the first one, so others are started meanwhile.
        most = 2 * at_once if in_order else at_once
        task = self.ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(call)
        # In a list, so that the task loads the function only after it has set its threads.
        shared = [self.ray.put(function)]
        running: dict[Any, Input] = {}
        waiting = iter(inputs)
        done = 0
        began = time.monotonic()
        try:
            while True:
                for task_input in islice(waiting, most - len(running)):
                    running[task.remote(shared, task_input)] = task_input
                if not running:
                    return
                note = f"{min(at_once, len(running))} at a time"
                progress.update(work, done, total, note)
                watched = list(running)[:1] if in_order else list(running)
                (finished,) = self.ray.wait(watched, num_returns=1)[0]
                yield running.pop(finished), self.result_of(finished, work)
                done += 1
                speed = done / (time.monotonic() - began)
                progress.update(work, done, total, f"{speed:.2g} tasks/s")
        finally:
            self.cancel(list(running))

    def tasks_at_once(self, gpus: int) -> int:
        count = min(self.cpus, self.gpus // gpus) if gpus else self.cpus
        if not count:  # Ray would wait for machines to join
            raise InputError(
                f"a task needs 1 core and {gpus} GPUs, and the Ray cluster has {self.cpus} "
                f"and {self.gpus}"
            )
        return count

    def cancel(self, tasks: list[Any]) -> None:
        if not tasks:
            return
        # Ray 2.60 aborts if a task is cancelled whose result is on its way.
        _, unfinished = self.ray.wait(tasks, num_returns=len(tasks), timeout=0)
        for task in unfinished:
            self.ray.cancel(task, force=True)

    def gpus_for(self, device: str) -> int:
        """The GPUs of a task on `device`: "auto" takes one if the cluster has any."""
        if device not in ("auto", "cpu", "cuda"):
            raise InputError(
                f"device {device!r} is not known; choose auto, cpu or cuda"
            )
        return int(device == "cuda" or (device == "auto" and self.gpus > 0))

    def result_of(self, finished: Any, work: str) -> Any:
        errors = self.ray.exceptions
        try:
            return self.ray.get(finished)
        except errors.RayTaskError as error:
            if isinstance(error.cause, Exception):
                raise error.cause from None
            raise
        except (
            errors.WorkerCrashedError,
            errors.OutOfMemoryError,
            errors.NodeDiedError,
        ) as error:
            raise RunFailed(
                f"{work}: the process of a task died {RETRIES + 1} times, probably for lack of "
                f"memory; use fewer --workers or larger machines ({first_line(error)})"
            ) from None


Executor = ThisProcess | Cluster


def call(shared: list[Any], task_input: Any) -> Any:
    use_threads(1)  # since a task has one core
    return loaded_function(shared[0])(task_input)


@lru_cache(maxsize=1)
def loaded_function(reference: Any) -> Any:
    import ray

    return ray.get(reference)


@contextmanager
def executor_of(
    engine: str, address: str | None = None, workers: int | None = None
) -> Iterator[Executor]:
    if engine not in (LOCAL, RAY):
        raise InputError(f"--engine {engine} is not known; choose {LOCAL} or {RAY}")
    if engine == RAY:
        with ray_cluster(address, workers) as cluster:
            yield cluster
        return
    for option, value in (("--address", address), ("--workers", workers)):
        if value is not None:
            raise InputError(f"{option} is for Ray; add --engine ray, or leave it out")
    yield ThisProcess()


@contextmanager
def ray_cluster(
    address: str | None = None, workers: int | None = None
) -> Iterator[Cluster]:
    """Connect to a Ray cluster, or start one on this machine that ends with the block.

    Args:
        address: `HOST:PORT`, `ray://HOST:PORT` or "auto"; by default RAY_ADDRESS, or a new cluster.
        workers: tasks at a time in a new cluster; by default one for each core.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    ray = imported("ray", "--engine ray", "ray")
    if ray.is_initialized():  # the caller's own connection, which it will want to keep
        yield Cluster(ray)
        return
    address = address or os.environ.get(ADDRESS)
    if address is None:
        options = {
            "address": "local",
            "num_cpus": workers or usable_cores(),
            "object_store_memory": OBJECT_MEMORY,
            "include_dashboard": False,
        }
    elif workers is not None:
        raise InputError(
            f"--workers is for a new local cluster; the cluster at {address} has its own number"
        )
    else:
        check_address(address)
        options = {"address": address}
    try:
        ray.init(**options, log_to_driver=False, logging_level="ERROR")
    # Ray raises a plain Exception if its own processes do not start within 30 seconds.
    except Exception as error:
        if address is None:
            ray.shutdown()  # what has started
            raise RunFailed(
                f"Ray can't start a cluster on this machine: {error}"
            ) from None
        raise InputError(
            f"the Ray cluster at {address} can't be used: {first_line(error)}; if it asks for a "
            "token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as they are on the cluster"
        ) from None
    try:
        yield Cluster(ray)
    finally:
        ray.shutdown()


def check_address(address: str) -> None:
    """Fail at once if nothing listens at `address`."""
    if address == "auto":
        return
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        raise InputError(
            f"--address {address}: must be HOST:PORT, ray://HOST:PORT or auto"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InputError(
            f"no Ray cluster answers at {address} ({error}); start one with: ray start --head, "
            "or leave out --address"
        ) from None
