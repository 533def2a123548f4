"""Whole or not at all."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from posrec.errors import InputError
from posrec.io import read_json, whole_folder, write_array, write_json, write_text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with whole_folder(out) as unfinished:
        (unfinished / "a").write_text("x")
        assert not out.exists()
        assert unfinished.parent == out.parent
    assert (names(out.parent), names(out)) == (["out"], ["a"])
    assert out.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_a_failure_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    def fail() -> None:
        with whole_folder(tmp_path / "out") as unfinished:
            (unfinished / "a").write_text("x")
            raise error

    with pytest.raises(error):
        fail()
    assert names(tmp_path) == []


def test_leftovers_of_a_killed_run_are_removed_and_others_kept(tmp_path: Path) -> None:
    for name in (".o[u]t.unfinished-abc", ".out.unfinished-abc", ".o[u]t.unfinished-x-replaced"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").touch()
    with whole_folder(tmp_path / "o[u]t"):
        pass
    assert names(tmp_path) == [".out.unfinished-abc", "o[u]t"]


def test_two_at_once_do_not_take_from_each_other(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def overtaken() -> None:
        with whole_folder(out) as slower:
            with whole_folder(out) as quicker:
                (quicker / "a").write_text("quicker")
            (slower / "a").write_text("slower")

    with pytest.raises(InputError, match="exists already"):
        overtaken()
    assert (names(tmp_path), (out / "a").read_text()) == (["out"], "quicker")


def test_what_exists_is_not_touched_unless_asked(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(InputError, match="exists already; name another folder, remove it"), whole_folder(out):
        pass
    with (
        pytest.raises(InputError, match="is not a prepared dataset, so it is not overwritten"),
        whole_folder(out, True),
    ):
        pass
    (out / "manifest.json").write_text("old")
    with whole_folder(out, True) as unfinished:
        (unfinished / "manifest.json").write_text("new")
        assert (out / "manifest.json").read_text() == "old"
    assert (names(tmp_path), (out / "manifest.json").read_text()) == (["out"], "new")


def test_a_failed_overwrite_keeps_the_old(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "manifest.json").write_text("old")

    def fail() -> None:
        with whole_folder(out, True):
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert (names(tmp_path), (out / "manifest.json").read_text()) == (["out"], "old")


def test_a_dangling_link_is_something_that_exists(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="exists already"), whole_folder(tmp_path / "out"):
        pass


def test_files_are_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"é": [1, None]})
    assert (read_json(path), json.loads(path.read_text())) == ({"é": [1, None]}, {"é": [1, None]})
    assert "é" in path.read_text(encoding="utf-8")
    write_text(path, "{")
    assert names(tmp_path) == ["a.json"]
    with pytest.raises(InputError, match=r"a\.json is not JSON"):
        read_json(path)
    with pytest.raises(InputError, match=r"b\.json is missing"):
        read_json(tmp_path / "b.json")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert (names(tmp_path), path.read_text()) == (["a.json"], "{")


@pytest.mark.parametrize("array", [np.arange(5, dtype=np.int32), np.arange(10)[::2], np.empty(0, np.int64)])
def test_arrays_are_written_as_numpy_does(tmp_path: Path, array: np.ndarray) -> None:
    write_array(tmp_path / "a.npy", array)
    np.save(tmp_path / "b.npy", np.ascontiguousarray(array))
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_no_permission_is_an_os_error(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError), whole_folder(tmp_path / "out"):
        pass
