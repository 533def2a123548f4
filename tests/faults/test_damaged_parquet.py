"""Parquet files with damaged bytes are read, or refused in a line, by every command."""

import random
from pathlib import Path

import polars as pl
import pytest

from tests.helpers import command, frame, listed, small_shop, write_log

SEEDS = range(40)


def damage(path: Path, seed: int) -> None:
    """Changes a few bytes, and cuts every tenth file."""
    draw = random.Random(seed)
    content = bytearray(path.read_bytes())
    for _ in range(draw.choice([1, 1, 2, 5])):
        content[draw.randrange(len(content))] = draw.randrange(256)
    if draw.random() >= 0.9:
        del content[draw.randrange(1, len(content)) :]
    path.write_bytes(content)


TABLES = {
    "log": frame(small_shop()),
    "items": pl.DataFrame(
        {"id": [f"i{n}" for n in range(30)], "title": [f"T {n}" for n in range(30)]}
    ),
    "sessions": pl.DataFrame(
        {"session": [[f"i{n % 30}", f"i{n * 7 % 30}"] for n in range(200)]}
    ),
}


@pytest.mark.parametrize("table", TABLES)
def test_damaged_bytes(counted: Path, tmp_path: Path, table: str) -> None:
    file = tmp_path / "in.parquet"
    out = tmp_path / "out.parquet"
    log = write_log(tmp_path / "c.csv", small_shop())
    lines: dict[str, tuple[object, ...]] = {
        "log": ("prepare", file, "--out", out),
        "items": ("prepare", log, "--items", file, "--out", out),
        "sessions": ("score", counted, file, out),
    }
    codes = set()
    for seed in SEEDS:
        TABLES[table].write_parquet(file)
        damage(file, seed)
        before = listed(tmp_path)
        done = command(*lines[table], "--overwrite")
        codes.add(done.code)
        if done.code:
            assert f"error: {file}" in done.err
            assert listed(tmp_path) == before
    assert codes == {0, 2}


def varint(number: int) -> bytes:
    """As Thrift writes a number, twice as large because it has a sign."""
    number *= 2
    written = bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    return bytes([*written, number])


@pytest.mark.parametrize("rows", [91, 10**6, 2**60])
@pytest.mark.parametrize("declared_by", ["the file", "the last row group"])
def test_a_log_that_declares_more_rows_than_it_holds(
    tmp_path: Path, rows: int, declared_by: str
) -> None:
    """The number of rows is in the metadata at the end of the file, before eight bytes: their
    length and a mark."""
    log = tmp_path / "c.parquet"
    frame(small_shop()).write_parquet(log)
    content = log.read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    metadata = content[start:-8]
    old = varint(len(small_shop()))
    find = metadata.find if declared_by == "the file" else metadata.rfind
    before = metadata[: find(old)]
    after = metadata[find(old) + len(old) :]
    metadata = before + varint(rows) + after
    length = len(metadata).to_bytes(4, "little")
    log.write_bytes(content[:start] + metadata + length + b"PAR1")
    done = command("prepare", log, "--out", tmp_path / "shop")
    assert done.code == 2, done.err
    assert done.err.splitlines()[-1].startswith(f"error: {log}"), done.err
    assert listed(tmp_path) == ["c.parquet"]
