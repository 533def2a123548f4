"""checksums.json: what it lists is compared, and nothing else is read."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from posrec.errors import InputError
from posrec.io import ATTRIBUTES, FolderReader, changing, write_checksums, write_text
from posrec.runs.folder import FILES
from tests.helpers import refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        write_text(tmp_path / name, name * 100)
    write_checksums(tmp_path, ["a", "b", "missing"])
    return tmp_path


def test_the_file_holds_sizes_and_sha256(folder: Path) -> None:
    files = json.loads((folder / "checksums.json").read_text())["files"]
    assert files == {
        name: {"size": 100, "sha256": hashlib.sha256(name.encode() * 100).hexdigest()}
        for name in ("a", "b")
    }


def test_files_are_read_as_they_were_recorded_or_not_at_all(folder: Path) -> None:
    reader = FolderReader(folder)
    assert reader.read("a") == b"a" * 100
    assert (reader.has("a"), reader.has("c")) == (True, False)
    with pytest.raises(InputError, match="c is not listed"):
        reader.read("c")
    reader.check_rest()
    for content in ("x" * 100, "b" * 99):
        write_text(folder / "b", content)
        with pytest.raises(InputError, match="b does not match"):
            FolderReader(folder).check_rest()
    (folder / "b").unlink()
    with pytest.raises(InputError, match="b is missing"):
        FolderReader(folder).check_rest()


def make_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [make_endless, os.mkfifo, Path.mkdir])
@pytest.mark.parametrize("name", ["a", "checksums.json"])
def test_only_regular_files_are_read(
    folder: Path, name: str, make: Callable[[Path], None]
) -> None:
    """Of a hostile folder: a file without an end, and one that would be waited for."""
    listed = json.loads((folder / "checksums.json").read_text())
    (folder / name).unlink()
    make(folder / name)
    if name == "a":
        listed["files"]["a"]["size"] = (folder / "a").stat().st_size
        write_text(folder / "checksums.json", json.dumps(listed))
    with pytest.raises(InputError, match=f"{name} (is not a regular|can't be read)"):
        FolderReader(folder).read("a")


def test_a_link_to_a_regular_file_is_read(folder: Path) -> None:
    (folder / "a").rename(folder / "elsewhere")
    (folder / "a").symlink_to(folder / "elsewhere")
    assert FolderReader(folder).read("a") == b"a" * 100


def test_files_that_change_are_not_listed_meanwhile(folder: Path) -> None:
    def stop() -> None:
        with changing(folder, "b", "c"):
            write_text(folder / "b", "other")
            assert FolderReader(folder).has("b") is False
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    reader = FolderReader(folder)
    reader.check_rest()
    assert (reader.has("a"), reader.has("b"), reader.has("c")) == (True, False, False)
    with changing(folder, "b", "c"):
        pass
    assert FolderReader(folder).read("b") == b"other"
    assert FolderReader(folder).has("c")


def test_a_run_lists_all_of_its_files_but_the_checkpoint(trained: Path) -> None:
    listed = json.loads((trained / "checksums.json").read_text())["files"]
    names = {path.name for path in trained.iterdir()}
    assert names - {"checksums.json", "state.safetensors"} == listed.keys()
    assert listed.keys() == set(FILES) - {"selection.json", ATTRIBUTES}


@pytest.mark.parametrize("name", [name for name in FILES if name != "selection.json"])
def test_a_run_of_which_any_file_was_changed_is_refused(
    trained: Path, described_run: Path, tmp_path: Path, name: str
) -> None:
    complete = described_run if name == ATTRIBUTES else trained
    run = Path(shutil.copytree(complete, tmp_path / "run"))
    content = bytearray((run / name).read_bytes())
    content[-2] ^= 1
    (run / name).write_bytes(content)
    assert f"{name} does not match checksums.json" in refused("recommend", run, "i1")


def test_a_run_that_was_copied_without_its_checksums_is_refused(
    trained: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    (run / "checksums.json").unlink()
    assert "copied in part" in refused("recommend", run, "i1")
