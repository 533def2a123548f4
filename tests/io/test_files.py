"""Files and folders appear whole or not at all; a write that fails keeps what was there."""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from posrec.errors import InputError
from posrec.io import (
    FolderReader,
    load_tensors,
    read_json,
    save_tensors,
    whole_file,
    whole_folder,
    write_array,
    write_checksums,
    write_json,
    write_text,
)
from tests.helpers import ROOT, command, listed, own_process, small_shop, write_log


def test_a_folder_appears_when_it_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with whole_folder(out) as unfinished:
        (unfinished / "a").write_text("x")
        assert not out.exists()
        assert unfinished.parent == out.parent
    assert (listed(out.parent), listed(out)) == (["out"], ["a"])
    assert out.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, OSError])
def test_a_failure_leaves_nothing_and_what_was_there_before(
    tmp_path: Path, error: type[BaseException]
) -> None:
    manifest = tmp_path / "old" / "manifest.json"
    manifest.parent.mkdir()
    write_json(manifest, {"schema": 1})
    write_checksums(manifest.parent, [manifest.name])

    def fail(name: str) -> None:
        with whole_folder(tmp_path / name, True) as unfinished:
            (unfinished / "manifest.json").write_text("new")
            raise error

    for name in ("new", "old"):
        with pytest.raises(error):
            fail(name)
    assert listed(tmp_path) == ["old"]
    assert read_json(manifest) == {"schema": 1}


def test_what_a_command_has_written_survives_a_loss_of_power(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file and folder was flushed to the disk after its last change."""
    flushed: dict[int, int] = {}  # when it was changed last, by its number
    really = os.fsync

    def fsync(handle: int) -> None:
        really(handle)
        state = os.fstat(handle)
        flushed[state.st_ino] = state.st_mtime_ns

    monkeypatch.setattr(os, "fsync", fsync)
    log = write_log(tmp_path / "log.csv", small_shop())
    out = tmp_path / "out"
    sessions = tmp_path / "sessions.jsonl"
    sessions.write_text('["i1", "i2"]\n')
    options = "--model posrec --set d=8 --epochs 1 --device cpu --no-export"
    for line in (
        ("prepare", log, "--out", out / "shop"),
        ("train", out / "shop", "--out", out / "run", *options.split()),
        ("score", out / "run", sessions, out / "answers.jsonl", "--device", "cpu"),
    ):
        done = command(*line)
        assert done.code == 0, done.err
    changed = {path.name: path.stat() for path in [out, *out.rglob("*")]}
    assert len(changed) > 15
    for name, state in changed.items():
        assert flushed.get(state.st_ino) == state.st_mtime_ns, name


def test_leftovers_of_killed_runs_are_removed(tmp_path: Path) -> None:
    leftovers = (".o[u]t.unfinished-0123abcd", ".last.unfinished-89abcdef")
    others = (".out.unfinished-notes", "out.unfinished-0123abcd", ".hidden")
    for name in (*leftovers, *others):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").touch()
    (tmp_path / ".a.json.unfinished-0123abcd").touch()
    with whole_folder(tmp_path / "o[u]t"):
        pass
    assert listed(tmp_path) == sorted([*others, "o[u]t"])


def test_a_pipe_or_a_device_is_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "out")
    with pytest.raises(InputError, match="name a file"):
        write_text(tmp_path / "out", "text")
    assert (tmp_path / "out").is_fifo()


def test_a_dangling_link_counts_as_existing(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="exists already"):
        whole_folder(tmp_path / "out").__enter__()


def test_json_comes_back_and_a_failed_write_keeps_the_old(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"é": [1, None]})
    assert read_json(path) == json.loads(path.read_text()) == {"é": [1, None]}
    assert "é" in path.read_text(encoding="utf-8")
    write_text(path, "{")
    assert listed(tmp_path) == ["a.json"]
    with pytest.raises(InputError, match=r"a\.json is not JSON"):
        read_json(path)
    with pytest.raises(InputError, match=r"b\.json is missing"):
        read_json(tmp_path / "b.json")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert (listed(tmp_path), path.read_text()) == (["a.json"], "{")


@pytest.mark.parametrize(
    "array",
    [np.arange(5, dtype=np.int32), np.arange(10)[::2], np.empty(0), np.ones((2, 3))],
)
def test_arrays_are_written_as_numpy_does_and_read_back(
    tmp_path: Path, array: np.ndarray
) -> None:
    write_array(tmp_path / "a.npy", array)
    np.save(tmp_path / "b.npy", np.ascontiguousarray(array))
    assert (tmp_path / "a.npy").read_bytes() == (tmp_path / "b.npy").read_bytes()
    write_checksums(tmp_path, ["a.npy"])
    read = FolderReader(tmp_path).array("a.npy")
    assert (read.dtype, read.tolist()) == (array.dtype, array.tolist())
    assert read.flags.writeable


WRITERS: dict[str, Callable[[Path, int], None]] = {
    "text.json": lambda path, size: write_text(path, "x" * size),
    "array.npy": lambda path, size: write_array(path, np.zeros(size, np.uint8)),
    "tensors.safetensors": lambda path, size: save_tensors(
        path, {"a": torch.zeros(size, dtype=torch.uint8)}, {"n": 1}
    ),
}


TOO_LARGE = """
import resource, sys
from pathlib import Path
from tests.io.test_files import WRITERS
for name, write in WRITERS.items():
    path = Path(sys.argv[1]) / name
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    write(path, 2000)
    before = path.read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, -1))
    try:
        write(path, 100_000)
    except OSError as error:
        print(error.strerror, error.filename == str(path), path.read_bytes() == before)
"""


@pytest.mark.process
def test_a_write_that_fails_keeps_the_old_file_and_names_it(tmp_path: Path) -> None:
    """A limit on the size of files, which only a separate process can have, is the full disk."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{TOO_LARGE}"
    done = own_process(tmp_path, code=code)
    assert done.stdout == "File too large True True\n" * len(WRITERS), done.stderr
    assert listed(tmp_path) == sorted(WRITERS)


def test_tensors_come_back_with_what_is_said_about_them(tmp_path: Path) -> None:
    weights = {"a": torch.arange(6.0).reshape(2, 3).T, "b": torch.tensor(3)}
    path = tmp_path / "w.safetensors"
    save_tensors(path, weights, {"epoch": 2})
    tensors, about = load_tensors(path)
    assert (tensors["b"].item(), about) == (3, {"epoch": 2})
    assert tensors["a"].tolist() == weights["a"].tolist()
    path.write_bytes(b"{}")
    with pytest.raises(InputError, match=r"w\.safetensors can't be read"):
        load_tensors(path)


def test_of_two_writers_of_a_file_one_gets_the_name(tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"

    def write_meanwhile() -> None:
        with whole_file(path) as second:
            second.write_text("second")
            with whole_file(path) as first:
                first.write_text("first")

    with pytest.raises(InputError, match="exists already"):
        write_meanwhile()
    assert (path.read_text(), listed(tmp_path)) == ("first", ["a.onnx"])


def test_the_unfinished_file_of_a_living_writer_stays(tmp_path: Path) -> None:
    with whole_file(tmp_path / "b.json") as unfinished:
        write_text(tmp_path / "a.json", "{}")
        assert unfinished.exists()
        assert list(tmp_path.glob("*.json")) == [tmp_path / "a.json"]


def test_many_writers_of_one_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Each may take another's file for a leftover, before that is locked; none may fail by it."""
    failures: list[BaseException] = []

    def write(text: str) -> None:
        try:
            for _ in range(30):
                write_text(tmp_path / "a.json", text)
        except BaseException as error:
            failures.append(error)

    texts = [letter * 100 for letter in "abcd"]
    writers = [threading.Thread(target=write, args=(text,)) for text in texts]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert failures == []
    assert listed(tmp_path) == ["a.json"]
    assert (tmp_path / "a.json").read_text() in texts
