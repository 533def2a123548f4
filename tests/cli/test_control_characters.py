"""What comes from outside never commands the terminal: escape sequences in titles, ids and names
are written out."""

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
    items = write_lines(
        folder / "items.csv",
        [f"id,title{EVIL},name", *(f"i{n}{EVIL},x,T{n} {EVIL}" for n in range(4))],
    )
    made = command(
        "prepare", log, "--format", "csv", "--items", items, "--out", folder / "shop"
    )
    assert made.code == 0, made.err
    assert not COMMANDS.search(made.out + made.err)
    words = ("--set", "d=8", "--epochs", 1, "--no-export")
    assert command("train", folder / "shop", "--out", folder / "run", *words).code == 0
    return folder / "run"


@pytest.mark.parametrize(
    "more", [(), ("--explain",), ("--json",), ("--explain", "--json")], ids=" ".join
)
def test_recommendations(run: Path, more: tuple[str, ...]) -> None:
    done = command("recommend", run, f"i1{EVIL}", f"unknown{EVIL}", "-k", 3, *more)
    assert done.code == 0, done.err
    assert not COMMANDS.search(done.out + done.err)
    assert "owned" in done.out  # it is shown, written out


def test_errors(run: Path, tmp_path: Path) -> None:
    for words in (
        ("recommend", run, "i1", "--about", f"none{EVIL}"),
        ("stats", tmp_path / f"none{EVIL}"),
    ):
        said = command(*words).err
        assert "owned" in said
        assert not COMMANDS.search(said)


def test_a_report_of_what_clients_sent(tmp_path: Path) -> None:
    """The part of an answer's id before the dash is the run."""
    feedback = FeedbackFiles(tmp_path)
    feedback.write(
        new_answer_id("5f0c9e1b7a42", f"{EVIL}[/bold]", feedback.key),
        "shown",
        [f"i1{EVIL}"],
        None,
    )
    for more in ((), ("--json",)):
        done = command("report", tmp_path, *more)
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
