"""Which cores may be used, and with how many threads."""

import math
import os
from pathlib import Path

import pytest
import torch

from posrec import device
from tests.helpers import own_process


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, math.inf),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf),
        ({}, math.inf),
    ],
    ids=["version 2", "version 2, none", "version 1", "version 1, none", "no files"],
)
def test_quotas(tmp_path: Path, files: dict[str, str], cores: float) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert device.cpu_quota(tmp_path) == cores


@pytest.mark.parametrize(
    ("quota", "threads"),
    [(0.3, {"OMP_NUM_THREADS": "1"}), (1.2, {"OMP_NUM_THREADS": "2"}), (math.inf, {})],
)
def test_a_quota_limits_the_threads_unless_the_user_set_them(
    monkeypatch: pytest.MonkeyPatch, quota: float, threads: dict[str, str]
) -> None:
    monkeypatch.setattr(device, "affinity", lambda: {0, 1, 2, 3})
    monkeypatch.setattr(device, "cpu_quota", lambda: quota)
    monkeypatch.setattr(os, "environ", {})
    device.share_cores()
    assert os.environ == {**device.WAITING, **threads}
    chosen = {"OMP_WAIT_POLICY": "ACTIVE", "OMP_NUM_THREADS": "3"}
    monkeypatch.setattr(os, "environ", dict(chosen))
    device.share_cores()
    assert os.environ == chosen


THREADS = """
import os
from posrec.device import use_threads
print(os.environ["OMP_WAIT_POLICY"])
use_threads(1)
import torch
print(torch.get_num_threads())
use_threads(2)
print(torch.get_num_threads())
use_threads(None)
print(torch.get_num_threads())
"""


@pytest.mark.process
def test_threads_wait_without_spinning_and_can_be_set_before_and_after_torch_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in device.WAITING:
        monkeypatch.delenv(name, raising=False)
    assert own_process(code=THREADS).stdout.split() == ["PASSIVE", "1", "2", "2"]


def test_small_work_is_done_by_one_thread_unless_the_user_chose_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        cases = [(False, 10**6, 1), (False, 10**12, 2), (True, 10**6, 2)]
        for chosen, operations, threads in cases:
            monkeypatch.setattr(device.Threads, "chosen", chosen)
            with device.threads_for(operations):
                assert torch.get_num_threads() == threads
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
