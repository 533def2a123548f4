"""The whole of `posrec reproduce` on a tiny shop: run, continued elsewhere, reported, refused."""

import json
import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest

from posrec.errors import InputError
from posrec.experiments.reproduce import jobs
from posrec.experiments.reproduce.grid import EXPERIMENTS
from posrec.experiments.reproduce.run import load_datasets, make_plan, reproduce
from tests.helpers import (
    CommandResult,
    chain_shop,
    command,
    listed,
    own_process,
    refused,
)

QUICK = ("--quick", "--quick-sessions", 500, "--device", "cpu")


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CommandResult]:
    folder = tmp_path_factory.mktemp("reproduce") / "out"
    return folder, command("reproduce", "all", "--out", folder, *QUICK)


def new_shop(folder: Path) -> Path:
    folder.mkdir()
    return chain_shop(folder, seed=1, sessions=50).path


def test_everything_runs_and_is_reported(quick: tuple[Path, CommandResult]) -> None:
    folder, done = quick
    assert done.code == 0, done.err
    assert "65 of 65 trainings done" in " ".join(done.out.split())
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["failed"] == {}
    names = [table["experiment"] for table in summary["tables"]]
    assert names == ["overall", "encodings", "plug-in", "anchors", "sensitivity"]
    overall = summary["tables"][0]["rows"]
    assert len(overall) == 15
    assert (overall["PosRec"]["seeds"], overall["POP"]["seeds"]) == (2, 1)
    shared = summary["tables"][1]["rows"]["LDPE"]["recall@10"]
    assert shared == overall["PosRec"]["recall@10"]  # one job in two tables
    verdicts = {claim["verdict"] for claim in summary["claims"]}
    assert verdicts <= {"held", "did not hold", "unclear"}


def test_the_report_has_every_part_and_its_figures(
    quick: tuple[Path, CommandResult],
) -> None:
    folder, _ = quick
    text = (folder / "report.md").read_text()
    assert "it says nothing about the paper" in text
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["datasets"]["demo"]["fingerprint"] in text
    for experiment in EXPERIMENTS.values():
        assert f"## {experiment.title}\n" in text
    claim = "LDPE is the best encoding in PosRec"
    assert f"| {claim} | demo | R@10 | unclear | LDPE: " in text
    shown = re.findall(r"^!\[[^]]+\]\((.*)\)$", text, re.MULTILINE)
    assert len(shown) == 4 + 2  # fixed and learned encodings
    assert sorted(shown) == [f"figures/{name}" for name in listed(folder / "figures")]
    tables = [block for block in text.split("\n\n") if block.startswith("| ")]
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1
    # Claims; rows and comparisons, none of lambda2 here; learned encodings.
    assert len(tables) == 1 + 2 * 5 - 1 + 1


@pytest.mark.process
def test_a_machine_that_only_runs_jobs_draws_and_tests_nothing(tmp_path: Path) -> None:
    shop = new_shop(tmp_path / "made")
    without = "matplotlib=None, polars=None, scipy=None, jinja2=None"
    code = f"import sys; sys.modules.update({without}); from posrec.cli import main; main()"
    options = ("--out", tmp_path / "out", "--minutes", 0, "--no-report")
    done = own_process("reproduce", "all", "--data", shop, *options, code=code)
    assert done.returncode == 0, done.stderr
    assert "0 of 127 trainings done" in done.stdout
    assert "report" not in done.stdout
    assert listed(tmp_path) == ["made", "out"]
    assert listed(tmp_path / "out") == []  # no job was run, and nothing is reported


def test_another_machine_reports_on_copied_results(
    quick: tuple[Path, CommandResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("demo-500", "jobs"):
        shutil.copytree(quick[0] / name, tmp_path / name)
    monkeypatch.setattr(jobs, "train_and_score", None)  # nothing is left to run
    again = reproduce(make_plan("plug-in", [], tmp_path, quick_sessions=500), tmp_path)
    assert again["jobs"] == {"wanted": 8, "missing": 0}
    summary = json.loads((quick[0] / "summary.json").read_text())
    assert json.loads(json.dumps(again["tables"][0])) == summary["tables"][2]


def test_failures_are_shown_and_the_exit_code_says_so(
    quick: tuple[Path, CommandResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    shutil.copytree(quick[0], out)
    for path in (out / "jobs").glob("demo_stamp_*encoding*"):
        path.unlink()
    failure = Mock(side_effect=RuntimeError("out of <memory>"))
    monkeypatch.setattr(jobs, "train_and_score", failure)
    done = command("reproduce", "plug-in", "--out", out, *QUICK)
    assert done.code == 1
    assert "2 trainings failed" in done.err
    text = (out / "report.md").read_text()
    assert "RuntimeError: out of <memory>" in text
    assert "| STAMP + LDPE | failed |" in text
    assert "LDPE improves STAMP" not in text  # nothing to answer it by


def test_missing_and_ambiguous_datasets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no dataset"):
        load_datasets([])
    shop = new_shop(tmp_path / "a")
    with pytest.raises(InputError, match="same folder name"):
        load_datasets([shop, new_shop(tmp_path / "b")])
    assert "'nothing' is not known" in refused("reproduce", "nothing", "--data", shop)


@pytest.mark.parametrize(("name", "warns"), [("diginetica", True), ("shop", False)])
def test_a_report_without_any_result(tmp_path: Path, name: str, warns: bool) -> None:
    """A dataset that is named as one of the paper's and has other samples is reported."""
    data = new_shop(tmp_path / "made").rename(tmp_path / name)
    out = tmp_path / "out"
    summary = reproduce(make_plan("plug-in", [data], out), out, minutes=0)
    assert (summary["jobs"]["missing"], summary["claims"]) == (12, [])
    text = (tmp_path / "out" / "report.md").read_text()
    assert "not run yet" in text
    assert ("719,470 and 60,858: its figures don't compare" in text) == warns
