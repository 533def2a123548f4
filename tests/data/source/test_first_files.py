"""Logs whose first file or first line holds nothing, and folders with unusual names."""

import gzip
from pathlib import Path

import polars as pl
import pytest

import posrec
from posrec.data.prepare.memory import estimate_clicks
from posrec.data.source.log import open_log
from posrec.progress import SilentProgress
from tests.helpers import small_shop, write_lines, write_log


def prepared(source: str | Path, folder: Path) -> posrec.PreparedDataset:
    return posrec.prepare(source, out=folder / "out", progress=SilentProgress())


def test_a_first_day_without_clicks(tmp_path: Path) -> None:
    (tmp_path / "day-1.csv.gz").write_bytes(gzip.compress(b""))
    log = write_log(tmp_path / "day.csv", small_shop())
    (tmp_path / "day-2.csv.gz").write_bytes(gzip.compress(log.read_bytes()))
    assert prepared(str(tmp_path / "*.csv.gz"), tmp_path).train.clicks == 81


def test_blank_lines_above_the_header(tmp_path: Path) -> None:
    log = write_log(tmp_path / "clicks.csv", small_shop())
    log.write_text("\n \n" + log.read_text())
    assert prepared(log, tmp_path).train.clicks == 81
    broken = write_lines(tmp_path / "broken.csv", ["", "session,item,time,item", "a,b,1,c"])
    with pytest.raises(posrec.InputError, match=r"line 2: the column 'item' appears twice"):
        prepared(broken, tmp_path / "broken")


@pytest.mark.parametrize("folder", ["_exports", ".logs"])
def test_a_folder_that_is_named_is_not_hidden(tmp_path: Path, folder: str) -> None:
    below = tmp_path / folder
    below.mkdir()
    write_log(below / "clicks.csv", small_shop())
    write_lines(below / "_SUCCESS.csv", ["nothing"])
    assert prepared(f"{below}/*.csv", tmp_path).train.clicks == 81


def test_a_first_part_without_rows_does_not_make_the_log_small(tmp_path: Path) -> None:
    """Spark often writes one; the estimate decides whether the log is read into memory."""
    clicks = pl.DataFrame(small_shop(3000), schema=["session", "item", "time"], orient="row")
    clicks.clear().write_parquet(tmp_path / "part-00000.parquet")
    clicks.write_parquet(tmp_path / "part-00001.parquet")
    with open_log(str(tmp_path / "*.parquet"), None, {}, SilentProgress()) as log:
        assert 9000 <= estimate_clicks(log) < 12_000
