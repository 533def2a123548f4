"""A table for each experiment and dataset: means over seeds, the paper's figures, and tested differences.

Differences are tested on the same test samples, each sample's gain averaged over the seeds. A difference can arise by
chance from two sources: the sessions (the samples of one session are not independent), and the seeds. The variances of
both are added, so that a difference that is shown would be there with other sessions and other seeds. With one seed of
a trained model the variance over seeds is unknown, and no difference is shown.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError
from posrec.evaluation.metrics import gains
from posrec.evaluation.significance import (
    Comparison,
    compare_paired,
    holm,
    margin,
    session_of_samples,
    two_sided_p,
    welch,
)
from posrec.experiments.reproduce.grid import Experiment, TableRow, jobs_of
from posrec.experiments.reproduce.jobs import JobResult
from posrec.experiments.reproduce.paper import dataset_of, figures_of
from posrec.models.registry import MODELS

TESTED = ("recall@10", "mrr@10")
ROUNDING = 0.001  # of a recorded metric, in points of percent


@dataclass(frozen=True)
class Line:
    """A row of a table with the results of its seeds, in percent."""

    row: TableRow
    results: tuple[JobResult, ...]

    def values(self, metric: str) -> list[float]:
        return [result.metrics[metric] for result in self.results]

    def mean(self, metric: str) -> float:
        return mean(self.values(metric))

    def deviation(self, metric: str) -> float | None:
        """The standard deviation over seeds; None with fewer than two."""
        return stdev(self.values(metric)) if len(self.results) > 1 else None

    def figures(self) -> dict[str, list[float]]:
        """For each metric its mean over seeds, and its deviation where there is one."""
        figures = {}
        for metric in self.results[0].metrics if self.results else ():
            both = (self.mean(metric), self.deviation(metric))
            figures[metric] = [round(value, 2) for value in both if value is not None]
        return figures


@dataclass(frozen=True)
class Finding:
    """The difference of `first` and `second` in one metric, in points of percent; p is corrected over its table."""

    first: str
    second: str
    metric: str
    difference: float
    margin: float | None  # half the width of the 95 % interval; None, unknown, with one seed of a trained model
    p: float
    seeds: tuple[int, int]


Pairs = Sequence[tuple[str, str]]


def make_table(
    experiment: Experiment,
    data: PreparedDataset,
    dataset: str,
    results: Mapping[str, JobResult],
    pairs: Pairs,
    seeds: int,
    shared_settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The table of `experiment` on one dataset, as in summary.json, from the results there are; `pairs` of rows are
    tested. `dataset` is the prepared folder's name."""
    rows, lines = {}, []
    for row in experiment.rows:
        jobs = jobs_of(row, dataset, seeds, shared_settings)
        done = [results[job.name] for job in jobs if job.name in results]
        line = Line(row, tuple(result for result in done if not result.error))
        lines.append(line)
        rows[row.label] = {
            "seeds": len(line.results),
            "wanted": len(jobs),
            "failed": len(done) - len(line.results),
            **line.figures(),
            "paper": figures_of(experiment.name, dataset_of(dataset), row.label),
        }
    findings = [asdict(finding) for finding in find_differences(lines, pairs, data)]
    return {"experiment": experiment.name, "dataset": dataset, "rows": rows, "findings": findings}


def find_differences(
    lines: Sequence[Line], pairs: Pairs, data: PreparedDataset, metrics: Sequence[str] = TESTED
) -> list[Finding]:
    """Test the pairs of which both rows have results; Holm's correction covers all pairs and metrics.

    The ranks in results/reproduction reach to 10: they can't test a metric at 20, and raise an InputError.
    """
    by_label = {line.row.label: line for line in lines if line.results}
    mean_gains: dict[tuple[str, str], Tensor] = {}  # by row and metric, [samples]
    for label in dict.fromkeys(label for pair in pairs for label in pair):
        if label in by_label:
            ranks = [torch.from_numpy(result.ranks()) for result in by_label[label].results]
            for metric in metrics:
                name, _, k = metric.partition("@")
                gained = torch.stack([gains(one, name, int(k)) for one in ranks]).mean(0)
                if abs(100 * float(gained.mean()) - by_label[label].mean(metric)) > ROUNDING:
                    raise InputError(f"the ranks of {label} are not those of its {metric}; run its jobs again")
                mean_gains[label, metric] = gained
    both_run = [(first, second) for first, second in pairs if first in by_label and second in by_label]
    tested = [(first, second, metric) for first, second in both_run for metric in metrics]
    sessions = session_of_samples(data.test)
    differences = []
    for first, second, metric in tested:
        gains_of = (mean_gains[first, metric], mean_gains[second, metric])
        over_sessions = compare_paired(*gains_of, sessions)
        over_seeds = [seed_error(by_label[label], metric) for label in (first, second)]
        differences.append(combine_errors(over_sessions, data.test.sessions, over_seeds))
    corrected = holm([p for _, _, p in differences])
    return [
        Finding(first, second, metric, points, half, p, (len(by_label[first].results), len(by_label[second].results)))
        for (first, second, metric), (points, half, _), p in zip(tested, differences, corrected, strict=True)
    ]


def combine_errors(
    over_sessions: Comparison, sessions: int, over_seeds: Sequence[tuple[float, float]]
) -> tuple[float, float | None, float]:
    """A difference and half its 95 % interval, both in points of percent, and its p, from all sources of error."""
    points = 100 * over_sessions.difference
    if any(math.isinf(error) for error, _ in over_seeds):
        return points, None, 1.0
    error, freedom = welch([(100 * over_sessions.error, sessions - 1), *over_seeds])
    return points, margin(error, freedom), two_sided_p(points, error, freedom)


def seed_error(line: Line, metric: str) -> tuple[float, float]:
    """The standard error of a row's mean over seeds, and its degrees of freedom; counting models have no error."""
    if not MODELS[line.row.model].is_trained:
        return 0.0, math.inf
    deviation, seeds = line.deviation(metric), len(line.results)
    return (math.inf, 0.0) if deviation is None else (deviation / math.sqrt(seeds), seeds - 1)
