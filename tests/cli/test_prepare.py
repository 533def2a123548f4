"""`posrec prepare` on logs as shops have them: every option does on the command line what it does
in Python."""

import json
from pathlib import Path
from typing import Any

import pytest

import posrec
from tests.helpers import (
    command,
    listed,
    own_process,
    refused,
    small_shop,
    write_lines,
    write_log,
)


def shop_log(path: Path) -> Path:
    """Two users with two visits each hour, German dates, kinds of events, and two broken lines in
    400."""
    lines = ["nutzer\tbesuch\tartikel\tzeit\taktion"]
    for number in range(100):
        for step in range(4):
            kind = ("view", "view", "cart", "purchase")[step]
            time = f"{1 + number // 24:02d}.09.2026 {number % 24:02d}:0{step}:46"
            lines.append(
                f"u{number % 2}\t{number // 2}\ta{(number + step) % 5}\t{time}\t{kind}"
            )
    lines[50] = "u1\t25\ta1\tgestern\tview"
    lines[70] = "u1\t25\ta1"
    return write_lines(path, lines)


WORDS = (
    "--session-column nutzer --session-column besuch --item-column artikel --time-column zeit --event-column aktion "
    "--events view,purchase --event-weights view=1,purchase=5 --target-events purchase --bad-lines skip "
    "--bad-lines-limit 0.02 --no-test"
)
KEYWORDS: dict[str, Any] = {
    "session_column": ["nutzer", "besuch"], "item_column": "artikel", "time_column": "zeit",
    "time_format": "%d.%m.%Y %H:%M:%S", "event_column": "aktion", "events": ["view", "purchase"],
    "event_weights": {"view": 1, "purchase": 5}, "target_events": ["purchase"], "bad_lines": "skip",
    "bad_lines_limit": 0.02, "no_test": True,
}  # fmt: skip


def test_the_command_and_python_agree(tmp_path: Path) -> None:
    log = shop_log(tmp_path / "klicks.tsv")
    done = command(
        "prepare",
        log,
        *WORDS.split(),
        "--time-format",
        "%d.%m.%Y %H:%M:%S",
        "--out",
        tmp_path / "a",
    )
    assert done.code == 0, done.err
    data = posrec.prepare(log, out=tmp_path / "b", **KEYWORDS)
    assert posrec.load(tmp_path / "a").fingerprint == data.fingerprint
    assert (data.train.sessions, len(data.train), data.train.clicks) == (100, 100, 298)
    assert data.target_weights is not None
    assert sorted(set(data.target_weights.tolist())) == [1, 5]
    assert listed(tmp_path) == [
        "a",
        "a.bad-lines.jsonl",
        "b",
        "b.bad-lines.jsonl",
        "klicks.tsv",
    ]
    assert (tmp_path / "a.bad-lines.jsonl").read_text() == (
        tmp_path / "b.bad-lines.jsonl"
    ).read_text()
    for words in (
        "read as tsv",
        "2 of 400 lines (0.50%) are broken",
        "kept 298 of 398 rows",
    ):
        assert words in done.err
    assert "100 train samples in 100 sessions, no test part; 5 items." in done.out


def test_a_dataset_without_a_test_part_is_trained_and_not_evaluated(
    tmp_path: Path,
) -> None:
    log = write_log(tmp_path / "c.csv", small_shop(60))
    assert command("prepare", log, "--no-test", "--out", tmp_path / "shop").code == 0
    options = (
        "--model posrec --protocol refit --epochs 1 --set d=8 --device cpu --no-export"
    )
    done = command(
        "train", tmp_path / "shop", "--out", tmp_path / "run", *options.split()
    )
    assert (done.code, "the run was not evaluated" in done.err) == (0, True)
    assert done.out.startswith("The run is in")
    for words in (
        ("evaluate", tmp_path / "run", tmp_path / "shop"),
        (
            "compare",
            tmp_path / "shop",
            "--models",
            "pop,spop",
            "--out",
            tmp_path / "comparison",
        ),
    ):
        assert "it was prepared with --no-test" in refused(*words)
    shown = json.loads(command("stats", tmp_path / "shop", "--json").out)
    assert (shown["test_samples"], shown["test_sessions"], shown["train_sessions"]) == (
        0,
        0,
        60,
    )
    assert command("stats", tmp_path / "shop").code == 0
    assert command("recommend", tmp_path / "run", "i0").code == 0


@pytest.mark.process
def test_a_pipe_into_the_command(tmp_path: Path) -> None:
    log = write_log(tmp_path / "c.csv", small_shop())
    with log.open("rb") as file:
        done = own_process("prepare", "-", "--out", tmp_path / "out", stdin=file)
    assert done.returncode == 0, done.stderr
    assert "standard input: read as csv" in done.stderr
    named = posrec.prepare(log, out=tmp_path / "named")
    assert posrec.load(tmp_path / "out").fingerprint == named.fingerprint
