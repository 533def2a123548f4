"""Mistakes of a new user: each gets a message of one line that says what is wrong and what to do, and exit code 2."""

from pathlib import Path

import pytest

from tests.helpers import command, small_shop, write_log


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared dataset `shop`, a run `run` and a file `ids.txt`."""
    folder = tmp_path_factory.mktemp("mistakes")
    write_log(folder / "clicks.csv", small_shop(100))
    (folder / "ids.txt").write_text("a\n")
    (folder / "broken.py").write_text("def (\n")
    (folder / "own.py").write_text("NUMBER = 3\n")
    assert command("prepare", folder / "clicks.csv", "--out", folder / "shop").code == 0
    assert command("train", folder / "shop", "--model", "pop", "--out", folder / "run").code == 0
    return folder


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("stats missing", "missing is not a prepared dataset (it does not exist); check the path, or make one with"),
        ("stats run", "run is not a prepared dataset (it is a run folder); check the path, or make one with"),
        ("train clicks.csv --out new", "clicks.csv is not a prepared dataset (it is a file); check the path, or make"),
        (
            "train shop --out new --model posrec-pluss",
            "'posrec-pluss' is not known (did you mean 'posrec-plus'?); choose",
        ),
        ("models posrek", "'posrek' is not known (did you mean 'posrec'?); choose"),
        ("train shop --out new --set epoch=2", "there is no setting 'epoch' (did you mean 'epochs'?); choose one of"),
        ("train shop --out new --model narm --set d=0", "d must be at least 1, not 0"),
        ("recommend missing a", "missing is not a run folder (it does not exist); check the path, or make one with"),
        ("recommend shop a", "shop is not a run folder (it is a prepared dataset); check the path, or make one with"),
        ("recommend run a --allow missing", "missing can't be read (No such file or directory); it must be a file"),
        ("recommend run a --deny shop", "shop can't be read (Is a directory); it must be a file with one item id"),
        ("train shop --out new --model own.py:NUMBER", "'NUMBER' is of type int there; it must be a posrec.ModelSpec"),
        ("train shop --out new --model broken.py:A", "SyntaxError: invalid syntax (broken.py, line 1)\n"),
        ("encodings --plot ids.txt", "--plot ids.txt is a file; name a folder"),
        ("demo --out ids.txt", "ids.txt is a file; name a folder with --out"),
        ("serve run --split 50,50", "--split 50,50 is for several runs, and there is one"),
    ],
)
def test_it_is_named_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch, line: str, message: str) -> None:
    if line.startswith("serve"):
        pytest.importorskip("granian")
    monkeypatch.chdir(folder)
    done = command(*line.split())
    assert done.code == 2
    assert done.err.startswith("error: ")
    assert message in done.err
    assert done.err.count("\n") == 1


def test_a_demo_of_no_epochs_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert command("demo", "--epochs", "0").code == 2
    assert not (folder / "posrec-demo").exists()


def test_an_earlier_comparison_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert command("compare", "shop", "--models", "pop,spop").code == 0
    again = command("compare", "shop", "--models", "pop,spop")
    assert (again.code, again.out) == (2, "")
    assert "comparison has a run of pop from an earlier comparison; name another folder with --out" in again.err


def test_a_setting_that_one_model_does_not_have_is_refused_before_any_is_trained(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    done = command("compare", "shop", "--models", "pop,posrec,narm", "--set", "lambda2=0.5", "--out", "unfinished")
    assert (done.code, done.out) == (2, "")
    assert "error: narm: there is no setting 'lambda2'" in done.err
    assert not (folder / "unfinished").exists()
