"""Parquet files with damaged bytes: read, or refused in a line, by every command that reads them."""

import random
from pathlib import Path

import polars as pl
import pytest

from tests.helpers import command, frame, listed, small_shop, write_log

SEEDS = range(40)


def damaged(path: Path, seed: int) -> None:
    draw = random.Random(seed)
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 1, 2, 5])):
        content[draw.randrange(len(content))] = draw.randrange(256)
    path.write_bytes(
        content if draw.random() < 0.9 else content[: draw.randrange(1, len(content))]
    )


TABLES = {
    "log": frame(small_shop()),
    "items": pl.DataFrame(
        {"id": [f"i{n}" for n in range(30)], "title": [f"T {n}" for n in range(30)]}
    ),
    "sessions": pl.DataFrame(
        {"session": [[f"i{n % 30}", f"i{n * 7 % 30}"] for n in range(200)]}
    ),
}


@pytest.mark.parametrize("what", TABLES)
def test_damaged_bytes(counted: Path, tmp_path: Path, what: str) -> None:
    file = tmp_path / "in.parquet"
    out = tmp_path / "out.parquet"
    lines: dict[str, tuple[object, ...]] = {
        "log": ("prepare", file, "--out", out, "--overwrite"),
        "items": (
            "prepare",
            write_log(tmp_path / "c.csv", small_shop()),
            "--items",
            file,
            "--out",
            out,
            "--overwrite",
        ),
        "sessions": ("score", counted, file, out, "--overwrite"),
    }
    codes = set()
    for seed in SEEDS:
        TABLES[what].write_parquet(file)
        damaged(file, seed)
        before = listed(tmp_path)
        done = command(*lines[what])
        codes.add(done.code)
        if done.code:
            assert f"error: {file}" in done.err
            assert listed(tmp_path) == before
    assert codes == {0, 2}


def varint(number: int) -> bytes:
    """As Thrift writes a number, twice as large because it has a sign."""
    number = 2 * number
    written = b""
    while number > 127:
        written = written + bytes([number & 127 | 128])
        number = number >> 7
    return written + bytes([number])


@pytest.mark.parametrize("rows", [91, 10**6, 2**60])
@pytest.mark.parametrize("place", ["the file's", "the last row group's"])
def test_a_log_that_declares_more_rows_than_it_holds(
    tmp_path: Path, rows: int, place: str
) -> None:
    """The number of rows is in the metadata at the end of the file, before eight bytes: their
    length and a mark."""
    log = tmp_path / "c.parquet"
    pl.DataFrame(
        small_shop(), schema=["session_id", "item_id", "timestamp"], orient="row"
    ).write_parquet(log)
    content = log.read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    about = content[start:-8]
    old = varint(len(small_shop()))
    at = about.find(old) if place == "the file's" else about.rfind(old)
    about = about[:at] + varint(rows) + about[at + len(old) :]
    log.write_bytes(
        content[:start] + about + len(about).to_bytes(4, "little") + b"PAR1"
    )
    done = command("prepare", log, "--out", tmp_path / "shop")
    assert done.code == 2, done.err
    assert done.err.splitlines()[-1].startswith(f"error: {log}"), done.err
    assert listed(tmp_path) == ["c.parquet"]
