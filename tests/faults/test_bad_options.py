"""Options outside their range, and folders that are in the way or are not datasets, are refused as bad input."""

from pathlib import Path

import pytest

from tests.faults.refusals import refused
from tests.helpers import small_shop, write_log


def test_an_output_folder_that_exists(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", small_shop())
    (tmp_path / "out").mkdir()
    refused(log, "--format csv", "out exists already; name another folder, remove it")
    refused(log, "--format csv --overwrite", "out exists and is not a prepared dataset")
    refused(log, "--format csv --overwrite", "a.csv exists and is not a prepared dataset", out="a.csv")
    refused(log, "--format csv", "can't be made", out="a.csv/below/a/file")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--fraction x", "--fraction 'x' is not a fraction; write e.g. 1/64"),
        ("--fraction 1/0", "--fraction '1/0' is not a fraction"),
        ("--fraction 0", "--fraction must be above 0 and at most 1, not 0"),
        ("--fraction 3/2", "--fraction must be above 0 and at most 1, not 3/2"),
        ("--gap 30", "--gap '30' is not a duration; write e.g. 30m"),
        ("--gap 999999999999d", "--gap must be above 0 and at most 86400000000000, not 8"),
        ("--test-days 0", "--test-days must be above 0 and at most 1000000, not 0.0"),
        ("--test-days inf", "--test-days must be above 0 and at most 1000000, not inf"),
        ("--test-days nan", "--test-days must be above 0 and at most 1000000, not nan"),
        ("--test-share 1", "--test-share must be above 0 and below 1, not 1.0"),
        ("--min-support 0", "--min-support must be at least 1, not 0"),
        ("--min-length 1", "--min-length must be at least 2, not 1"),
        ("--max-length 1", "--max-length must be at least 2, not 1"),
        ("--recipe magic", "recipe 'magic' is not known; choose one of paper, clean"),
        ("--recipe paper --drop-repeats", "--drop-repeats is an option of --recipe clean"),
        ("--recipe paper --drop-duplicates", "--drop-duplicates is an option of --recipe clean"),
        ("--recipe paper --test-share 0.3", "--test-share is an option of --recipe clean"),
        ("--max-session-clicks 1", "--max-session-clicks must be at least 2, not 1"),
        ("--time-unit min", "time unit 'min' is not known; choose one of s, ms, us, ns"),
        ("--event-column item_id", "'item_id' can't be both the item and the event"),
        ("--event-column kind", "no column 'kind' (--event-column)"),
        ("--event-weights view", "--event-weights 'view' is not kind=weight; write e.g. view=1,cart=3"),
        ("--event-weights view=much", "--event-weights 'view=much' is not kind=weight"),
        ("--event-weights view=0", "the weight of 'view' must be more than 0 and at most 1,000, not 0"),
        ("--event-weights view=nan", "the weight of 'view' must be more than 0 and at most 1,000, not nan"),
        ("--event-weights view=2", "no column that looks like the event"),
        ("--target-events buy --events view", "--target-events names 'buy', which --events does not read"),
        ("--user-column session_id --session-column x", "has no column 'x' (--session-column)"),
        ("--time-format dd.mm.yyyy", "--time-format 'dd.mm.yyyy' does not describe a date and time; write e.g."),
        ("--time-format %H:%M", "--time-format '%H:%M' does not describe a date and time"),
        ("--time-format %Y --time-unit s", "pass one of them"),
        ("--bad-lines keep", "--bad-lines must be one of stop, skip, not 'keep'"),
        ("--bad-lines-limit 2", "--bad-lines-limit must be between 0 and 1, not 2.0"),
        ("--no-test --test-days 3", "--no-test leaves no test part"),
        ("--no-test --test LOG", "--test names an existing split, which is kept as it is"),
        ("--test LOG --min-support 3", "--test names an existing split, which is kept as it is"),
        ("--test LOG --recipe paper", "--test names an existing split, which is kept as it is"),
    ],
)
def test_options_outside_their_range(tmp_path: Path, options: str, says: str) -> None:
    log = write_log(tmp_path / "a.csv", small_shop())
    refused(log, "--format csv " + options.replace("LOG", str(log)), says)


def test_unknown_formats_and_options_that_a_format_ignores(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", small_shop())
    refused(log, "--format xml", "format 'xml' is not known; choose one of yoochoose, diginetica")
    refused(log, "--format yoochoose --delimiter ';'", "--delimiter can't be used with --format yoochoose")
    refused(log, "--format otto --session-column x", "--session-column can't be used")
    users = write_log(tmp_path / "b.csv", small_shop(), "user,item,time")
    refused(users, f"--format csv --test {users}", "b.csv is a log of users")
