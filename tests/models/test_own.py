"""Users' own models: the page docs/own_model.md runs, and opening a run never runs code that the
user did not name."""

import json
import re
import shlex
from pathlib import Path

import pytest

from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError
from posrec.models.registry import MODELS
from posrec.runs.run import load_run
from tests.contract.models import own_spec, page_model
from tests.helpers import ROOT, chain_shop, command, fitted, own_process

QUICK = ("--device", "cpu", "--set", "d=16", "--set", "batch_size=64")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the page's model in it and a dataset called shop."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recency.py").write_text(page_model())
    chain_shop(tmp_path, seed=0, sessions=60).path.rename("shop")
    return tmp_path


def blocks(language: str) -> list[str]:
    page = (ROOT / "docs" / "own_model.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def test_a_model_is_added_in_under_sixty_lines() -> None:
    assert len(page_model().splitlines()) < 60


@pytest.mark.process
def test_the_page_runs(here: Path) -> None:
    (shown,) = blocks("sh")
    for line in shown.splitlines():
        words = shlex.split(line)[1:]
        if words[0] not in ("evaluate", "recommend"):
            words += ["--set", "epochs=1"]
        done = command(*words)
        assert done.code == 0, f"{line}\n{done.err}"
    config = json.loads((here / "runs" / "recency" / "config.json").read_text())
    assert config["model"] == f"{here / 'recency.py'}:RECENCY"
    comparison = here / "comparison-with-mine"
    assert (comparison / "RECENCY" / "metrics.json").exists()
    assert "RECENCY" in (comparison / "report.html").read_text(encoding="utf-8")
    # tests/contract runs what the test on the page runs.
    _, test, in_python = blocks("python")
    code = f"import sys; sys.path.insert(0, '')\n{test}\n{in_python}"
    ran = own_process(code=code, cwd=here)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) > 0


def test_a_run_can_be_resumed_from_another_working_directory(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = ("--model", "recency.py:RECENCY")
    assert command("train", "shop", *mine, "--out", "run", *QUICK).code == 0
    (here / "below").mkdir()
    monkeypatch.chdir(here / "below")
    again = ("--model", "../recency.py:RECENCY", "--out", "../run", "--resume", *QUICK)
    assert command("train", "../shop", *again).code == 0
    other = command("train", "../shop", "--out", "../run", "--resume", *QUICK)
    assert other.code == 2
    assert "model was" in other.err


def test_a_run_starts_from_another(here: Path) -> None:
    """The page's model has a weight that is a single number."""
    named = ("train", "shop", "--model", "recency.py:RECENCY", *QUICK)
    assert command(*named, "--out", "first").code == 0
    done = command(*named, "--from", "first", "--out", "second")
    assert done.code == 0, done.err
    run = load_run("second", own_spec())
    assert run.config["started_from"]["run"] == str(here / "first")


@pytest.mark.process
@pytest.mark.slow
def test_a_model_can_be_named_by_its_module(here: Path) -> None:
    words = ("train", "shop", "--model", "recency:RECENCY", "--out", "run", *QUICK)
    # python -m puts the working directory on the path.
    done = own_process(*words, cwd=here)
    assert done.returncode == 0, done.stderr
    config = json.loads((here / "run" / "config.json").read_text())
    assert config["model"] == "recency:RECENCY"


@pytest.mark.parametrize(
    ("model", "text", "message"),
    [
        ("gone.py:MINE", None, "no file"),
        ("mine.py:MINE", "import torch\n\nnonsense", r"'nonsense'.*mine\.py, line 3"),
        ("mine.py:MINE", "def", "SyntaxError"),
        ("mine.py:MINE", "", "'MINE' is missing.*ModelSpec"),
        ("mine.py:MINE", "class MINE: pass", "'MINE' is a class"),
        ("no.such.module:MINE", None, "no module no; write FILE.py:NAME"),
        ("mine.py:MINE", "import no.such.module", "No module named 'no'"),
        ("mine.py", "", "'mine.py' is not known.*my_model.py:MY_SPEC"),
    ],
)
def test_the_error_says_why_a_model_cannot_be_loaded(
    here: Path, model: str, text: str | None, message: str
) -> None:
    if text is not None:
        (here / "mine.py").write_text(text)
    done = command("train", "shop", "--model", model, "--out", "run")
    assert done.code == 2
    assert re.search(message, done.err)
    assert "Traceback" not in done.err
    assert not (here / "run").exists()


@pytest.fixture
def data(tmp_path: Path) -> PreparedDataset:
    return chain_shop(tmp_path, seed=0, sessions=60)


def test_a_run_of_a_spec_needs_the_spec_to_be_opened(
    data: PreparedDataset, tmp_path: Path
) -> None:
    spec = own_spec()
    run, _ = fitted(data, spec, tmp_path / "run", {"d": 16, "epochs": 1})
    assert run.config["model"].endswith(".RecencyConfig")
    with pytest.raises(InputError, match=r"RecencyConfig;.*load_run"):
        load_run(tmp_path / "run")
    assert type(load_run(tmp_path / "run", spec).model) is spec.model
    with pytest.raises(InputError, match="does not fit its config"):
        load_run(tmp_path / "run", "posrec")


def test_a_spec_of_the_registry_is_saved_by_its_name(
    data: PreparedDataset, tmp_path: Path
) -> None:
    run, _ = fitted(data, MODELS["pop"], tmp_path / "run")
    assert run.config["model"] == "pop"
    assert load_run(tmp_path / "run").config == run.config
