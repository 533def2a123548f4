"""The format of a log, concluded from its ending and its first lines."""

import gzip
import pickle
from pathlib import Path

import polars as pl
import pytest

import posrec
from posrec.data.source.readers import READERS
from posrec.data.source.sniff import detect_format
from posrec.errors import InputError
from tests.faults.refusals import EVENTS, GOOD, HEADER, JSONL, OTTO, VIEWS, YOOCHOOSE
from tests.helpers import write_lines

LOGS = {
    "yoochoose": ("clicks.dat", YOOCHOOSE),
    "diginetica": ("train-item-views.csv", VIEWS),
    "retailrocket": ("events.csv", EVENTS),
    "otto": ("train.jsonl", OTTO),
    "recbole": ("a.inter", ["item_id:token\ttimestamp:float", "1\t2"]),
    "recbole-prefixes": (
        "a.inter",
        ["item_id_list:token_seq\titem_id:token", "1 2\t3"],
    ),
    "jsonl": ("export.jsonl", JSONL),
    "csv": ("clicks.csv", [HEADER, *GOOD]),
    "tsv": ("clicks.tsv", [line.replace(",", "\t") for line in [HEADER, *GOOD]]),
    "sessions": ("train.txt", ["1 2 3", "4", "sku-5 1"]),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("format", LOGS)
def test_text_formats(tmp_path: Path, format: str, packed: bool) -> None:
    name, lines = LOGS[format]
    log = write_lines(tmp_path / name, ["", *lines])  # a blank line changes nothing
    if packed:
        log.write_bytes(gzip.compress(b"\xef\xbb\xbf" + log.read_bytes()))
    assert detect_format(log).format == format
    other = log.rename(tmp_path / "log")  # the content is enough
    assert detect_format(other).format == format


def test_other_formats_and_that_every_format_is_covered(tmp_path: Path) -> None:
    pl.DataFrame({"session": [1]}).write_parquet(tmp_path / "a")
    assert detect_format(tmp_path / "a").format == "parquet"
    (tmp_path / "b").write_bytes(pickle.dumps([[1, 2], [3, 4]]))
    assert detect_format(tmp_path / "b").format == "srgnn"
    assert {*LOGS, "parquet", "srgnn"} == set(READERS)


@pytest.mark.parametrize("delimiter", [",", ";", "|", " "])
def test_the_delimiter_is_concluded_too(tmp_path: Path, delimiter: str) -> None:
    lines = [line.replace(",", delimiter) for line in [HEADER, *GOOD]]
    log = write_lines(tmp_path / "a.txt", lines)
    conclusion = detect_format(log)
    assert (conclusion.format, conclusion.delimiter) == ("csv", delimiter)
    # The test part is read in the same way.
    split = posrec.prepare(log, out=tmp_path / "split", test=log)
    assert (split.train.clicks, split.test.clicks) == (90, 90)


def test_a_delimiter_inside_quotes_does_not_count(tmp_path: Path) -> None:
    lines = ["session;item;time", *('1;"a,b,c,d";3' for _ in range(5))]
    assert detect_format(write_lines(tmp_path / "a.csv", lines)).delimiter == ";"


def test_a_broken_line_among_the_first_does_not_matter(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "a.csv", [HEADER, "x,y,z,w,v", *GOOD])
    assert detect_format(log).format == "csv"
    log = write_lines(tmp_path / "a.jsonl", ['{"session_id": ', *JSONL])
    assert detect_format(log).format == "jsonl"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"session": 1}]\n', "is one JSON array"),
        (b"{session: 1}\n", "its first lines are not JSON"),
        (b"1,2,3\n4,5,6\n", "'1,2,3', is neither a header"),
        (b"\x00\xff\xfe\x01" * 100, "is neither a header"),
        (b"\n \n", "is empty"),
    ],
)
def test_what_can_not_be_concluded_is_said(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(InputError, match=message):
        detect_format(tmp_path / "a")


def test_a_delimiter_that_was_given_is_used(tmp_path: Path) -> None:
    clicks = [f"s{n // 3};i{n % 4};x;{n}" for n in range(90)]
    log = write_lines(tmp_path / "a.csv", ["session;item,time;more;time", *clicks])
    out = tmp_path / "a"
    data = posrec.prepare(log, out=out, delimiter=";", item_column="item,time")
    assert data.manifest["counts"]["clicks"] == 90
