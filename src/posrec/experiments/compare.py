"""Several models on one dataset: trained with the same settings, ranked on the same samples, tested pair by pair."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError
from posrec.evaluation.breakdown import by_first_repeat, by_length, first_repeats
from posrec.evaluation.evaluate import Evaluation
from posrec.evaluation.significance import Comparison, compare_paired, gains, holm, session_of_samples
from posrec.experiments.rendering import new_figure, render, svg
from posrec.fitting import fit_run
from posrec.io import write_json, write_text
from posrec.models.lookup import find_spec
from posrec.progress import Progress

TESTED = (("recall", 20), ("mrr", 20))


@dataclass(frozen=True)
class PairedTest:
    """How two models differ in one metric; `corrected` is p after Holm's correction over all pairs and metrics."""

    first: str
    second: str
    metric: str
    comparison: Comparison
    corrected: float

    @property
    def p_text(self) -> str:
        return "< 0.001" if self.corrected < 0.001 else f"{self.corrected:.3f}"

    @property
    def verdict(self) -> str:
        if self.corrected >= 0.05:
            return "no difference shown"
        return f"{self.first if self.comparison.difference > 0 else self.second} is better"


@dataclass(frozen=True)
class ComparisonResult:
    metrics: dict[str, dict[str, float]]  # by model
    pairs: list[PairedTest]
    lengths: dict[str, dict[str, dict[str, float]]]  # by model, by session length
    repeats: dict[str, dict[str, dict[str, float]]]  # by model, by position of the first repeat


def compare(
    data: PreparedDataset,
    models: list[str],
    out: Path,
    settings: dict[str, Any] | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    own_settings: Mapping[str, dict[str, Any]] | None = None,
) -> ComparisonResult:
    """Train and evaluate each model into `out/<model>`; write `comparison.json` and `report.html`.

    `settings` are for every trained model, `own_settings` for the model of that name on top.
    """
    names = [model.rpartition(":")[2] for model in models]  # my_model.py:MINE is called MINE
    if len(set(names)) < 2 or len(set(names)) < len(names):
        raise InputError(f"--models {','.join(models)}: name at least two different models, separated by commas")
    data.require_test_part()
    specs = [find_spec(model) for model in models]
    progress = progress or Progress()
    evaluations: dict[str, Evaluation] = {}
    for name, model, spec in zip(names, models, specs, strict=True):
        progress.message(f"{name}:")
        own = {} if not spec.is_trained else {**(settings or {}), **(own_settings or {}).get(name, {})}
        evaluations[name] = fit_run(data, model, out / name, own, device, progress=progress)[1]
    result = compare_rankings(evaluations, data)
    write_json(out / "comparison.json", {"dataset": data.fingerprint, **asdict(result)})
    write_text(out / "report.html", html_report(result, data))
    return result


def compare_rankings(evaluations: dict[str, Evaluation], data: PreparedDataset) -> ComparisonResult:
    """The metrics, the paired tests and the breakdowns of several rankings of the same samples."""
    sessions = session_of_samples(data.test)
    repeats = first_repeats(data.test)
    tests: list[tuple[str, str, str, Comparison]] = []
    for first, second in combinations(evaluations, 2):
        for metric, k in TESTED:
            ours, theirs = (gains(evaluations[name].ranks, metric, k) for name in (first, second))
            tests.append((first, second, f"{metric}@{k}", compare_paired(ours, theirs, sessions)))
    corrected = holm([comparison.p for *_, comparison in tests])
    pairs = [PairedTest(*test, p) for test, p in zip(tests, corrected, strict=True)]
    return ComparisonResult(
        {name: evaluation.metrics for name, evaluation in evaluations.items()},
        pairs,
        {name: by_length(evaluation.ranks, evaluation.lengths) for name, evaluation in evaluations.items()},
        {name: by_first_repeat(evaluation.ranks, repeats) for name, evaluation in evaluations.items()},
    )


def html_report(result: ComparisonResult, data: PreparedDataset) -> str:
    """One HTML file that needs nothing else."""
    names = next(iter(result.metrics.values()))
    # More popular recommendations are not better ones, so no popularity is marked as the best.
    best = {name: None if name.startswith("popularity") else max(one[name] for one in result.metrics.values())
            for name in names}  # fmt: skip
    lengths = breakdown_figure(result.lengths, "clicks before the target")
    repeats = breakdown_figure(result.repeats, "position of the first click on an item seen before")
    figures = [
        ("By length of the session", lengths, "Recall and MRR at 20 by how many clicks came before."),
        ("By where the first repeat stands", repeats, "None: all clicks differ."),
    ]
    return render("compare.html.j2", result=result, data=data, best=best, figures=figures)


def breakdown_figure(groups: dict[str, dict[str, dict[str, float]]], label: str) -> Any:
    """Two panels with a line for each model; bars in the background show how many samples each group has."""
    names = list(dict.fromkeys(name for by_group in groups.values() for name in by_group))
    figure, panels = new_figure(1, 2, (10, 3.4))
    for panel, metric in zip(panels, ("recall@20", "mrr@20"), strict=True):
        samples = next(iter(groups.values()))
        shares = panel.twinx()
        counts = [samples.get(name, {}).get("samples", 0) for name in names]
        shares.bar(range(len(names)), counts, color="#e4e7ec", zorder=0)
        shares.set_yticks([])
        shares.set_ylabel("samples (bars)", color="#98a2b3")
        panel.set_zorder(shares.get_zorder() + 1)
        panel.patch.set_visible(False)
        for model, by_group in groups.items():
            values = [100 * by_group[name][metric] if name in by_group else float("nan") for name in names]
            panel.plot(range(len(names)), values, marker="o", label=model)
        panel.set_xticks(range(len(names)), names)
        panel.set_xlabel(label)
        panel.set_title(f"{metric}, %")
        panel.set_ylim(bottom=0)
    panels[0].legend(frameon=False)
    return svg(figure)
