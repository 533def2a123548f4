"""Small files that ask for gigabytes are refused, in a line, before the memory or the time is
spent."""

import gzip
import json
import pickle
import shutil
from pathlib import Path

import polars as pl
import pytest

from posrec.data.source.readers.sessions import read_pickle
from tests.faults.forked import forked
from tests.helpers import packed, small_shop, update_checksums, write_log

# The command, and then the most memory that it had, in MiB.
MEASURED = """
import resource
from posrec.cli import main
try:
    main()
finally:
    print("MiB", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
MOST = 1200  # MiB; Python, torch and polars take 400 of them


def refused(*arguments: object, keyword: str, most: int = MOST) -> None:
    done = forked(*arguments, code=MEASURED)
    assert done.returncode == 2, done.stderr[-2000:]
    assert keyword in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert int(done.stdout.split("MiB")[1]) < most


@pytest.fixture(scope="module")
def lines_bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4 GiB of good lines in half a megabyte."""
    bomb = tmp_path_factory.mktemp("bomb") / "a.csv.zst"
    line = b"s1," + b"i" * 1000 + b",1700000000000\n"
    frame = packed(line * (8 << 20 >> 10))
    bomb.write_bytes(packed(b"session_id,item_id,timestamp\n") + frame * 500)
    assert bomb.stat().st_size < 600_000
    return bomb


@pytest.mark.process
def test_many_short_lines(tmp_path: Path) -> None:
    """70 million clicks would have a gigabyte."""
    bomb = tmp_path / "a.csv.gz"
    short = gzip.compress(b"1,1,1\n" * (1 << 20))
    bomb.write_bytes(gzip.compress(b"session_id,item_id,timestamp\n") + short * 67)
    out = tmp_path / "out"
    refused("prepare", bomb, "--format", "csv", "--out", out, keyword="lines", most=800)


@pytest.mark.process
def test_many_equal_rows_of_a_parquet_file(tmp_path: Path) -> None:
    bomb = tmp_path / "a.parquet"
    rows = pl.DataFrame({"session_id": [1], "item_id": [1], "timestamp": [1]})
    rows.select(pl.all().repeat_by(20 << 20).explode()).write_parquet(bomb)
    assert bomb.stat().st_size < 500_000
    refused("prepare", bomb, "--out", tmp_path / "out", keyword="rows in", most=800)


@pytest.fixture(scope="module")
def line_bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A line of 2 GiB in 2 MB."""
    bomb = tmp_path_factory.mktemp("bomb") / "a.jsonl.gz"
    bomb.write_bytes(
        gzip.compress(b"[1]\n[2]\n") + gzip.compress(b"x" * (8 << 20)) * 256
    )
    return bomb


@pytest.mark.process
@pytest.mark.parametrize(
    "line",
    ["prepare BOMB --format csv --out OUT", "prepare LOG --items BOMB --out OUT"],
)
def test_repeated_lines(lines_bomb: Path, tmp_path: Path, line: str) -> None:
    log = write_log(tmp_path / "c.csv", small_shop())
    paths = {"BOMB": lines_bomb, "LOG": log, "OUT": tmp_path / "out"}
    words = [paths.get(word, word) for word in line.split()]
    refused(*words, keyword="250 times")


@pytest.mark.process
@pytest.mark.parametrize("format", ["csv", "sessions", "otto", None])
def test_a_line_without_an_end(
    line_bomb: Path, trained: Path, tmp_path: Path, format: str | None
) -> None:
    keyword = "a.jsonl.gz, line 3: "
    if format is None:  # sessions to score
        out = tmp_path / "out.jsonl"
        refused("score", trained, line_bomb, out, keyword=keyword)
    else:
        out = tmp_path / "out"
        line = ("prepare", line_bomb, "--format", format, "--out", out)
        refused(*line, keyword=keyword)


# A list stored at index 2**30, and one session of many clicks that is listed many times.
STORED = b"]r\x00\x00\x00\x40."
SHARED = b"](](" + b"K\x01" * 100_000 + b"eq\x01" + b"h\x01" * 100_000 + b"e."
PICKLES = {
    "a far index": (STORED, "1073741824"),
    "a far index, as text": (b"(lp999999999\n.", "999999999"),
    "a far text": (b"\x80\x04\x8d\xff\xff\xff\xff\x0f\0\0\0x.", "plain lists"),
    "one session many times": (SHARED, "repeats"),
    "many times in a pair": (b"(" + SHARED[:-1] + b"]t.", "repeats"),
}


@pytest.mark.process
@pytest.mark.parametrize(("content", "keyword"), PICKLES.values(), ids=PICKLES)
def test_pickles(tmp_path: Path, content: bytes, keyword: str) -> None:
    (tmp_path / "a").write_bytes(content)
    line = ("prepare", tmp_path / "a", "--format", "srgnn", "--out", tmp_path / "out")
    refused(*line, keyword=keyword)


@pytest.mark.parametrize("sessions", [300, 5000, 70_000])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles_of_many_sessions_are_still_read(
    tmp_path: Path, sessions: int, protocol: int
) -> None:
    """Their indices grow with the number of sessions."""
    content = [[number, 70_000 + number, 1 << 40] for number in range(sessions)]
    (tmp_path / "a").write_bytes(pickle.dumps(content, protocol))
    assert read_pickle(tmp_path / "a") == content


@pytest.mark.process
@pytest.mark.parametrize(
    "change", [{"items": 20_000_000}, {"d": 10_000_000}, {"items": 30, "d": 2**40}]
)
def test_a_config_that_asks_for_a_huge_model(
    trained: Path, tmp_path: Path, change: dict[str, int]
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, **change}))
    update_checksums(run)
    refused("recommend", run, "i1", keyword=str(run))


@pytest.mark.process
def test_an_array_whose_header_announces_more_than_the_file_holds(
    trained: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    content = (run / "popularity.npy").read_bytes()
    (run / "popularity.npy").write_bytes(
        content.replace(b"(30,), }        ", b"(30000000000,), }", 1)[: len(content)]
    )
    update_checksums(run)
    refused("recommend", run, "i1", keyword="popularity.npy")
