"""Both tutorials are followed: every command and every piece of Python runs, on a smaller shop."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from posrec.demo.shop import make_demo
from posrec.models import restore
from tests.helpers import ROOT, command

BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))


def run_block(kind: str, text: str) -> None:
    if kind == "python":
        exec(text, {})
        return
    for line in text.splitlines():
        done = command(*shlex.split(line)[1:])
        assert done.code == 0, f"{line}\n{done.err}"


@pytest.mark.usefixtures("no_export")
def test_both_tutorials_can_be_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    follow_the_first_tutorial()
    assert Path("runs/first/metrics.json").exists()
    assert Path("comparison/report.html").exists()
    capsys.readouterr()
    # On the meta device, the division in the encoding makes torch import its compiler, which
    # takes seven seconds. tests/models/test_restore.py checks shapes.
    monkeypatch.setattr(restore, "check_shapes", lambda *_: None)
    monkeypatch.syspath_prepend(tmp_path)
    follow_the_tutorial_of_encodings()
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "False False True"  # as the page says
    names_and_seeds = [line.rsplit(" ", 1)[0] for line in printed[-4:]]
    assert names_and_seeds == ["nearness 1", "nearness 2", "ldpe 1", "ldpe 2"]


def follow_the_first_tutorial() -> None:
    demo, *others = blocks("tutorial.md")
    assert demo == ("sh", "posrec demo --prepare-only --out outdoor\n")
    make_demo("outdoor", sessions=600)
    for kind, text in others:
        run_block(kind, text)


def follow_the_tutorial_of_encodings() -> None:
    (_, encoding), *others = blocks("own_encoding.md")
    Path("my_encoding.py").write_text(encoding)
    try:
        for kind, text in others:
            run_block(kind, text)
    finally:
        sys.modules.pop("my_encoding", None)
