"""What the cells of an experiment add up to: a table a dataset, with the paper's figures and tested differences.

Differences are tested on the same test samples, each sample's gain averaged over the seeds. Two things could make one
by chance: the shoppers, whose samples of one session are not independent, and the seeds. Their errors are added, so
that a difference that is shown would be there with other shoppers and other seeds. With one seed that can't be known.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from posrec.data.dataset import PreparedDataset
from posrec.evaluation.significance import Comparison, compare_paired, gains, holm, p_of
from posrec.evaluation.student import margin_of, welch
from posrec.experiments.compare import session_of_samples
from posrec.experiments.reproduce.grid import Experiment, Row, cells_of
from posrec.experiments.reproduce.jobs import Outcome
from posrec.experiments.reproduce.paper import Figure, dataset_of, figures_of, impossible
from posrec.models.registry import MODELS

TESTED = ("recall@10", "mrr@10")


@dataclass(frozen=True)
class Line:
    """A row with its seeds' figures in percent, `values[metric]`, and the paper's."""

    row: Row
    outcomes: tuple[Outcome, ...]
    wanted: int
    failures: tuple[Outcome, ...]
    paper: dict[str, Figure]

    @property
    def impossible(self) -> dict[str, str]:
        return impossible(self.paper)

    def values(self, metric: str) -> list[float]:
        return [outcome.metrics[metric] for outcome in self.outcomes]

    def mean(self, metric: str) -> float:
        return mean(self.values(metric))

    def deviation(self, metric: str) -> float | None:
        """Over seeds; None with fewer than two."""
        return stdev(self.values(metric)) if len(self.outcomes) > 1 else None

    def over_paper(self, metric: str) -> float | None:
        return self.mean(metric) - self.paper[metric][0] if metric in self.paper and self.outcomes else None


@dataclass(frozen=True)
class Finding:
    """`first` against `second` in one metric, in points of percent; p is corrected over its table."""

    first: str
    second: str
    metric: str
    difference: float
    margin: float  # half of its 95 % interval; infinite where one seed is all there is
    p: float
    seeds: tuple[int, int]

    @property
    def shown(self) -> int:
        """1: the first is better, -1: the second is, 0: no difference shown."""
        return 0 if self.p >= 0.05 else 1 if self.difference > 0 else -1

    @property
    def p_shown(self) -> str:
        return "p < 0.001" if self.p < 0.001 else f"p = {self.p:.3f}"


@dataclass(frozen=True)
class Table:
    experiment: Experiment
    dataset: str  # the prepared folder's name
    lines: tuple[Line, ...]
    findings: tuple[Finding, ...]

    @property
    def of_paper(self) -> str | None:
        return dataset_of(self.dataset)

    def line(self, label: str) -> Line:
        return next(line for line in self.lines if line.row.label == label)

    def best(self, metric: str) -> float:
        return max((line.mean(metric) for line in self.lines if line.outcomes), default=math.nan)


Pairs = Sequence[tuple[str, str]]


def make_table(
    experiment: Experiment,
    data: PreparedDataset,
    dataset: str,
    outcomes: Mapping[str, Outcome],
    pairs: Pairs,
    seeds: int,
    everywhere: Mapping[str, Any] | None = None,
) -> Table:
    """The table of `experiment` on one dataset, as far as its cells are there; `pairs` are tested."""
    lines = []
    for row in experiment.rows:
        cells = cells_of(row, dataset, seeds, everywhere)
        there = [outcomes[cell.name] for cell in cells if cell.name in outcomes]
        figures = figures_of(experiment.name, dataset_of(dataset), row.label)
        well, failed = (tuple(one for one in there if bool(one.error) == bad) for bad in (False, True))
        lines.append(Line(row, well, len(cells), failed, figures))
    return Table(experiment, dataset, tuple(lines), tuple(find(lines, pairs, data)))


def find(lines: Sequence[Line], pairs: Pairs, data: PreparedDataset) -> list[Finding]:
    """Test the pairs whose both sides are there; Holm's correction goes over all of them and both metrics."""
    by_label = {line.row.label: line for line in lines if line.outcomes}
    sessions = session_of_samples(data)
    of: dict[tuple[str, str], Tensor] = {}
    for label in dict.fromkeys(label for pair in pairs for label in pair):
        if label in by_label:
            ranks = [torch.from_numpy(outcome.ranks()) for outcome in by_label[label].outcomes]
            for metric in TESTED:
                name, _, k = metric.partition("@")
                of[label, metric] = torch.stack([gains(one, name, int(k)) for one in ranks]).mean(0)
    tested = [(first, second, metric) for first, second in pairs for metric in TESTED
              if first in by_label and second in by_label]  # fmt: skip
    found = []
    for first, second, metric in tested:
        over_sessions = compare_paired(of[first, metric], of[second, metric], sessions, draws=0)
        over_seeds = [seed_error(by_label[label], metric) for label in (first, second)]
        found.append(added_up(over_sessions, data.test.sessions, over_seeds))
    corrected = holm([p for _, _, p in found])
    return [
        Finding(
            first, second, metric, points, margin, p, (len(by_label[first].outcomes), len(by_label[second].outcomes))
        )
        for (first, second, metric), (points, margin, _), p in zip(tested, found, corrected, strict=True)
    ]


def added_up(
    over_sessions: Comparison, sessions: int, over_seeds: Sequence[tuple[float, float]]
) -> tuple[float, float, float]:
    """A difference, half its 95 % interval, both in points, and its p, with the errors of sessions and of seeds."""
    points = 100 * over_sessions.difference
    if any(math.isinf(error) for error, _ in over_seeds):
        return points, math.inf, 1.0
    error, freedom = welch([(100 * over_sessions.error, sessions - 1), *over_seeds])
    return points, margin_of(freedom) * error, p_of(points, error, freedom)


def seed_error(line: Line, metric: str) -> tuple[float, float]:
    """The standard error of a row's mean over seeds, and its degrees of freedom; a counting model draws nothing."""
    if not MODELS[line.row.model].is_trained:
        return 0.0, math.inf
    deviation, seeds = line.deviation(metric), len(line.outcomes)
    return (math.inf, 0.0) if deviation is None else (deviation / math.sqrt(seeds), seeds - 1)
