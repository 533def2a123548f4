"""The command line: what it prints, its exit codes, and its messages about wrong input."""

import inspect
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import posrec
from posrec import cli
from tests.helpers import (
    command,
    heed_interrupts,
    listed,
    own_process,
    refused,
    small_shop,
    started,
    write_log,
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "clicks.csv", small_shop())


def test_prepare_and_stats(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "shop"
    done = command("prepare", log, "--format", "csv", "--out", out)
    assert (done.code, "samples in 27 sessions" in done.out) == (0, True)
    assert "'session_id' read as the session" in done.err
    table = command("stats", out)
    assert (table.code, "fingerprint" in table.out) == (0, True)
    figures = json.loads(command("stats", out, "--json").out)
    assert (figures["clicks"], figures["train_sessions"], figures["test_sessions"]) == (
        90,
        27,
        3,
    )
    samples = {"train_samples", "test_samples", "items"}
    spread = {"length_histogram", "popularity"}
    assert {
        *samples,
        *spread,
        "average_length",
        "repeating_sessions",
        "fingerprint",
    } <= figures.keys()


def test_demo(tmp_path: Path) -> None:
    done = command("demo", "--prepare-only", "--out", tmp_path / "demo")
    assert done.code == 0, done.err
    assert "fingerprint" in done.out
    assert (
        "comparison/posrec" not in done.out
    )  # nothing was trained, so no command for a run is suggested
    assert command("stats", tmp_path / "demo" / "data").code == 0
    assert (
        command("demo", "--prepare-only", "--out", tmp_path / "demo").code == 0
    )  # may be run again


def test_the_demo_leaves_other_peoples_files_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "clicks.csv").write_text("precious")
    assert "is not an earlier demo" in refused(
        "demo", "--prepare-only", "--out", tmp_path / "mine"
    )
    assert (tmp_path / "mine" / "clicks.csv").read_text() == "precious"


@pytest.mark.slow
def test_the_whole_demo(tmp_path: Path) -> None:
    done = command("demo", "--epochs", "1", "--out", tmp_path / "demo")
    assert done.code == 0
    lines = done.out.splitlines()
    best = lines.index(
        next(line for line in lines if line.strip() == "recall@20: posrec-plus")
    )
    others = [
        (line.split()[0], line.split()[-1]) for line in lines[best + 1 : best + 4]
    ]
    assert dict(others).keys() == {"pop", "stan", "posrec"}
    assert ("pop", "better") in others  # one epoch is enough for this
    shown = next(
        line.split()
        for line in done.out.splitlines()
        if "recommend" in line and "comparison/posrec" in line
    )
    assert command(*shown[1:]).code == 0
    report = (tmp_path / "demo" / "comparison" / "report.html").read_text(
        encoding="utf-8"
    )
    assert "best attainable" in report


@pytest.mark.process
def test_the_module_runs_as_the_command() -> None:
    version = own_process("--version")
    assert (version.returncode, version.stdout) == (0, f"posrec {posrec.__version__}\n")


COMMANDS = {
    info.callback.__name__: info.callback
    for info in cli.app.registered_commands
    if info.callback
}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_text_has_an_example_and_shows_the_extras_it_names(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich takes `[serve]` for markup unless it is escaped, and prints "needs posrec"."""
    monkeypatch.setenv("COLUMNS", "300")
    shown = command(name, "--help")
    assert shown.code == 0
    assert f"Example: posrec {name}" in shown.out
    written = inspect.getsource(inspect.unwrap(COMMANDS[name])).partition('"""')
    docstring = written[2].partition('"""')[0]
    for extra in re.findall(r"posrec\[\w+\]", written[0] + docstring):
        assert extra in shown.out
    assert ("posrec[track]" in shown.out) == (
        name == "train"
    )  # so that there is something to check


@pytest.mark.parametrize("words", [("--help",), ("train", "--help")], ids=" ".join)
def test_flags_are_shown_without_a_type_since_they_take_no_value(
    words: tuple[str, ...],
) -> None:
    shown = command(*words).out.casefold()
    assert "--help" in shown
    assert "bool" not in shown


def test_help_is_grouped_and_ends_with_an_example(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = command("--help").out
    for panel in (
        "First",
        "From a click log to a model",
        "From a model to recommendations",
        "Experiments",
    ):
        assert panel in shown
    assert "posrec prepare clicks.csv --out shop" in shown
    monkeypatch.setattr(
        sys.modules["__main__"], "__package__", None
    )  # not `python -m pytest`, but a script
    monkeypatch.setenv("_POSREC_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "posrec rec")
    monkeypatch.setenv("COMP_CWORD", "1")
    assert command().out.split() == ["recommend"]


BAR = """
from posrec.data.source import blocks
blocks.BLOCK_BYTES = 2000
from posrec.cli import main
main()
"""


@pytest.mark.process
def test_a_bar_moves_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_log(tmp_path / "c.csv", small_shop(3000))
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    line = ("prepare", log, "--format", "csv", "--out", tmp_path / "out")
    process = started(*line, code=BAR, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 4096)
        except OSError:  # how a terminal reports that the other side was closed
            break
    os.close(ours)
    assert process.wait() == 0
    assert b"Reading" in shown
    assert b" %" in shown


INTERRUPTED = """
import os, time
from pathlib import Path
from posrec.data.prepare.writer import ArrayFile
def slow(self, array):
    self.file.write(b"half an array")
    Path(os.environ["UNDER_WAY"]).touch()
    time.sleep(600)
ArrayFile.append = slow
from posrec.cli import main
main()
"""


@pytest.mark.process
def test_interrupting_leaves_nothing(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the arrays are being written."""
    under_way = tmp_path / "under way"
    monkeypatch.setenv("UNDER_WAY", str(under_way))
    line = ("prepare", log, "--format", "csv", "--out", tmp_path / "out")
    process = started(
        *line, code=INTERRUPTED, stderr=subprocess.PIPE, preexec_fn=heed_interrupts
    )
    try:
        while not under_way.exists():
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 130
    assert err.splitlines()[-1] == "error: interrupted; nothing was left half-written"
    assert "Traceback" not in err
    assert listed(tmp_path) == ["clicks.csv", "under way"]


@pytest.mark.process
def test_a_closed_pipe_is_no_traceback(log: Path, tmp_path: Path) -> None:
    assert (
        command("prepare", log, "--format", "csv", "--out", tmp_path / "out").code == 0
    )
    reader, writer = os.pipe()
    os.close(reader)
    process = started(
        "stats", tmp_path / "out", "--json", stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    assert "Traceback" not in process.communicate()[1]
    assert process.returncode == 1
