"""Which cores may be used, and with how many threads; the settings reach torch in a process of its own."""

import math
import os
from pathlib import Path

import pytest
import torch

from posrec import device
from tests.helpers import own_process

SHOW = "import os, posrec, torch; print(os.environ['OMP_WAIT_POLICY'], torch.get_num_threads())"


def test_a_quota_of_version_2(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert device.cpu_quota(tmp_path) == 1.5
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert device.cpu_quota(tmp_path) == math.inf


@pytest.mark.parametrize(("quota", "cores"), [("300000", 3.0), ("-1", math.inf)])
def test_a_quota_of_version_1(tmp_path: Path, quota: str, cores: float) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert device.cpu_quota(tmp_path) == cores


def test_no_quota_where_nothing_says_so(tmp_path: Path) -> None:
    assert device.cpu_quota(tmp_path) == math.inf


@pytest.mark.parametrize(("quota", "expected"), [(0.3, 1), (1.2, 2), (math.inf, 4)])
def test_usable_cores_are_the_lesser_of_affinity_and_quota(
    monkeypatch: pytest.MonkeyPatch, quota: float, expected: int
) -> None:
    monkeypatch.setattr(device, "affinity", lambda: {0, 1, 2, 3})
    monkeypatch.setattr(device, "cpu_quota", lambda: quota)
    assert device.usable_cores() == expected


def test_a_quota_limits_the_threads_unless_the_user_set_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "affinity", lambda: {0, 1, 2, 3})
    monkeypatch.setattr(device, "cpu_quota", lambda: 2.0)
    monkeypatch.setattr(os, "environ", {})
    device.share_cores()
    assert os.environ == {**device.WAITING, "OMP_NUM_THREADS": "2"}
    chosen = {"OMP_WAIT_POLICY": "ACTIVE", "OMP_NUM_THREADS": "3"}
    monkeypatch.setattr(os, "environ", dict(chosen))
    device.share_cores()
    assert os.environ == chosen


@pytest.mark.process
def test_importing_posrec_before_torch_makes_its_threads_wait_without_spinning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in device.WAITING:
        monkeypatch.delenv(name, raising=False)
    assert own_process(code=SHOW).stdout.split()[0] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert own_process(code=SHOW).stdout.split()[0] == "ACTIVE"


THREADS = """
from posrec.device import use_threads
use_threads(1)
import torch
print(torch.get_num_threads())
use_threads(2)
print(torch.get_num_threads())
use_threads(None)
print(torch.get_num_threads())
"""


@pytest.mark.process
def test_threads_can_be_set_before_and_after_torch_is_loaded() -> None:
    assert own_process(code=THREADS).stdout.split() == ["1", "2", "2"]


def test_small_work_is_done_by_one_thread_unless_the_user_chose_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for chosen, operations, expected in ((False, 10**6, 1), (False, 10**12, 2), (True, 10**6, 2)):
            monkeypatch.setattr(device.Threads, "chosen", chosen)
            with device.threads_for(operations):
                assert torch.get_num_threads() == expected
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
