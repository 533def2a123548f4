"""The results of an experiment on all datasets: what the reports and the summary are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from posrec.data.dataset import PreparedDataset
from posrec.experiments.reproduce.claims import Answer
from posrec.experiments.reproduce.grid import FIGURES
from posrec.experiments.reproduce.paper import METRICS, SAMPLES, TITLES, dataset_of
from posrec.experiments.reproduce.saved_results import Job, JobResult
from posrec.experiments.reproduce.tables import Finding, Line, Table

# For every model that has the setting: everything is run, nothing is trained to the end.
QUICK = {"d": 16, "hidden": 16, "epochs": 1, "batch_size": 256, "learning_rate": 0.01, "max_length": 10}


@dataclass(frozen=True)
class Results:
    experiment: str
    datasets: Mapping[str, PreparedDataset]  # by the folder's name
    tables: list[Table]
    answers: list[Answer]
    job_results: Mapping[str, JobResult]  # by the job's name
    jobs: Sequence[Job]  # those that the experiment asks for
    seeds: int
    quick: bool

    @property
    def failures(self) -> list[JobResult]:
        return [result for result in self.job_results.values() if result.error]

    @property
    def missing(self) -> int:
        return len(self.jobs) - len(self.job_results)

    @property
    def shows_encodings(self) -> bool:
        """Whether section 5.5 is part of it."""
        return self.experiment in (FIGURES.name, "all")

    @property
    def shared_settings(self) -> dict[str, Any]:
        return QUICK if self.quick else {}

    def title(self, dataset: str) -> str:
        """The paper's name of a dataset; the folder's name for any other."""
        return TITLES.get(dataset_of(dataset) or "", dataset)

    def records(self, key: str) -> list[str]:
        """The distinct values of a key in the jobs' records, sorted."""
        return sorted({str(result.record[key]) for result in self.job_results.values()})

    @property
    def seconds(self) -> float:
        return sum(float(result.record["total_seconds"]) for result in self.job_results.values())

    def summary(self) -> dict[str, Any]:
        """The report's figures for programs: tables, findings, answers, and where they come from."""
        return {
            "experiment": self.experiment,
            "seeds": self.seeds,
            "quick": self.quick,
            "datasets": {name: data.fingerprint for name, data in self.datasets.items()},
            "machines": self.records("machine"),
            "versions": {key: self.records(key) for key in ("posrec", "torch", "python")},
            "seconds": round(self.seconds, 1),
            "jobs": {"wanted": len(self.jobs), "missing": self.missing},
            "failed": {result.job.name: result.error for result in self.failures},
            "tables": [
                {
                    "experiment": table.experiment.name,
                    "dataset": table.dataset,
                    "rows": {line.row.label: line_summary(line) for line in table.lines},
                    "findings": [asdict(without_infinity(finding)) for finding in table.findings],
                }
                for table in self.tables
            ],
            "claims": [
                {"claim": answer.claim.text, "dataset": answer.dataset, "metric": answer.metric,
                 "verdict": answer.verdict, "evidence": answer.evidence}
                for answer in self.answers
            ],
        }  # fmt: skip


def without_infinity(finding: Finding) -> Any:
    """JSON has no infinity: the margin of a single seed, which is unknown, is written as null."""
    return replace(finding, margin=None) if finding.margin == float("inf") else finding  # type: ignore[arg-type]


def line_summary(line: Line) -> dict[str, Any]:
    if not line.results:
        return {"seeds": 0}
    figures = {metric: [round(line.mean(metric), 2), *([round(deviation, 2)] if deviation is not None else [])]
               for metric in METRICS for deviation in [line.deviation(metric)]}  # fmt: skip
    return {"seeds": len(line.results), **figures, "paper": {name: list(figure) for name, figure in line.paper.items()}}


def sample_count_warning(name: str, data: PreparedDataset) -> str | None:
    """A sentence where a dataset with a name of the paper's has other numbers of samples."""
    expected = SAMPLES.get(dataset_of(name) or "")
    if expected in (None, (len(data.train), len(data.test))):
        return None
    return (
        f"{name} has {len(data.train):,} training and {len(data.test):,} test samples where the paper has "
        f"{expected[0]:,} and {expected[1]:,}: its figures don't compare."
    )
