"""Locks between processes end with their work, or with their process."""

from pathlib import Path

import pytest

from posrec.io.unfinished import try_lock
from tests.helpers import listed


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
