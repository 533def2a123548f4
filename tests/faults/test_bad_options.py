"""Options outside their range, and folders that are in the way or are not datasets, are refused as
bad input."""

from pathlib import Path

import pytest

from tests.faults.refusals import refused
from tests.helpers import command, refused as refused_command, small_shop, write_log


def test_an_output_folder_that_exists(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", small_shop())
    (tmp_path / "out").mkdir()
    refused(log, "--format csv", "out exists already")
    refused(log, "--format csv --overwrite", "is not a prepared dataset")
    refused(log, "--format csv --overwrite", "is not a prepared dataset", out="a.csv")
    refused(log, "--format csv", "can't be made", out="a.csv/below/a/file")


def test_only_a_folder_that_posrec_alone_has_written_is_replaced(
    tmp_path: Path,
) -> None:
    log = write_log(tmp_path / "a.csv", small_shop())
    project = tmp_path / "out"
    (project / ".git").mkdir(parents=True)
    (project / "manifest.json").write_text('{"name": "Shop", "icons": []}')
    refused(log, "--format csv --overwrite", "is not a prepared dataset")
    shop = tmp_path / "shop"
    line = ("prepare", log, "--format", "csv", "--out", shop, "--overwrite")
    assert command(*line).code == 0
    assert command(*line).code == 0
    for foreign in (shop / "notes.txt", shop / "figures"):
        foreign.mkdir() if not foreign.suffix else foreign.write_text("mine")
        assert f"holds {foreign.name}" in refused_command(*line)
        foreign.rename(tmp_path / foreign.name)
    assert (project / ".git").is_dir()


@pytest.mark.parametrize(
    ("options", "keyword"),
    [
        ("--fraction x", "fraction"),
        ("--fraction 1/0", "fraction"),
        ("--fraction 3/2", "at most 1"),
        ("--gap 30", "duration"),
        ("--gap 999999999999d", "at most 86400000000000"),
        ("--test-days 0", "above 0"),
        ("--test-days inf", "at most 1000000"),
        ("--test-days nan", "at most 1000000"),
        ("--test-share 1", "below 1"),
        ("--min-support 0", "at least 1"),
        ("--min-length 1", "at least 2"),
        ("--max-length 1", "at least 2"),
        ("--recipe magic", "'magic'"),
        ("--recipe paper --drop-repeats", "--recipe clean"),
        ("--recipe paper --drop-duplicates", "--recipe clean"),
        ("--recipe paper --test-share 0.3", "--recipe clean"),
        ("--max-session-clicks 1", "at least 2"),
        ("--time-unit min", "'min'"),
        ("--event-column item_id", "both"),
        ("--event-column kind", "'kind'"),
        ("--event-weights view", "kind=weight"),
        ("--event-weights view=much", "kind=weight"),
        ("--event-weights view=0", "more than 0"),
        ("--event-weights view=nan", "at most 1,000"),
        ("--event-weights view=2", "the event"),
        ("--target-events buy --events view", "'buy'"),
        ("--user-column session_id --session-column x", "'x'"),
        ("--time-format dd.mm.yyyy", "date and time"),
        ("--time-format %H:%M", "date and time"),
        ("--time-format %Y --time-unit s", "one of"),
        ("--bad-lines keep", "one of stop, skip"),
        ("--bad-lines-limit 2", "between 0 and 1"),
        ("--no-test --test-days 3", "no test part"),
        ("--no-test --test LOG", "existing split"),
        ("--test LOG --min-support 3", "existing split"),
    ],
)
def test_options_outside_their_range(
    tmp_path: Path, options: str, keyword: str
) -> None:
    log = write_log(tmp_path / "a.csv", small_shop())
    refused(log, "--format csv " + options.replace("LOG", str(log)), keyword)


def test_unknown_formats_and_options_that_a_format_ignores(tmp_path: Path) -> None:
    log = write_log(tmp_path / "a.csv", small_shop())
    refused(log, "--format xml", "'xml' is not known")
    refused(log, "--format yoochoose --delimiter ';'", "--delimiter can't be used")
    refused(log, "--format otto --session-column x", "--session-column can't be used")
