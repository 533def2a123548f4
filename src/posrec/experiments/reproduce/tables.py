"""A table for each experiment and dataset: means over seeds, the paper's figures, tested
differences.

Differences are tested on the same samples, each sample's gain averaged over the seeds. The
variances over sessions and over seeds are added, so that a difference that is shown would be there
with others. With one seed of a trained model its variance is unknown, and no difference is shown.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError
from posrec.evaluation.metrics import gains
from posrec.evaluation.significance import (
    combine_errors,
    compare_paired,
    error_over_seeds,
    holm,
    session_of_samples,
)
from posrec.experiments.reproduce.grid import Experiment, jobs_of
from posrec.experiments.reproduce.jobs import JobResult
from posrec.experiments.reproduce.paper import dataset_of, figures_of
from posrec.models.registry import MODELS

TESTED = ("recall@10", "mrr@10")
ROUNDING = 0.001  # of a recorded metric, in points of percent
Pairs = Sequence[tuple[str, str]]
Runs = Sequence[JobResult]  # the results of a row, one for each seed


def make_table(
    experiment: Experiment,
    data: PreparedDataset,
    dataset: str,
    results: Mapping[str, JobResult],
    pairs: Pairs,
    seeds: int,
    shared_settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A table as in summary.json; `pairs` of rows are tested."""
    rows = {}
    runs_by_row: dict[str, Runs] = {}
    for row in experiment.rows:
        jobs = jobs_of(row, dataset, seeds, shared_settings)
        done = [results[job.name] for job in jobs if job.name in results]
        runs = [result for result in done if not result.error]
        runs_by_row[row.label] = runs
        metrics = runs[0].metrics if runs else ()
        rows[row.label] = {
            "seeds": len(runs),
            "wanted": len(jobs),
            "failed": len(done) - len(runs),
            **{metric: mean_and_deviation(runs, metric) for metric in metrics},
            "paper": figures_of(experiment.name, dataset_of(dataset), row.label),
        }
    return {
        "experiment": experiment.name,
        "dataset": dataset,
        "rows": rows,
        "findings": find_differences(runs_by_row, pairs, data),
    }


def mean_and_deviation(runs: Runs, metric: str) -> list[float]:
    values = [run.metrics[metric] for run in runs]
    figures = [mean(values)]
    if len(values) > 1:
        figures.append(stdev(values))
    return [round(figure, 2) for figure in figures]


def find_differences(
    runs_by_row: Mapping[str, Runs],
    pairs: Pairs,
    data: PreparedDataset,
    metrics: Sequence[str] = TESTED,
) -> list[dict[str, Any]]:
    """Test the pairs of which both rows have results; Holm's correction covers all.

    A difference is in points of percent; its margin is half its 95 % interval, or None if unknown.
    """

    @cache
    def mean_gains(label: str, metric: str) -> Tensor:
        return gains_over_seeds(label, runs_by_row[label], metric)

    sessions = session_of_samples(data.test)
    findings: list[dict[str, Any]] = []
    for (first, second), metric in product(pairs, metrics):
        first_runs = runs_by_row[first]
        second_runs = runs_by_row[second]
        if not first_runs or not second_runs:
            continue
        over_sessions = compare_paired(
            mean_gains(first, metric), mean_gains(second, metric), sessions
        )
        over_seeds = [seed_error(runs, metric) for runs in (first_runs, second_runs)]
        known = [source for source in over_seeds if source is not None]
        points, half, p = combine_errors(over_sessions, data.test.sessions, known)
        findings.append(
            {
                "first": first,
                "second": second,
                "metric": metric,
                "difference": points,
                "margin": half if known == over_seeds else None,
                "p": p if known == over_seeds else 1.0,
                "seeds": [len(first_runs), len(second_runs)],
            }
        )
    corrected = holm([finding["p"] for finding in findings])
    return [{**finding, "p": p} for finding, p in zip(findings, corrected, strict=True)]


def gains_over_seeds(label: str, runs: Runs, metric: str) -> Tensor:
    """[samples] what each sample adds to a metric, on average over the seeds.

    The ranks in results/reproduction reach to 10: a metric at 20 raises an InputError.
    """
    name, _, k = metric.partition("@")
    ranks = [torch.from_numpy(run.arrays()["ranks"]) for run in runs]
    by_seed = [gains(run_ranks, name, int(k)) for run_ranks in ranks]
    by_sample = torch.stack(by_seed).mean(0)
    recorded = mean(run.metrics[metric] for run in runs)
    if abs(100 * float(by_sample.mean()) - recorded) > ROUNDING:
        raise InputError(
            f"the ranks of {label} are not those of its {metric}; run its jobs again"
        )
    return by_sample


def seed_error(runs: Runs, metric: str) -> tuple[float, float] | None:
    """The standard error of a row's mean over seeds, and its degrees of freedom, if known."""
    if not MODELS[runs[0].job.model].is_trained:
        return 0.0, math.inf
    if len(runs) == 1:
        return None
    return error_over_seeds([run.metrics[metric] for run in runs])
