"""The command line: what it prints, its exit codes, and its messages about wrong input."""

import inspect
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
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


def test_demo(tmp_path: Path) -> None:
    demo = ("demo", "--prepare-only", "--out", tmp_path / "demo")
    done = command(*demo)
    assert done.code == 0, done.err
    assert "fingerprint" in done.out
    # Nothing was trained, so no command for a run is suggested.
    assert "comparison/posrec" not in done.out
    assert command("stats", tmp_path / "demo" / "data").code == 0
    assert command(*demo).code == 0  # may be run again


def test_the_demo_leaves_other_peoples_files_alone(tmp_path: Path) -> None:
    file = tmp_path / "clicks.csv"
    file.write_text("precious")
    assert "earlier demo" in refused("demo", "--prepare-only", "--out", tmp_path)
    assert file.read_text() == "precious"


@pytest.mark.slow
def test_the_whole_demo(tmp_path: Path) -> None:
    done = command("demo", "--epochs", "1", "--out", tmp_path / "demo")
    assert done.code == 0
    lines = [line.split() for line in done.out.splitlines()]
    best = lines.index(["recall@20:", "posrec-plus"])
    verdicts = {words[0]: words[-1] for words in lines[best + 1 : best + 4]}
    assert verdicts.keys() == {"pop", "stan", "posrec"}
    assert verdicts["pop"] == "better"  # one epoch is enough for this
    # The first suggestion is for the demo's run, a later one for a run of one's own.
    suggested = next(words for words in lines if words[:2] == ["posrec", "recommend"])
    assert command(*suggested[1:]).code == 0
    report = tmp_path / "demo" / "comparison" / "report.html"
    assert "best attainable" in report.read_text(encoding="utf-8")


@pytest.mark.process
def test_the_module_runs_as_the_command() -> None:
    version = own_process("--version")
    assert (version.returncode, version.stdout) == (0, f"posrec {posrec.__version__}\n")


CALLBACKS = [info.callback for info in cli.app.registered_commands if info.callback]


@pytest.mark.parametrize("callback", CALLBACKS)
def test_every_help_text_has_an_example_and_shows_the_extras_it_names(
    callback: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rich takes `[serve]` for markup unless it is escaped, and prints "needs posrec"."""
    monkeypatch.setenv("COLUMNS", "300")
    name = callback.__name__
    shown = command(name, "--help")
    assert shown.code == 0
    assert f"Example: posrec {name}" in shown.out
    source = inspect.getsource(inspect.unwrap(callback))
    declaration, docstring, *_ = source.split('"""')
    for extra in re.findall(r"posrec\[\w+\]", declaration + docstring):
        assert extra in shown.out
    # So that there is something to check.
    assert ("posrec[track]" in shown.out) == (name == "train")


def test_help_is_grouped_and_shows_flags_without_a_type() -> None:
    shown = command("--help").out
    for panel in ("First", "From a click log", "From a model", "Experiments"):
        assert panel in shown
    assert "posrec prepare clicks.csv --out shop" in shown
    assert "bool" not in (shown + command("train", "--help").out).casefold()


def test_the_shell_completes_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    # As a script, not `python -m pytest`.
    monkeypatch.setattr(sys.modules["__main__"], "__package__", None)
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
    arguments = ("prepare", log, "--format", "csv", "--out", tmp_path / "out")
    process = started(*arguments, code=BAR, stdout=subprocess.DEVNULL, stderr=theirs)
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
    arguments = ("prepare", log, "--format", "csv", "--out", tmp_path / "out")
    options = {"stderr": subprocess.PIPE, "preexec_fn": heed_interrupts}
    process = started(*arguments, code=INTERRUPTED, **options)
    try:
        while not under_way.exists():
            assert process.poll() is None, process.communicate()[1]
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    assert listed(tmp_path) == ["clicks.csv", "under way"]


@pytest.mark.process
def test_a_closed_pipe_is_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = started("--version", stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert "Traceback" not in process.communicate()[1]
    assert process.returncode == 1
