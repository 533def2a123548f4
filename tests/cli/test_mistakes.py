"""Mistakes of a new user: each gets a message of one line, and exit code 2."""

import shutil
from pathlib import Path

import pytest

from tests.helpers import command, refused, small_shop, write_log


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared dataset `shop`, a run `run` and files."""
    folder = tmp_path_factory.mktemp("mistakes")
    write_log(folder / "clicks.csv", small_shop(100))
    (folder / "ids.txt").write_text("a\n")
    (folder / "own.py").write_text("NUMBER = 3\n")
    shop = folder / "shop"
    assert command("prepare", folder / "clicks.csv", "--out", shop).code == 0
    assert command("train", shop, "--model", "pop", "--out", folder / "run").code == 0
    return folder


@pytest.fixture(autouse=True)
def in_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


@pytest.mark.parametrize(
    ("line", "keyword"),
    [
        ("stats missing", "does not exist"),
        ("stats run", "is a run folder"),
        ("train clicks.csv --out new", "is a file"),
        ("train shop --out new --model posrec-pluss", "'posrec-plus'?"),
        ("models posrek", "'posrec'?"),
        ("train shop --out new --set epoch=2", "'epochs'?"),
        ("train shop --out new --model narm --set d=0", "at least 1"),
        ("recommend shop a", "is a prepared dataset"),
        ("recommend run a --allow missing", "No such file"),
        ("recommend run a --deny shop", "Is a directory"),
        ("train shop --out new --model own.py:NUMBER", "posrec.ModelSpec"),
        ("encodings --plot ids.txt", "ids.txt is a file"),
        ("demo --out ids.txt", "ids.txt is a file"),
    ],
)
def test_it_is_named_in_one_line(line: str, keyword: str) -> None:
    message = refused(*line.split())
    assert message.startswith("error: ")
    assert keyword in message
    assert message.count("\n") == 1


def test_a_demo_of_no_epochs_is_refused() -> None:
    # By Typer, in a box of many lines.
    assert command("demo", "--epochs", "0").code == 2
    assert not Path("posrec-demo").exists()


def test_an_earlier_comparison_is_kept() -> None:
    shutil.copytree("run", "earlier/pop")
    line = "compare shop --models pop,spop --out earlier"
    assert "earlier comparison" in refused(*line.split())


def test_a_setting_that_one_model_lacks_is_refused_before_any_is_trained() -> None:
    line = "compare shop --models pop,posrec,narm --set lambda2=0.5 --out unfinished"
    assert "narm: there is no setting 'lambda2'" in refused(*line.split())
    assert not Path("unfinished").exists()
