"""Locks between processes end with their work, or with their process."""

from pathlib import Path

import pytest

from posrec.errors import InputError
from posrec.io.unfinished import locked, one_writer
from tests.helpers import listed


def test_a_folder_has_one_writer_and_no_lock_remains(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "out"
    with one_writer(folder), one_writer(tmp_path / "other"):
        with pytest.raises(InputError, match="out is being written"):
            one_writer(folder).__enter__()
        (folder / "a").touch()
    assert (listed(tmp_path), listed(folder)) == (["deep"], ["a"])
    (folder / ".lock").touch()  # as a killed process leaves it
    with pytest.raises(ZeroDivisionError), one_writer(folder):
        raise ZeroDivisionError
    assert listed(folder) == ["a"]
    with pytest.raises(InputError, match="a is a file"):
        one_writer(folder / "a").__enter__()


def test_a_folder_is_locked_without_a_file_in_it(tmp_path: Path) -> None:
    with locked(tmp_path) as first, locked(tmp_path, wait=False) as second:
        assert (first, second, listed(tmp_path)) == (True, False, [])
    with locked(tmp_path, wait=False) as again:
        assert again
