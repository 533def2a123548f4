"""Mistakes of a new user: each gets a message of one line that says what is wrong and what to do,
and exit code 2."""

from pathlib import Path

import pytest

from tests.helpers import command, refused, small_shop, write_log


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared dataset `shop`, a run `run` and a file `ids.txt`."""
    folder = tmp_path_factory.mktemp("mistakes")
    write_log(folder / "clicks.csv", small_shop(100))
    (folder / "ids.txt").write_text("a\n")
    (folder / "broken.py").write_text("def (\n")
    (folder / "own.py").write_text("NUMBER = 3\n")
    assert command("prepare", folder / "clicks.csv", "--out", folder / "shop").code == 0
    assert (
        command(
            "train", folder / "shop", "--model", "pop", "--out", folder / "run"
        ).code
        == 0
    )
    return folder


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("stats missing", "missing is not a prepared dataset (it does not exist)"),
        ("stats run", "run is not a prepared dataset (it is a run folder)"),
        (
            "train clicks.csv --out new",
            "clicks.csv is not a prepared dataset (it is a file)",
        ),
        ("train shop --out new --model posrec-pluss", "did you mean 'posrec-plus'?"),
        ("models posrek", "did you mean 'posrec'?"),
        ("train shop --out new --set epoch=2", "did you mean 'epochs'?"),
        ("train shop --out new --model narm --set d=0", "d must be at least 1, not 0"),
        ("recommend shop a", "shop is not a run folder (it is a prepared dataset)"),
        ("recommend run a --allow missing", "missing can't be read (No such file"),
        ("recommend run a --deny shop", "shop can't be read (Is a directory)"),
        ("train shop --out new --model own.py:NUMBER", "must be a posrec.ModelSpec"),
        ("train shop --out new --model broken.py:A", "SyntaxError: invalid syntax"),
        ("encodings --plot ids.txt", "ids.txt is a file"),
        ("demo --out ids.txt", "ids.txt is a file"),
        ("serve run --split 50,50", "is for several runs"),
    ],
)
def test_it_is_named_in_one_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, line: str, message: str
) -> None:
    if line.startswith("serve"):
        pytest.importorskip("granian")
    monkeypatch.chdir(folder)
    said = refused(*line.split())
    assert said.startswith("error: ")
    assert message in said
    assert said.count("\n") == 1


def test_a_demo_of_no_epochs_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert (
        command("demo", "--epochs", "0").code == 2
    )  # by Typer, in a box of many lines
    assert not (folder / "posrec-demo").exists()


def test_an_earlier_comparison_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert command("compare", "shop", "--models", "pop,spop").code == 0
    assert "an earlier comparison" in refused("compare", "shop", "--models", "pop,spop")


def test_a_setting_that_one_model_does_not_have_is_refused_before_any_is_trained(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    words = "compare shop --models pop,posrec,narm --set lambda2=0.5 --out unfinished"
    assert "error: narm: there is no setting 'lambda2'" in refused(*words.split())
    assert not (folder / "unfinished").exists()
