"""Several models side by side on one dataset: trained alike, ranked on the same samples, tested pair by pair."""

from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError
from posrec.evaluation.breakdown import by_first_repeat, by_length, first_repeats
from posrec.evaluation.evaluate import Evaluation
from posrec.evaluation.significance import Comparison, compare_paired, gains, holm
from posrec.fitting import fit_run
from posrec.io import write_json, write_text
from posrec.models.lookup import find_spec
from posrec.progress import Progress

TESTED = (("recall", 20), ("mrr", 20))


@dataclass(frozen=True)
class Pair:
    """How two models differ in one metric; `corrected` is p after Holm's correction over all pairs and metrics."""

    first: str
    second: str
    metric: str
    comparison: Comparison
    corrected: float

    @property
    def p_shown(self) -> str:
        return "< 0.001" if self.corrected < 0.001 else f"{self.corrected:.3f}"

    @property
    def verdict(self) -> str:
        if self.corrected >= 0.05:
            return "no difference shown"
        return f"{self.first if self.comparison.difference > 0 else self.second} is better"


@dataclass(frozen=True)
class Outcome:
    metrics: dict[str, dict[str, float]]  # by model
    pairs: list[Pair]
    lengths: dict[str, dict[str, dict[str, float]]]  # by model, by session length
    repeats: dict[str, dict[str, dict[str, float]]]  # by model, by position of the first repeat


def compare(
    data: PreparedDataset,
    models: list[str],
    out: Path,
    settings: dict[str, Any] | None = None,
    device: str = "auto",
    progress: Progress | None = None,
) -> Outcome:
    """Train and evaluate each model into `out/<model>`; write `comparison.json` and `report.html`."""
    from posrec.experiments.compare_report import report

    names = [model.rpartition(":")[2] for model in models]  # my_model.py:MINE is called MINE
    if len(set(names)) < 2 or len(set(names)) < len(names):
        raise InputError(f"--models {','.join(models)}: name at least two different models, separated by commas")
    specs = [find_spec(model) for model in models]
    progress = progress or Progress()
    evaluations: dict[str, Evaluation] = {}
    for name, model, spec in zip(names, models, specs, strict=True):
        progress.message(f"{name}:")
        own = {} if not spec.is_trained else settings
        evaluations[name] = fit_run(data, model, out / name, own, device, progress=progress)[1]
    outcome = examine(evaluations, data)
    write_json(out / "comparison.json", {"dataset": data.fingerprint, **asdict(outcome)})
    write_text(out / "report.html", report(outcome, data))
    return outcome


def examine(evaluations: dict[str, Evaluation], data: PreparedDataset) -> Outcome:
    """Everything that can be said of several rankings of the same samples."""
    sessions = session_of_samples(data)
    repeats = first_repeats(data.test)
    tests: list[tuple[str, str, str, Comparison]] = []
    for first, second in combinations(evaluations, 2):
        for metric, k in TESTED:
            ours, theirs = (gains(evaluations[name].ranks, metric, k) for name in (first, second))
            tests.append((first, second, f"{metric}@{k}", compare_paired(ours, theirs, sessions)))
    corrected = holm([comparison.p for *_, comparison in tests])
    pairs = [Pair(*test, p) for test, p in zip(tests, corrected, strict=True)]
    return Outcome(
        {name: evaluation.metrics for name, evaluation in evaluations.items()},
        pairs,
        {name: by_length(evaluation.ranks, evaluation.lengths) for name, evaluation in evaluations.items()},
        {name: by_first_repeat(evaluation.ranks, repeats) for name, evaluation in evaluations.items()},
    )


def session_of_samples(data: PreparedDataset) -> Tensor:
    return torch.repeat_interleave(torch.arange(data.test.sessions), data.test.lengths - 1)
