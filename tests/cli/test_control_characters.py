"""Escape sequences in titles, ids and names are written out, so they never reach the terminal."""

import io
import json
import logging
import re
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from posrec.progress import TerminalConsole
from posrec.server.feedback.answer_ids import new_answer_id
from posrec.server.feedback.writing import FeedbackFiles
from posrec.server.json_log import JsonFormatter
from tests.helpers import command, small_shop, write_lines

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"
COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a shop whose ids and titles hold escape sequences."""
    folder = tmp_path_factory.mktemp("evil")
    clicks = [f"{session},{item}{EVIL},{time}" for session, item, time in small_shop()]
    log = write_lines(folder / "c.csv", ["session_id,item_id,timestamp", *clicks])
    titles = [f"i{number}{EVIL},x,T{number} {EVIL}" for number in range(4)]
    items = write_lines(folder / "items.csv", [f"id,title{EVIL},name", *titles])
    done = command("prepare", log, "--items", items, "--out", folder / "shop")
    assert done.code == 0, done.err
    assert not COMMANDS.search(done.out + done.err)
    out = folder / "run"
    options = ("--set", "d=8", "--epochs", 1, "--no-export", "--out", out)
    assert command("train", folder / "shop", *options).code == 0
    return out


@pytest.mark.parametrize("options", ["", "--explain", "--json", "--explain --json"])
def test_recommendations(run: Path, options: str) -> None:
    arguments = (f"i1{EVIL}", f"unknown{EVIL}", "-k", 3, *options.split())
    done = command("recommend", run, *arguments)
    assert done.code == 0, done.err
    assert not COMMANDS.search(done.out + done.err)
    assert "owned" in done.out  # it is shown, written out


def test_errors(run: Path, tmp_path: Path) -> None:
    unknown_item = command("recommend", run, "i1", "--about", f"none{EVIL}")
    no_folder = command("stats", tmp_path / f"none{EVIL}")
    for message in (unknown_item.err, no_folder.err):
        assert "owned" in message
        assert not COMMANDS.search(message)


def test_a_report_of_what_clients_sent(tmp_path: Path) -> None:
    feedback = FeedbackFiles(tmp_path)
    answer = new_answer_id(
        "5f0c9e1b7a42", f"{EVIL}[/bold]", feedback.key, [(EVIL, False)]
    )
    feedback.write(answer, "shown", [EVIL], None)
    for options in ((), ("--json",)):
        done = command("report", tmp_path, *options)
        assert done.code == 0, done.err
        assert "owned" in done.out
        assert not COMMANDS.search(done.out + done.err)


def test_everything_that_rich_prints() -> None:
    """Also texts with a style, in a table, and the description of a bar."""
    table = Table(f"a{EVIL}", caption=EVIL)
    table.add_row(Text(EVIL, "bold"))
    printed = io.StringIO()
    console = TerminalConsole(file=printed)
    console.print(EVIL, Text(EVIL), table, "[red]x[/nothing]")
    assert not COMMANDS.search(printed.getvalue())
    assert printed.getvalue().count("owned") == 5
    assert "[red]x[/nothing]" in printed.getvalue()


def test_the_log_of_a_server() -> None:
    record = logging.LogRecord("posrec.server", logging.INFO, "", 0, EVIL, None, None)
    line = JsonFormatter().format(record)
    assert json.loads(line)["message"] == EVIL
    assert not COMMANDS.search(line)
