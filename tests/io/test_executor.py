"""Work on a Ray cluster: results, retries, errors, and what happens without Ray or an address."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from posrec.errors import InputError, RunFailed
from posrec.io.executor import ADDRESS, Cluster, ray_cluster
from tests.helpers import RecordingProgress, heed_interrupts, own_process

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.process


def halved(number: int) -> int:
    if number % 2:
        raise InputError(f"{number} is odd")
    return number // 2


def killed(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed_once(marker: Path) -> None:
    """Kill the process of the task the first time, which the marker shows."""
    if not marker.exists():
        marker.touch()
        killed(0)


def slow(marker: Path) -> None:
    marker.with_suffix(".begun").touch()
    time.sleep(60)
    marker.touch()


def threads(_: int) -> tuple[int, str | None]:
    import torch

    return torch.get_num_threads(), os.environ.get("POLARS_MAX_THREADS")


@pytest.mark.slow
def test_every_input_has_its_result(cluster: Cluster) -> None:
    progress = RecordingProgress()
    taken = []

    def inputs() -> Iterator[int]:
        for number in range(0, 40, 2):
            taken.append(number)
            yield number

    results = {}
    running = cluster.run(halved, inputs(), work="Halving", progress=progress)
    for number, result in running:
        results[number] = result
        # Inputs are taken only as tasks end.
        assert len(taken) <= len(results) + cluster.cpus
    assert results == {number: number // 2 for number in range(0, 40, 2)}
    assert progress.moves[-1] == ("Halving", 20, 0)
    assert list(cluster.run(halved, [], work="Halving")) == []


@pytest.mark.slow
def test_a_task_computes_with_one_thread(cluster: Cluster) -> None:
    assert list(cluster.run(threads, [0], work="Threads")) == [(0, (1, "1"))]


@pytest.mark.slow
def test_a_killed_task_is_run_again(cluster: Cluster, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    assert list(cluster.run(killed_once, [marker], work="Killed")) == [(marker, None)]


@pytest.mark.slow
def test_a_task_that_always_dies_ends_the_work(cluster: Cluster) -> None:
    with pytest.raises(RunFailed, match=r"Doomed: .* died 4 times"):
        list(cluster.run(killed, [1], work="Doomed"))


@pytest.mark.slow
def test_tasks_are_cancelled_when_the_iteration_ends_early(
    cluster: Cluster, tmp_path: Path
) -> None:
    """A task that fails ends the others: cores are free long before the slow task would end."""
    marker = tmp_path / "slow"
    tasks: list[Path | int] = [marker, 3]
    running = cluster.run(either, tasks, work="Either")
    with pytest.raises(InputError, match=r"^3 is odd$"):
        list(running)
    assert dict(cluster.run(halved, [2, 4], work="Halving")) == {2: 1, 4: 2}
    assert not marker.exists()


def either(task: Path | int) -> None:
    if isinstance(task, Path):
        slow(task)
    else:
        halved(task)


@pytest.mark.slow
def test_what_can_never_start_is_refused(cluster: Cluster) -> None:
    with pytest.raises(InputError, match="a task needs 1 core and 1 GPUs"):
        list(cluster.run(halved, [2], work="Halving", gpus=1))


@pytest.mark.slow
def test_an_open_connection_is_used_and_kept(cluster: Cluster) -> None:
    with ray_cluster() as again:
        assert again.cpus == 2
    assert ray.is_initialized()


INTERRUPTED = """
import sys
from pathlib import Path
from posrec.io.executor import ray_cluster
from tests.io.test_executor import slow
with ray_cluster(workers=1) as cluster:
    list(cluster.run(slow, [Path(sys.argv[1])], work="Slow"))
"""


@pytest.mark.slow
def test_an_interrupt_ends_the_work_and_the_cluster(tmp_path: Path) -> None:
    marker = tmp_path / "slow"
    line = [sys.executable, "-c", INTERRUPTED, str(marker)]
    process = subprocess.Popen(
        line, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    )
    while not marker.with_suffix(".begun").exists():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode != 0
    assert errors.strip().endswith("KeyboardInterrupt")
    assert not marker.exists()


def test_an_address_that_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # not listening
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        for closed_address in (address, f"ray://{address}"):
            with pytest.raises(InputError, match=f"answers at {closed_address}"):
                ray_cluster(closed_address).__enter__()
        monkeypatch.setenv(ADDRESS, address)
        with pytest.raises(InputError, match=f"answers at {address}"):
            ray_cluster().__enter__()
    for wrong in ("nonsense", "host:", ":6379", "host:http"):
        with pytest.raises(InputError, match=f"--address {wrong}: must be HOST:PORT"):
            ray_cluster(wrong).__enter__()
    with pytest.raises(InputError, match="--workers is for a new local cluster"):
        ray_cluster("127.0.0.1:6379", workers=2).__enter__()


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"pip install 'posrec\[ray\]'"):
        ray_cluster().__enter__()


def test_nothing_loads_ray_unless_it_is_asked_for() -> None:
    code = "import sys, posrec.recommend.files.score; print('ray' in sys.modules)"
    assert own_process(code=code).stdout.strip() == "False"
