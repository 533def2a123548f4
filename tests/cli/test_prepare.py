"""`posrec prepare` on a log as shops have it: options do the same as keywords in Python."""

import json
from pathlib import Path
from typing import Any

import pytest

import posrec
from tests.helpers import (
    command,
    own_process,
    refused,
    small_shop,
    write_lines,
    write_log,
)

EVENTS = ("view", "view", "cart", "purchase")


def shop_log(path: Path) -> Path:
    """Two users with two visits each hour, German dates, types of events, and two broken lines in
    400."""
    lines = ["nutzer\tbesuch\tartikel\tzeit\taktion"]
    for number in range(100):
        visit = f"u{number % 2}\t{number // 2}"
        for step, event in enumerate(EVENTS):
            time = f"{1 + number // 24:02d}.09.2026 {number % 24:02d}:0{step}:46"
            lines.append(f"{visit}\ta{(number + step) % 5}\t{time}\t{event}")
    lines[50] = "u1\t25\ta1\tgestern\tview"
    lines[70] = "u1\t25\ta1"
    return write_lines(path, lines)


TIME_FORMAT = "%d.%m.%Y %H:%M:%S"
ARGUMENTS = [
    "--session-column=nutzer",
    "--session-column=besuch",
    "--item-column=artikel",
    "--time-column=zeit",
    f"--time-format={TIME_FORMAT}",
    "--event-column=aktion",
    "--events=view,purchase",
    "--event-weights=view=1,purchase=5",
    "--target-events=purchase",
    "--bad-lines=skip",
    "--bad-lines-limit=0.02",
    "--no-test",
]
KEYWORDS: dict[str, Any] = {
    "session_column": ["nutzer", "besuch"],
    "item_column": "artikel",
    "time_column": "zeit",
    "time_format": TIME_FORMAT,
    "event_column": "aktion",
    "events": ["view", "purchase"],
    "event_weights": {"view": 1, "purchase": 5},
    "target_events": ["purchase"],
    "bad_lines": "skip",
    "bad_lines_limit": 0.02,
    "no_test": True,
}


def test_the_command_and_python_agree(tmp_path: Path) -> None:
    log = shop_log(tmp_path / "klicks.tsv")
    done = command("prepare", log, *ARGUMENTS, "--out", tmp_path / "a")
    assert done.code == 0, done.err
    data = posrec.prepare(log, out=tmp_path / "b", **KEYWORDS)
    assert posrec.load(tmp_path / "a").fingerprint == data.fingerprint
    assert (data.train.sessions, len(data.train), data.train.clicks) == (100, 100, 298)
    assert data.target_weights is not None
    assert set(data.target_weights.tolist()) == {1, 5}
    skipped = (tmp_path / "a.bad-lines.jsonl").read_text()
    assert skipped == (tmp_path / "b.bad-lines.jsonl").read_text()
    for keyword in ("read as tsv", "2 of 400 lines", "298 of 398 rows"):
        assert keyword in done.err
    assert "100 train samples in 100 sessions, no test part; 5 items." in done.out


def test_a_dataset_without_a_test_part_is_trained_and_not_evaluated(
    tmp_path: Path,
) -> None:
    log = write_log(tmp_path / "c.csv", small_shop(60))
    shop = tmp_path / "shop"
    run = tmp_path / "run"
    assert command("prepare", log, "--no-test", "--out", shop).code == 0
    options = ("--model=posrec", "--protocol=refit", "--epochs=1", "--set", "d=8")
    done = command("train", shop, "--out", run, *options, "--no-export")
    assert done.code == 0, done.err
    assert "not evaluated" in done.err
    assert "--no-test" in refused("evaluate", run, shop)
    comparison = ("compare", shop, "--models", "pop,spop", "--out", tmp_path / "new")
    assert "--no-test" in refused(*comparison)
    figures = json.loads(command("stats", shop, "--json").out)
    assert (figures["test_samples"], figures["train_sessions"]) == (0, 60)
    assert command("stats", shop).code == 0
    assert command("recommend", run, "i0").code == 0


@pytest.mark.process
def test_a_pipe_into_the_command(tmp_path: Path) -> None:
    log = write_log(tmp_path / "c.csv", small_shop())
    with log.open("rb") as file:
        done = own_process("prepare", "-", "--out", tmp_path / "out", stdin=file)
    assert done.returncode == 0, done.stderr
    assert "standard input" in done.stderr
    data = posrec.prepare(log, out=tmp_path / "of the file")
    assert posrec.load(tmp_path / "out").fingerprint == data.fingerprint
