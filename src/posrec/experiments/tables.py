"""What the cells of an experiment add up to: a table a dataset, with the paper's figures and tested differences.

Differences are tested on the same test samples, whole sessions drawn together, with each sample's gain averaged over
the seeds. That asks whether other shoppers would show it too. Whether other seeds would is asked apart: a difference
counts as shown when it is also outside the 95 % interval that its seeds give. With one seed that can't be known.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import torch
from torch import Tensor

from posrec.data.sessions import PreparedDataset
from posrec.evaluation.significance import Comparison, compare_paired, gains, holm
from posrec.experiments.cells import Outcome
from posrec.experiments.compare import session_of_samples
from posrec.experiments.grid import Experiment, Row, cells_of
from posrec.experiments.paper import Figure, dataset_of, figures_of, impossible
from posrec.models.catalog import CATALOG

TESTED = ("recall@10", "mrr@10")
STUDENT = (math.inf, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31)  # 97.5 % quantiles of t by degrees of freedom


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
    comparison: Comparison
    p: float
    seed_margin: float  # half the 95 % interval of the difference over seeds; infinite where one seed is all there is
    seeds: tuple[int, int]

    @property
    def difference(self) -> float:
        return 100 * self.comparison.difference

    @property
    def shown(self) -> int:
        """1: the first is better, -1: the second is, 0: no difference shown."""
        real = self.p < 0.05 and abs(self.difference) > self.seed_margin
        return (1 if self.difference > 0 else -1) if real else 0

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
    found = [compare_paired(of[first, metric], of[second, metric], sessions, draws=0)
             for first, second, metric in tested]  # fmt: skip
    corrected = holm([comparison.p for comparison in found])
    return [
        Finding(
            *names, comparison, p, seed_margin(by_label[names[0]], by_label[names[1]], names[2]),
            (len(by_label[names[0]].outcomes), len(by_label[names[1]].outcomes)),
        )
        for names, comparison, p in zip(tested, found, corrected, strict=True)
    ]  # fmt: skip


def seed_margin(first: Line, second: Line, metric: str) -> float:
    """Half the 95 % interval of the difference of two means over seeds; a counting model has no seeds, no error."""
    drawn = [line for line in (first, second) if not CATALOG[line.row.model].counts]
    deviations = [line.deviation(metric) for line in drawn]
    if not drawn:
        return 0.0
    if None in deviations:
        return math.inf
    errors = [
        (deviation or 0.0) / math.sqrt(len(line.outcomes)) for deviation, line in zip(deviations, drawn, strict=True)
    ]
    freedom = sum(len(line.outcomes) - 1 for line in drawn)
    return STUDENT[min(freedom, len(STUDENT) - 1)] * math.hypot(*errors)
