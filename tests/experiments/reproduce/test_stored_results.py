"""The results in results/reproduction: the report's numbers are those of its jobs."""

import json
import tarfile
from pathlib import Path
from statistics import fmean

import pytest
import torch

from posrec.evaluation.metrics import rank_metrics
from posrec.experiments.reproduce.grid import EXPERIMENTS, jobs_of
from posrec.experiments.reproduce.jobs import load_result
from posrec.experiments.reproduce.paper import METRICS
from posrec.experiments.reproduce.report import markdown_report
from tests.helpers import ROOT

STORED = ROOT / "results" / "reproduction"


SUMMARY = json.loads((STORED / "summary.json").read_text(encoding="utf-8"))


def test_the_report_is_that_of_the_summary() -> None:
    report = (STORED / "report.md").read_text(encoding="utf-8")
    assert markdown_report(SUMMARY) == report
    assert all((STORED / name).is_file() for name in SUMMARY["figures"])


@pytest.mark.slow
def test_metrics_average_to_the_rows_of_the_summary_and_ranks_give_the_metrics(
    tmp_path: Path,
) -> None:
    with tarfile.open(STORED / "jobs.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    assert len(list(tmp_path.glob("*.json"))) == SUMMARY["jobs"]["wanted"]
    for table in SUMMARY["tables"]:
        for row in EXPERIMENTS[table["experiment"]].rows:
            jobs = jobs_of(row, table["dataset"], SUMMARY["seeds"])
            results = [load_result(job, tmp_path) for job in jobs]
            for metric in results[0].metrics:
                mean = fmean(result.metrics[metric] for result in results)
                stored = table["rows"][row.label][metric][0]
                assert stored == pytest.approx(mean, abs=0.0051), row.label
            by_ranks = rank_metrics(torch.from_numpy(results[0].arrays()["ranks"]))
            for metric in METRICS:
                stored = results[0].metrics[metric]
                assert 100 * by_ranks[metric] == pytest.approx(stored, abs=1e-4)


def test_results_are_small() -> None:
    """They are part of every clone."""
    files = [path for path in STORED.parent.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 5_000_000
