"""The files of a log: several, empty ones, folders that Spark writes, and URLs."""

import gzip
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import fsspec
import pytest

import posrec
from posrec.data.prepare.memory import estimate_clicks
from posrec.data.source.files import RemoteFile, find_files
from posrec.data.source.log import open_log
from posrec.data.source.readers.options import LogOptions
from posrec.errors import InputError
from posrec.progress import SilentProgress
from tests.data.reading import prepared
from tests.helpers import frame, in_parts, small_shop, write_lines, write_log

SHOP = small_shop(60)


def fingerprint(source: Any, out: Path, **options: Any) -> str:
    return prepared(source, out, **options).fingerprint


def write_spark(folder: Path) -> Path:
    """A folder as `frame.write.partitionBy("date").parquet(...)` leaves it."""
    for day, start in (("2026-01-01", 0), ("2026-01-02", 90)):
        below = folder / f"date={day}"
        below.mkdir(parents=True)
        for number in range(2):
            rows = SHOP[start + 45 * number : start + 45 * number + 45]
            name = f"part-0000{number}-5f3a.c000.snappy.parquet"
            frame(rows).write_parquet(below / name, compression="snappy")
            (below / f".{name}.crc").write_bytes(b"crc")
    (folder / "_SUCCESS").touch()
    (folder / "_temporary").mkdir()
    (folder / "_temporary" / "part-00009.parquet").write_bytes(b"of a failed task")
    return folder


def assert_fingerprints(
    sources: list[str], tmp_path: Path, expected: str, **options: Any
) -> None:
    """Read in memory and in parts, all of them give the same dataset."""
    for source in sources:
        assert fingerprint(source, tmp_path / "out", **options) == expected, source
        with in_parts():
            assert fingerprint(source, tmp_path / "out", **options) == expected, source


def test_a_folder_that_spark_wrote(tmp_path: Path) -> None:
    spark = write_spark(tmp_path / "clicks")
    expected = fingerprint(frame(SHOP), tmp_path / "table")
    patterns = ["", "/date=*/part-*.parquet", "/date=*/*"]
    sources = [f"{spark}{pattern}" for pattern in patterns]
    sources += [f"file://{spark}", f"file://{spark}/*/part-*.snappy.parquet"]
    assert_fingerprints(sources, tmp_path, expected)


def test_names_of_folders_are_columns(tmp_path: Path) -> None:
    for kind in ("view", "add%20to%20cart", "__HIVE_DEFAULT_PARTITION__"):
        (tmp_path / f"event={kind}").mkdir()
        frame(SHOP).write_parquet(tmp_path / f"event={kind}" / "part-0.parquet")
    data = posrec.prepare(tmp_path, out=tmp_path / "out", events=["add to cart"])
    assert data.manifest["log"]["events"] == {"add to cart": 180, "view": 180}
    assert data.fingerprint == fingerprint(frame(SHOP), tmp_path / "table")


def test_empty_parts_are_left_out_of_a_folder(tmp_path: Path) -> None:
    lines = ["session,item,time", *(f"{s},{i},{t}" for s, i, t in SHOP)]
    write_lines(tmp_path / "part-00000.csv", lines)
    (tmp_path / "part-00001.csv").touch()
    (tmp_path / "_SUCCESS").touch()
    for source in (tmp_path, f"{tmp_path}/*"):
        assert find_files(source) == [tmp_path / "part-00000.csv"]
    (tmp_path / "part-00000.csv").write_text("")
    with pytest.raises(InputError, match="has no data"):
        find_files(f"{tmp_path}/*")


@pytest.mark.parametrize("packed", [False, True])
def test_a_log_in_fsspecs_memory(tmp_path: Path, packed: bool) -> None:
    log = write_log(tmp_path / "a.csv", SHOP)
    content = log.read_bytes()
    files = fsspec.filesystem("memory")
    files.pipe("/shop/a.csv", gzip.compress(content) if packed else content)
    expected = fingerprint(log, tmp_path / "local")
    assert_fingerprints(["memory://shop/a.csv"], tmp_path, expected)
    assert posrec.load(tmp_path / "out").manifest["source"] == ["a.csv"]
    files.rm("/shop", recursive=True)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("file:///nowhere/a.csv", "does not exist"),
        ("memory://nothing/*.csv", "does not exist"),
        ("nosuch://a/b.csv", "can't be read: Protocol not known"),
    ],
)
def test_urls_that_are_refused(tmp_path: Path, url: str, reason: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"{url} {reason}")):
        fingerprint(url, tmp_path / "out")


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty bucket on a local S3 server."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto.server")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    endpoint = f"http://127.0.0.1:{port}"
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    code = f"from moto.server import main; main(['-p', '{port}'])"
    server = subprocess.Popen(
        [sys.executable, "-c", code], stderr=subprocess.DEVNULL, env=dict(os.environ)
    )
    try:
        for _ in range(300):
            try:
                urlopen(endpoint, timeout=1).close()
                break
            except OSError:
                time.sleep(0.2)
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("clicks")
        yield "s3://clicks"
    finally:
        server.kill()
        server.wait()


@pytest.mark.process
def test_s3(tmp_path: Path, s3: str) -> None:
    files = fsspec.filesystem("s3")
    spark = write_spark(tmp_path / "spark")
    log = write_log(tmp_path / "a.csv", SHOP)
    files.put(str(spark), f"{s3}/spark", recursive=True)
    files.put(str(log), f"{s3}/a.csv")
    expected = fingerprint(frame(SHOP), tmp_path / "table")
    sources = [f"{s3}/spark", f"{s3}/spark/date=*/part-*.parquet", f"{s3}/a.csv"]
    assert_fingerprints(sources, tmp_path, expected, time_unit="ms")
    with pytest.raises(InputError, match="does not exist"):
        fingerprint(f"{s3}/none.csv", tmp_path / "no")


def test_files_are_found_in_order(tmp_path: Path) -> None:
    for name in ("b", "a", "c[1]", "c1", "_d"):
        (tmp_path / name).write_text("x")
    hidden = tmp_path / "_d"
    assert find_files(hidden) == [hidden]
    assert find_files(f"file://{hidden}") == [RemoteFile(f"file://{hidden}")]
    assert find_files(tmp_path / "c[1]") == [tmp_path / "c[1]"]  # a name, not a pattern
    files = find_files([str(tmp_path / "[ab]"), tmp_path / "a"])
    assert [file.name for file in files] == ["a", "b", "a"]


def test_a_folder_of_other_files_and_a_pipe_are_refused(tmp_path: Path) -> None:
    write_log(tmp_path / "clicks.csv", SHOP)
    with pytest.raises(InputError, match="is a folder; name the files in it"):
        find_files(tmp_path)
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    for name in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(InputError, match="is empty; there is nothing to read"):
            find_files(name)
    assert find_files(f"{tmp_path}/*") == [tmp_path / "clicks.csv"]


def test_a_first_day_without_clicks(tmp_path: Path) -> None:
    (tmp_path / "day-1.csv.gz").write_bytes(gzip.compress(b""))
    log = write_log(tmp_path / "day.csv", small_shop())
    (tmp_path / "day-2.csv.gz").write_bytes(gzip.compress(log.read_bytes()))
    assert prepared(str(tmp_path / "*.csv.gz"), tmp_path / "out").train.clicks == 81


def test_blank_lines_above_the_header(tmp_path: Path) -> None:
    log = write_log(tmp_path / "clicks.csv", small_shop())
    log.write_text("\n \n" + log.read_text())
    assert prepared(log, tmp_path / "out").train.clicks == 81
    lines = ["", "session,item,time,item", "a,b,1,c"]
    broken = write_lines(tmp_path / "broken.csv", lines)
    with pytest.raises(InputError, match=r"line 2: the column 'item' appears twice"):
        prepared(broken, tmp_path / "no")


@pytest.mark.parametrize("folder", ["_exports", ".logs"])
def test_a_folder_that_is_named_is_not_hidden(tmp_path: Path, folder: str) -> None:
    below = tmp_path / folder
    below.mkdir()
    write_log(below / "clicks.csv", small_shop())
    write_lines(below / "_SUCCESS.csv", ["nothing"])
    assert prepared(f"{below}/*.csv", tmp_path / "out").train.clicks == 81


def test_a_first_part_without_rows_does_not_make_the_log_small(tmp_path: Path) -> None:
    """Spark often writes one; the estimate decides whether the log is read into memory."""
    clicks = frame(small_shop(3000))
    clicks.clear().write_parquet(tmp_path / "part-00000.parquet")
    clicks.write_parquet(tmp_path / "part-00001.parquet")
    parts = str(tmp_path / "*.parquet")
    with open_log(parts, None, LogOptions(), SilentProgress()) as log:
        assert 9000 <= estimate_clicks(log) < 12_000
