"""Options that make no sense, and folders that are in the way or no dataset: refused as bad input is."""

from pathlib import Path

import pytest

from tests.faults.refusals import GOOD, HEADER, changed, refused
from tests.helpers import command, own_process, small_shop, write_lines, write_log


def test_an_output_folder_that_exists(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", small_shop())
    (tmp_path / "out").mkdir()
    refused(tmp_path, log, "--format", "csv", says=["out exists already; name another folder, remove it"])
    refused(tmp_path, log, "--format", "csv", "--overwrite", says=["out exists and is not a prepared dataset"])
    refused(
        tmp_path,
        log,
        "--format",
        "csv",
        "--overwrite",
        says=["a.csv exists and is not a prepared dataset"],
        out="a.csv",
    )


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--fraction", "x"], ["--fraction 'x' is no fraction; write e.g. 1/64"]),
        (["--fraction", "1/0"], ["--fraction '1/0' is no fraction"]),
        (["--fraction", "0"], ["--fraction 0 makes no sense"]),
        (["--fraction", "3/2"], ["--fraction 3/2 makes no sense"]),
        (["--gap", "30"], ["--gap '30' is no span of time; write e.g. 30m"]),
        (["--gap", "999999999999d"], ["--gap"]),
        (["--test-days", "0"], ["--test-days 0.0 makes no sense"]),
        (["--test-days", "inf"], ["--test-days inf makes no sense"]),
        (["--test-days", "nan"], ["--test-days nan makes no sense"]),
        (["--test-share", "1"], ["--test-share 1.0 makes no sense"]),
        (["--min-support", "0"], ["--min-support 0 makes no sense"]),
        (["--min-length", "1"], ["--min-length 1 makes no sense"]),
        (["--max-length", "1"], ["--max-length 1 makes no sense"]),
        (["--recipe", "magic"], ["recipe 'magic' is not known; choose one of paper, clean"]),
        (["--recipe", "paper", "--drop-repeats"], ["belong to --recipe clean"]),
        (["--recipe", "paper", "--test-share", "0.3"], ["belong to --recipe clean"]),
        (["--time-unit", "min"], ["time unit 'min' is not known; choose one of s, ms, us, ns"]),
        (["--event-column", "item_id"], ["say which to read with --events"]),
        (["--test", "LOG", "--min-support", "3"], ["--test gives a split that is kept as it is"]),
        (["--test", "LOG", "--recipe", "paper"], ["--test gives a split that is kept as it is"]),
    ],
)
def test_options_that_make_no_sense(tmp_path: Path, options: list[str], says: list[str]) -> None:
    log = write_log(tmp_path / "a.csv", small_shop())
    given = [str(log) if option == "LOG" else option for option in options]
    refused(tmp_path, log, "--format", "csv", *given, says=says)


def test_formats(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", small_shop())
    refused(tmp_path, log, "--format", "xml", says=["format 'xml' is not known; choose one of yoochoose, diginetica"])
    refused(
        tmp_path,
        log,
        "--format",
        "yoochoose",
        "--delimiter",
        ";",
        says=["--delimiter can't be used with --format yoochoose"],
    )
    refused(tmp_path, log, "--format", "otto", "--session-column", "x", says=["--session-column can't be used"])
    users = write_log(tmp_path / "b.csv", small_shop(), "user,item,time")
    refused(tmp_path, users, "--format", "csv", "--test", users, says=["b.csv is a log of users"])


def test_typos_in_options_are_two_as_well(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", small_shop())
    for arguments in (
        ["--out", tmp_path / "o"],
        ["--format", "csv"],
        ["--format", "csv", "--out", tmp_path / "o", "--gpa", "3m"],
    ):
        done = command("prepare", log, *arguments)
        assert (done.code, "Traceback" in done.err) == (2, False)
    assert not (tmp_path / "o").exists()


def test_stats_of_what_is_no_dataset(tmp_path: Path) -> None:
    done = command("stats", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "is not a prepared dataset (it has no manifest.json); make one with posrec prepare" in done.err
    log = write_log(tmp_path / "a.csv", small_shop())
    assert command("prepare", log, "--format", "csv", "--out", tmp_path / "out").code == 0
    items = tmp_path / "out" / "test_items.npy"
    content = bytearray(items.read_bytes())
    content[-4] ^= 1
    items.write_bytes(content)
    done = command("stats", tmp_path / "out")
    assert (done.code, "was changed after it was prepared" in done.err) == (2, True)
    items.unlink()
    done = command("stats", tmp_path / "out", "--json")
    assert (done.code, "test_items.npy can't be read" in done.err) == (2, True)


def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "a.csv", changed([HEADER, *GOOD], 40, "s1,i1,yesterday"))
    done = own_process("prepare", log, "--format", "csv", "--out", tmp_path / "out", "--time-unit", "ms")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"error: {log}, line 40: 'yesterday' in column 'timestamp' is no time; "
        "write ISO 8601 (2026-01-31T12:00:00Z) or a number of seconds or milliseconds"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
