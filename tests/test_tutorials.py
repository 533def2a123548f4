"""Both tutorials are followed: every command and every piece of Python runs, on a smaller shop."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from posrec.demo.shop import make_demo
from tests.helpers import ROOT, command

BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: str) -> list[tuple[str, str]]:
    return BLOCK.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))


def run_commands(text: str) -> str:
    printed = ""
    for line in text.splitlines():
        done = command(*shlex.split(line)[1:])
        assert done.code == 0, f"{line}\n{done.err}"
        printed += done.out
    return printed


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tutorial")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for kind, text in blocks("tutorial.md"):
            if text.startswith("posrec demo"):
                make_demo("outdoor", sessions=800)
                shutil.rmtree("outdoor/data")
            elif kind == "sh":
                run_commands(text)
            else:
                exec(text, {})
    return folder


def test_a_log_becomes_a_model_and_a_report(followed: Path) -> None:
    assert (followed / "runs" / "first" / "metrics.json").exists()
    assert (followed / "comparison" / "report.html").exists()


def test_an_idea_becomes_a_measured_encoding(
    followed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(followed)
    monkeypatch.syspath_prepend(followed)
    (code, *rest) = blocks("own_encoding.md")
    Path("my_encoding.py").write_text(code[1])
    try:
        for kind, text in rest:
            if kind == "sh":
                run_commands(text)
            else:
                exec(text, {})
    finally:
        sys.modules.pop("my_encoding", None)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "False False True"  # as the page says
    assert [line.rsplit(" ", 1)[0] for line in printed[-4:]] == [
        "nearness 1",
        "nearness 2",
        "ldpe 1",
        "ldpe 2",
    ]
