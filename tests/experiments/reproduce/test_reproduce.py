"""The whole of `posrec reproduce` on a tiny shop: run, gone on with elsewhere, reported, refused."""

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
from posrec.experiments.reproduce import jobs as cells
from posrec.experiments.reproduce import sentences as words
from posrec.experiments.reproduce.grid import ANCHORS
from posrec.experiments.reproduce.paper import SAMPLES
from posrec.experiments.reproduce.run import differs, open_all, pack, reproduce, unpack
from posrec.experiments.reproduce.tables import Table


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CommandResult]:
    """Every experiment, end to end."""
    folder = tmp_path_factory.mktemp("reproduce")
    options = ("--quick", "--quick-sessions", 500, "--device", "cpu", "--archive", folder / "cells.tar.gz")
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
    assert shared == overall["PosRec"]["recall@10"]  # one cell in two tables
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


def test_a_machine_that_only_runs_cells_draws_and_tests_nothing(tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    chain_shop(tmp_path / "made", seed=1, sessions=50)
    code = "import sys; sys.modules.update(matplotlib=None, polars=None); from posrec.cli import main; main()"
    options = ("--data", tmp_path / "made" / "data", "--out", tmp_path / "out", "--minutes", 0, "--no-report")
    done = own_process("reproduce", "all", *options, "--archive", tmp_path / "cells.tar.gz", code=code)
    assert done.returncode == 0, done.stderr
    assert "0 of 127 trainings done" in done.stdout
    assert "report" not in done.stdout
    assert listed(tmp_path) == ["cells.tar.gz", "made", "out"]
    assert listed(tmp_path / "out") == ["cells"]


def test_another_machine_goes_on_with_the_archive(
    quick: tuple[Path, CommandResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(quick[0] / "out" / "demo-500", tmp_path / "demo-500")
    archive = tmp_path / "came.tar.gz"
    shutil.copy(quick[0] / "cells.tar.gz", archive)
    monkeypatch.setattr(cells, "run_cell", None)  # nothing is left to run
    results = reproduce("plug-in", [], tmp_path, archive=archive, quick_sessions=500)
    assert (len(results.cells), len(results.outcomes), results.missing) == (8, 8, 0)
    summary = json.loads((quick[0] / "out" / "summary.json").read_text())
    again = json.loads((tmp_path / "summary.json").read_text())
    assert again["tables"][0]["rows"] == summary["tables"][2]["rows"]


def test_failures_are_shown_and_the_exit_code_says_so(
    quick: tuple[Path, CommandResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("out of <memory>")

    shutil.copytree(quick[0] / "out", tmp_path / "out")
    for path in (tmp_path / "out" / "cells").glob("demo_stamp_*encoding*"):
        path.unlink()
    monkeypatch.setattr(cells, "fit_run", fails)
    done = command("reproduce", "plug-in", "--out", tmp_path / "out", "--quick", "--quick-sessions", 500)
    assert done.code == 1
    assert "2 trainings failed" in done.err
    page, text = ((tmp_path / "out" / name).read_text() for name in ("report.html", "report.md"))
    assert "RuntimeError: out of &lt;memory&gt;" in page
    assert "| STAMP + LDPE | failed |" in text
    assert not re.search(r"LDPE improves STAMP", text)  # nothing to answer it by


def test_where_one_machine_failed_anothers_cell_counts(tmp_path: Path) -> None:
    cell = {"dataset": "shop", "model": "pop", "settings": {}, "seed": 0}
    for name, record in (("well", cell | {"metrics": {"mrr@10": 1.0}}), ("badly", cell | {"error": "out of memory"})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shop_pop_seed-0.json").write_text(json.dumps(record))
    (tmp_path / "well" / "shop_pop_seed-0.npz").write_bytes(b"ranks")
    for name in ("well", "badly"):
        pack(tmp_path / name, tmp_path / f"{name}.tar.gz")
    unpack(tmp_path / "badly.tar.gz", tmp_path / "well")
    unpack(tmp_path / "well.tar.gz", tmp_path / "badly")
    for name in ("well", "badly"):
        (outcome,) = cells.saved(tmp_path / name).values()
        assert outcome.metrics == {"mrr@10": 1.0}
        assert outcome.path.with_suffix(".npz").read_bytes() == b"ranks"


def test_an_archive_brings_cells_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as file:
        for name in ("cell.json", "../outside.json", "run.sh", "deep/cell.json"):
            file.add(tmp_path / "a.json", name)
    (tmp_path / "cells").mkdir()
    unpack(tmp_path / "evil.tar.gz", tmp_path / "cells")
    assert [path.name for path in (tmp_path / "cells").iterdir()] == ["cell.json"]
    assert not (tmp_path / "outside.json").exists()
    (tmp_path / "half.tar.gz").write_bytes((tmp_path / "evil.tar.gz").read_bytes()[:40])
    (tmp_path / "cells" / "cell.json").unlink()  # "{}" is no cell
    with pytest.raises(InputError, match=r"half\.tar\.gz can't be read"):
        unpack(tmp_path / "half.tar.gz", tmp_path / "cells")


def test_what_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no dataset"):
        open_all([])
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        chain_shop(tmp_path / name, seed=1, sessions=50)
    with pytest.raises(InputError, match="same folder name"):
        open_all([tmp_path / "a" / "data", tmp_path / "b" / "data"])
    assert command("reproduce", "nothing", "--data", tmp_path / "a" / "data").code == 2


def test_a_dataset_that_is_not_the_papers_is_told(tmp_path: Path) -> None:
    data = chain_shop(tmp_path, seed=1, sessions=50)
    assert "719,470 and 60,858: its figures don't compare" in (differs("diginetica", data) or "")
    assert differs("shop", load(data.path)) is None
    assert SAMPLES.keys() == {"yoochoose1_64", "yoochoose1_4", "diginetica"}


def test_time_is_up_before_anything(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    data = chain_shop(tmp_path / "shop", seed=1, sessions=50)
    heard = RecordingProgress()
    results = reproduce("plug-in", [data.path], tmp_path / "out", minutes=0, progress=heard)
    assert (results.missing, results.answers) == (12, [])
    assert "not run yet" in (tmp_path / "out" / "report.md").read_text()


def test_what_the_paper_does_not_say_is_not_put_in_its_mouth() -> None:
    """Of a shop of one's own it has nothing; of its own datasets only some experiments are without numbers."""
    for dataset, said in (("shop", words.NOT_THERE), ("diginetica", words.NO_NUMBERS)):
        assert words.nothing_beside(Table(ANCHORS, dataset, (), ())) == said
