"""Locks between processes end with their work, or with their process."""

import signal
from pathlib import Path

import pytest

from posrec.io.unfinished import try_lock
from tests.helpers import listed, own_process


def test_a_lock_is_held_once_and_its_file_is_removed(tmp_path: Path) -> None:
    a, b = tmp_path / "a.lock", tmp_path / "b.lock"
    with try_lock(a) as first, try_lock(a) as second, try_lock(b) as other:
        assert (first, second, other) == (True, False, True)
    assert listed(tmp_path) == []
    (tmp_path / "a.lock").touch()  # as a killed process leaves it
    with try_lock(tmp_path / "a.lock") as again:
        assert again
    with pytest.raises(ZeroDivisionError), try_lock(tmp_path / "a.lock"):
        raise ZeroDivisionError
    assert listed(tmp_path) == []


@pytest.mark.process
def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    code = """
import os, signal, sys
from pathlib import Path
from posrec.io.unfinished import try_lock
with try_lock(Path(sys.argv[1])) as is_ours:
    assert is_ours
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert own_process(tmp_path / "a.lock", code=code).returncode == -signal.SIGKILL
    assert listed(tmp_path) == ["a.lock"]
    with try_lock(tmp_path / "a.lock") as is_ours:
        assert is_ours
