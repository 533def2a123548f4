"""The whole of `posrec reproduce` on a tiny shop: run, continued elsewhere, reported, refused."""

import json
import re
import shutil
import tarfile
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.helpers import CommandResult, RecordingProgress, chain_shop, command, listed, own_process

from posrec.data.dataset import load
from posrec.errors import InputError
from posrec.experiments.reproduce import jobs, sentences
from posrec.experiments.reproduce.archive import pack, unpack
from posrec.experiments.reproduce.grid import ANCHORS
from posrec.experiments.reproduce.paper import SAMPLES
from posrec.experiments.reproduce.results import sample_count_warning
from posrec.experiments.reproduce.run import load_datasets, reproduce
from posrec.experiments.reproduce.tables import Table


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CommandResult]:
    """Every experiment, end to end."""
    folder = tmp_path_factory.mktemp("reproduce")
    options = ("--quick", "--quick-sessions", 500, "--device", "cpu", "--archive", folder / "jobs.tar.gz")
    return folder, command("reproduce", "all", "--out", folder / "out", *options)


def test_everything_runs_and_is_reported(quick: tuple[Path, CommandResult]) -> None:
    folder, done = quick
    assert done.code == 0, done.err
    assert "65 of 65 trainings done" in " ".join(done.out.split())
    summary = json.loads((folder / "out" / "summary.json").read_text())
    assert summary["failed"] == {}
    assert [table["experiment"] for table in summary["tables"]] == [
        "overall", "encodings", "plug-in", "anchors", "sensitivity",
    ]  # fmt: skip
    overall = summary["tables"][0]["rows"]
    assert len(overall) == 15
    assert (overall["PosRec"]["seeds"], overall["POP"]["seeds"]) == (2, 1)
    shared = summary["tables"][1]["rows"]["LDPE"]["recall@10"]
    assert shared == overall["PosRec"]["recall@10"]  # one job in two tables
    assert {one["verdict"] for one in summary["claims"]} <= {"held", "did not hold", "unclear"}


class Structure(HTMLParser):
    """Headings, and links to anything outside the page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attributes:
            if name in ("src", "href", "xlink:href") and not (value or "").startswith(("#", "data:")):
                self.outside.append(value or "")


def test_the_report_stands_alone_and_has_every_part(quick: tuple[Path, CommandResult]) -> None:
    page = (quick[0] / "out" / "report.html").read_text()
    structure = Structure()
    structure.feed(page)
    assert structure.outside == []
    # 2 panels overall, 4 each of four experiments, 4 of fixed and 2 of learned encodings
    assert structure.tags.count("svg") == 2 + 4 * 4 + 4 + 2
    assert "it says nothing about the paper" in page
    assert "prefers-color-scheme: dark" in page
    fingerprint = json.loads((quick[0] / "out" / "summary.json").read_text())["datasets"]["demo"]
    text = (quick[0] / "out" / "report.md").read_text()
    for report in (page, text):
        assert fingerprint in report
        assert "LDPE is the best encoding in PosRec" in report
    tables = [block for block in text.split("\n\n") if block.startswith("| ")]
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1
    assert len(tables) == 6


def test_the_report_says_in_words_what_held_and_how_sure(quick: tuple[Path, CommandResult]) -> None:
    page, text = ((quick[0] / "out" / name).read_text() for name in ("report.html", "report.md"))
    for report in (page, text):
        assert "Unclear: neither; a difference too small" in report
        assert re.search(r"the largest that was not, in points\. demo R@10: \d+\.\d\d and \d+\.\d\d", report)
    unclear = [
        re.search(r"<b>Unclear</b><ul>(.*?)</ul>", page),
        re.search(r"^\*\*Unclear\*\*\n\n((?:- .*\n)+)", text, re.MULTILINE),
    ]
    for group in unclear:
        assert group
        assert "LPE is slightly better than LRPE" in group[1]
    for name in ("claims", "overall", "encodings", "plug-in", "anchors", "sensitivity", "figures", "origin"):
        assert f"<a href=#{name}>" in page
        assert f"<h2 id={name}>" in page


@pytest.mark.process
def test_a_machine_that_only_runs_jobs_draws_and_tests_nothing(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    chain_shop(tmp_path / "made", seed=1, sessions=50)
    without = "matplotlib=None, polars=None, scipy=None, jinja2=None"
    code = f"import sys; sys.modules.update({without}); from posrec.cli import main; main()"
    options = ("--data", tmp_path / "made" / "data", "--out", tmp_path / "out", "--minutes", 0, "--no-report")
    done = own_process("reproduce", "all", *options, "--archive", tmp_path / "jobs.tar.gz", code=code)
    assert done.returncode == 0, done.stderr
    assert "0 of 127 trainings done" in done.stdout
    assert "report" not in done.stdout
    assert listed(tmp_path) == ["jobs.tar.gz", "made", "out"]
    assert listed(tmp_path / "out") == ["jobs"]


def test_another_machine_continues_with_the_archive(
    quick: tuple[Path, CommandResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(quick[0] / "out" / "demo-500", tmp_path / "demo-500")
    archive = tmp_path / "came.tar.gz"
    shutil.copy(quick[0] / "jobs.tar.gz", archive)
    monkeypatch.setattr(jobs, "run_job", None)  # nothing is left to run
    results = reproduce("plug-in", [], tmp_path, archive=archive, quick_sessions=500)
    assert (len(results.jobs), len(results.job_results), results.missing) == (8, 8, 0)
    summary = json.loads((quick[0] / "out" / "summary.json").read_text())
    again = json.loads((tmp_path / "summary.json").read_text())
    assert again["tables"][0]["rows"] == summary["tables"][2]["rows"]


def test_failures_are_shown_and_the_exit_code_says_so(
    quick: tuple[Path, CommandResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("out of <memory>")

    shutil.copytree(quick[0] / "out", tmp_path / "out")
    for path in (tmp_path / "out" / "jobs").glob("demo_stamp_*encoding*"):
        path.unlink()
    monkeypatch.setattr(jobs, "fit_run", fails)
    done = command("reproduce", "plug-in", "--out", tmp_path / "out", "--quick", "--quick-sessions", 500)
    assert done.code == 1
    assert "2 trainings failed" in done.err
    page, text = ((tmp_path / "out" / name).read_text() for name in ("report.html", "report.md"))
    assert "RuntimeError: out of &lt;memory&gt;" in page
    assert "| STAMP + LDPE | failed |" in text
    assert not re.search(r"LDPE improves STAMP", text)  # nothing to answer it by


def test_a_result_replaces_a_failure_from_another_machine(tmp_path: Path) -> None:
    job = {"dataset": "shop", "model": "pop", "settings": {}, "seed": 0}
    for name, record in (("well", job | {"metrics": {"mrr@10": 1.0}}), ("badly", job | {"error": "out of memory"})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shop_pop_seed-0.json").write_text(json.dumps(record))
    (tmp_path / "well" / "shop_pop_seed-0.npz").write_bytes(b"ranks")
    for name in ("well", "badly"):
        pack(tmp_path / name, tmp_path / f"{name}.tar.gz")
    unpack(tmp_path / "badly.tar.gz", tmp_path / "well")
    unpack(tmp_path / "well.tar.gz", tmp_path / "badly")
    for name in ("well", "badly"):
        (result,) = jobs.load_results(tmp_path / name).values()
        assert result.metrics == {"mrr@10": 1.0}
        assert result.path.with_suffix(".npz").read_bytes() == b"ranks"


def test_only_job_files_are_taken_from_an_archive(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as file:
        for name in ("job.json", "../outside.json", "run.sh", "deep/job.json"):
            file.add(tmp_path / "a.json", name)
    (tmp_path / "jobs").mkdir()
    unpack(tmp_path / "evil.tar.gz", tmp_path / "jobs")
    assert [path.name for path in (tmp_path / "jobs").iterdir()] == ["job.json"]
    assert not (tmp_path / "outside.json").exists()
    (tmp_path / "half.tar.gz").write_bytes((tmp_path / "evil.tar.gz").read_bytes()[:40])
    (tmp_path / "jobs" / "job.json").unlink()  # "{}" is not the result of a job
    with pytest.raises(InputError, match=r"half\.tar\.gz can't be read"):
        unpack(tmp_path / "half.tar.gz", tmp_path / "jobs")


def test_missing_and_ambiguous_datasets_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no dataset"):
        load_datasets([])
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        chain_shop(tmp_path / name, seed=1, sessions=50)
    with pytest.raises(InputError, match="same folder name"):
        load_datasets([tmp_path / "a" / "data", tmp_path / "b" / "data"])
    assert command("reproduce", "nothing", "--data", tmp_path / "a" / "data").code == 2


def test_a_dataset_with_other_samples_than_the_papers_is_reported(tmp_path: Path) -> None:
    data = chain_shop(tmp_path, seed=1, sessions=50)
    assert "719,470 and 60,858: its figures don't compare" in (sample_count_warning("diginetica", data) or "")
    assert sample_count_warning("shop", load(data.path)) is None
    assert SAMPLES.keys() == {"yoochoose1_64", "yoochoose1_4", "diginetica"}


def test_a_report_without_any_result(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    data = chain_shop(tmp_path / "shop", seed=1, sessions=50)
    recorded = RecordingProgress()
    results = reproduce("plug-in", [data.path], tmp_path / "out", minutes=0, progress=recorded)
    assert (results.missing, results.answers) == (12, [])
    assert "not run yet" in (tmp_path / "out" / "report.md").read_text()


def test_the_report_says_why_there_are_no_figures_of_the_paper() -> None:
    """Of a shop of one's own it has nothing; of its own datasets only some experiments are without numbers."""
    for dataset, said in (("shop", sentences.NOT_IN_PAPER), ("diginetica", sentences.NO_NUMBERS)):
        assert sentences.why_no_paper_figures(Table(ANCHORS, dataset, (), ())) == said
