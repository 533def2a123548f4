"""Models, runs and other systems on the same test samples: ranked alike, tested in pairs."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError, plural
from posrec.evaluation.breakdown import (
    days_of_samples,
    groups_of_samples,
    metrics_by_group,
)
from posrec.evaluation.evaluate import Evaluation
from posrec.evaluation.metrics import RANKING, gains
from posrec.evaluation.novelty import notices
from posrec.evaluation.significance import (
    Comparison,
    PairedTest,
    compare_paired,
    holm,
    session_of_samples,
    tests_of,
)
from posrec.evaluation.windows import Window, Windows, begin_of, rolling_windows
from posrec.experiments.rendering import new_figure, render, svg
from posrec.fitting.evaluate_run import evaluate_finished
from posrec.fitting.fit import train_and_score
from posrec.fitting.job import FitOptions, configs_of
from posrec.io import RUN, write_json, write_text
from posrec.models.registry import ModelSpec, find_spec, short_name
from posrec.progress import Progress, default_progress

if TYPE_CHECKING:
    import polars as pl

TESTED = (("recall", 20), ("mrr", 20))
COMPARISON = "comparison.json"
REPORT = "report.html"
Breakdown = dict[str, dict[str, dict[str, float]]]  # metrics by model and group


@dataclass(frozen=True, repr=False)
class ComparisonResult:
    """What `compare` found: metrics by model, paired tests, and metrics by groups of samples."""

    metrics: dict[str, dict[str, float]]
    pairs: list[PairedTest]  # of every two models, in each metric
    lengths: Breakdown  # by the length of the session
    repeats: Breakdown  # by the position of the first click on an item seen before
    popularity: Breakdown  # by how often the target was clicked in training
    by_novelty: (
        Breakdown  # over all clicks, by whether the target is known, rare or new
    )
    by_day: (
        Breakdown  # by the day (UTC) on which the session began, if the log has times
    )
    warnings: list[str]  # of figures that can't be compared with the others
    windows: Windows | None = None  # of a rolling origin

    def __repr__(self) -> str:
        recalls = [
            f"{model} {100 * metrics['recall@20']:.2f}"
            for model, metrics in self.metrics.items()
        ]
        return f"ComparisonResult(recall@20: {', '.join(recalls)})"

    def tests_of_best(self) -> dict[str, list[PairedTest]]:
        """By metric, the tests of the best model, put first, against all others."""
        tests = {}
        for metric in dict.fromkeys(pair.metric for pair in self.pairs):
            best = max(self.metrics, key=lambda model: self.metrics[model][metric])
            tests[metric] = tests_of(best, self.pairs, metric)
        return tests

    def pairs_with_best(self) -> list[PairedTest]:
        return [test for tests in self.tests_of_best().values() for test in tests]

    def conclusion(self) -> str:
        """Which model is best in each metric, and than which others that is shown."""
        sentences = []
        for metric, tests in self.tests_of_best().items():
            worse = [test.second for test in tests if test.is_shown]
            unclear = [test.second for test in tests if not test.is_shown]
            findings = []
            if worse:
                findings.append(f"better than {', '.join(worse)}")
            if unclear:
                findings.append(f"not shown to differ from {', '.join(unclear)}")
            best = tests[0].first
            sentences.append(f"By {metric}, {best} is {', and '.join(findings)}.")
        return " ".join(sentences)

    def to_frame(self) -> "pl.DataFrame":
        """A row for each model: its name and its metrics."""
        import polars as pl

        return pl.DataFrame(
            [{"model": model, **metrics} for model, metrics in self.metrics.items()]
        )

    def pairs_to_frame(self) -> "pl.DataFrame":
        """A row for each paired test: difference, 95 % interval, p after Holm, verdict."""
        import polars as pl

        rows = []
        for pair in self.pairs:
            row = {"first": pair.first, "second": pair.second, "metric": pair.metric}
            for name in ("difference", "low", "high"):
                row[name] = getattr(pair.comparison, name)
            rows.append({**row, "p": pair.corrected, "verdict": pair.verdict})
        return pl.DataFrame(rows)


def compare(
    data: PreparedDataset,
    models: Sequence[str | ModelSpec] = (),
    out: str | Path | None = None,
    settings: dict[str, Any] | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    *,
    own_settings: Mapping[str, dict[str, Any]] | None = None,
    runs: Sequence[str | Path] = (),
    scores: Mapping[str, str | Path] | None = None,
    scores_again: Mapping[str, str | Path] | None = None,
    match_ids: bool = False,
    windows: int | None = None,
) -> ComparisonResult:
    """Rank the test samples of a dataset with models, finished runs and other systems, at least two
    in all, and test which differences are real.

    Args:
        data, device, progress: as for `posrec.fit`.
        models: models to train: names of `posrec models`, `"my_model.py:MY_SPEC"`, or ModelSpecs.
        out: the folder for a run of each model, `comparison.json` and `report.html`, if any.
        settings: settings of every trained model and of its training.
        own_settings: settings of single models by name, on top of `settings`.
        runs: folders of finished runs; tables name them by their folder.
        scores: files with the scores of other systems, by name (docs/training.md).
        scores_again: their scores of the samples in another order; a warning says if they differ.
        match_ids: allow runs with other items than the dataset, which are matched by id.
        windows: train in this many windows in time; the last is the test part (docs/protocol.md).

    Returns:
        The metrics of each and the paired tests.

    Raises:
        InputError: if an argument does not fit the dataset, or it has no test part.

    Example::

        found = posrec.compare(data, models=["posrec", "stan", "pop"], runs=["runs/first"])
        found.to_frame(), found.pairs_to_frame()
    """
    candidates = Candidates.named(models, runs, scores or {}, scores_again or {})
    data.require_test_part()
    settings = settings or {}
    model_settings = settings_by_model(candidates, settings, own_settings or {})
    datasets = [data]
    if windows is not None:
        candidates.require_models_alone()
        datasets = rolling_windows(data, windows)
    options = FitOptions(device=device, progress=progress or default_progress())
    folder = None if out is None else Path(out)
    if folder is not None:
        check_folder(folder, candidates)
    result = compare_on(
        datasets, candidates, model_settings, options, folder, match_ids
    )
    if folder is not None:
        command = command_line(candidates, data, settings, windows)
        write_comparison(folder, result, data, command, model_settings)
    return result


@dataclass(frozen=True)
class Candidates:
    """What is compared, by name: models to train, runs, and files of scores."""

    models: Mapping[str, str | ModelSpec]
    runs: Mapping[str, str | Path]
    scores: Mapping[str, str | Path]
    scores_again: Mapping[str, str | Path]

    @classmethod
    def named(
        cls,
        models: Sequence[str | ModelSpec],
        runs: Sequence[str | Path],
        scores: Mapping[str, str | Path],
        scores_again: Mapping[str, str | Path],
    ) -> "Candidates":
        """A run is named by its folder, or by its path where that name is taken."""
        for name in scores_again.keys() - scores.keys():
            raise InputError(
                f"--scores-again {name}: there are no scores of that name to compare with; add "
                f"--scores {name}=FILE"
            )
        model_names = [short_name(model) for model in models]
        folder_names = [Path(run).absolute().name for run in runs]
        count = Counter([*folder_names, *model_names, *scores])
        run_names = [
            name if count[name] == 1 else str(run)
            for name, run in zip(folder_names, runs, strict=True)
        ]
        names = [*model_names, *dict.fromkeys(run_names), *scores]
        if len(set(names)) < max(2, len(names)):
            raise InputError(
                "a comparison needs at least two different names, and there is "
                f"{', '.join(names) or 'none'}: name models to train (--models posrec,pop), "
                "finished runs (--runs RUN) or scores of another system (--scores NAME=FILE)"
            )
        by_name = dict(zip(model_names, models, strict=True))
        by_folder = dict(zip(run_names, runs, strict=True))
        return cls(by_name, by_folder, scores, scores_again)

    def require_models_alone(self) -> None:
        if self.runs or self.scores:
            raise InputError(
                "--windows trains every model in each window, which finished runs (--runs) and "
                "scores of other systems (--scores) can't be; leave them out"
            )


def settings_by_model(
    candidates: Candidates,
    settings: Mapping[str, Any],
    own_settings: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Checked before any is trained; a model that counts has none."""
    by_model: dict[str, dict[str, Any]] = {}
    for name, model in candidates.models.items():
        spec = find_spec(model)
        chosen = {**settings, **own_settings.get(name, {})} if spec.is_trained else {}
        try:
            configs_of(spec, chosen)
        except InputError as error:
            raise InputError(f"{name}: {error}") from None
        by_model[name] = chosen
    return by_model


def check_folder(folder: Path, candidates: Candidates) -> None:
    names = {path.name for path in folder.glob("*")}
    if REPORT in names and COMPARISON not in names:
        raise InputError(
            f"{folder} has a {REPORT} that is not of a comparison; name another folder with --out"
        )
    for name in candidates.models:
        if (folder / name / RUN).exists():
            raise InputError(
                f"{folder} has a run of {name} from an earlier comparison; name another folder "
                f"with --out, or compare that run with --runs {folder / name}"
            )


def compare_on(
    datasets: Sequence[PreparedDataset],
    candidates: Candidates,
    settings: Mapping[str, dict[str, Any]],
    options: FitOptions,
    folder: Path | None,
    match_ids: bool,
) -> ComparisonResult:
    """Compare on the last dataset; the others are earlier windows, whose runs are not kept."""
    windows = []
    for number, data in enumerate(datasets, start=1):
        if len(datasets) > 1:
            sessions = plural(data.train.sessions, "training session")
            options.progress.message(
                f"window {number} of {len(datasets)}, after {sessions}:"
            )
        out = folder if number == len(datasets) else None
        ranked = rank_all(candidates, data, settings, options, out, match_ids)
        result = compare_rankings(ranked, data)
        test = data.test
        sizes = (data.train.sessions, test.sessions, len(test))
        begins = begin_of(data, test)
        windows.append(Window(begins, *sizes, result.metrics, result.pairs))
    return replace(result, windows=Windows.of(windows) if len(windows) > 1 else None)


def rank_all(
    candidates: Candidates,
    data: PreparedDataset,
    settings: Mapping[str, dict[str, Any]],
    options: FitOptions,
    folder: Path | None,
    match_ids: bool,
) -> dict[str, Evaluation]:
    """Rank the test samples with each candidate; the training of models comes last."""
    progress = options.progress
    ranked = {}
    for name, run in candidates.runs.items():
        ranked[name] = evaluate_finished(
            Path(run), data, options.device, progress, match_ids
        )
    for name, file in candidates.scores.items():
        # This imports polars, which a machine that only trains may lack.
        from posrec.experiments.other_system import compare_orders, rank_scores

        ranked[name] = rank_scores(Path(file), data, progress)
        if name in candidates.scores_again:
            again = rank_scores(Path(candidates.scores_again[name]), data, progress)
            ranked[name] = compare_orders(ranked[name], again, progress)
    for name, model in candidates.models.items():
        if find_spec(model).is_trained:
            progress.message(f"{name} is trained:")
        else:
            progress.message(f"{name} counts the sessions")
        out = None if folder is None else folder / name
        model_options = replace(options, settings=settings[name])
        ranked[name] = train_and_score(data, model, model_options, out)
    in_order = [*candidates.models, *candidates.runs, *candidates.scores]
    return {name: ranked[name] for name in in_order}


def command_line(
    candidates: Candidates,
    data: PreparedDataset,
    settings: Mapping[str, Any],
    windows: int | None,
) -> str:
    """The command that makes the same comparison, for the report."""
    words = ["posrec", "compare", str(data.path)]
    if candidates.models:
        words += ["--models", ",".join(candidates.models)]
    for run in candidates.runs.values():
        words += ["--runs", str(run)]
    for name, file in candidates.scores.items():
        words += ["--scores", f"{name}={file}"]
    for name, file in candidates.scores_again.items():
        words += ["--scores-again", f"{name}={file}"]
    for name, value in settings.items():
        words += ["--set", f"{name}={value}"]
    if windows is not None:
        words += ["--windows", str(windows)]
    return shlex.join(words)


def compare_rankings(
    evaluations: dict[str, Evaluation], data: PreparedDataset
) -> ComparisonResult:
    for name, evaluation in evaluations.items():
        measured_on = (evaluation.dataset, len(evaluation.ranks))
        if measured_on != (data.fingerprint, len(data.test)):
            samples = plural(len(evaluation.ranks), "test sample")
            raise InputError(
                f"{name} was measured on {samples} of dataset {evaluation.dataset[:12]}, and "
                f"{data.path} has {len(data.test):,} and is dataset {data.fingerprint[:12]}: "
                "figures of different samples do not compare"
            )
    sessions = session_of_samples(data.test)
    tests: list[tuple[str, str, str, Comparison]] = []
    for first, second in combinations(evaluations, 2):
        for metric, k in TESTED:
            first_gains = gains(evaluations[first].ranks, metric, k)
            second_gains = gains(evaluations[second].ranks, metric, k)
            comparison = compare_paired(first_gains, second_gains, sessions)
            tests.append((first, second, f"{metric}@{k}", comparison))
    corrected = holm([comparison.p for *_, comparison in tests])
    pairs = [PairedTest(*test, p) for test, p in zip(tests, corrected, strict=True)]
    breakdowns: dict[str, Breakdown] = {}
    groupings = groups_of_samples(data.test, data.train)
    groupings["by_day"] = days_of_samples(data)
    for kind, groups in groupings.items():
        breakdowns[kind] = {
            name: metrics_by_group(evaluation.ranks, groups)
            for name, evaluation in evaluations.items()
        }
    metrics = {name: evaluation.metrics for name, evaluation in evaluations.items()}
    by_novelty = {
        name: evaluation.by_novelty
        for name, evaluation in evaluations.items()
        if evaluation.by_novelty  # not of another system
    }
    warnings = [
        f"{name}: {warning}"
        for name, evaluation in evaluations.items()
        for warning in evaluation.warnings
    ]
    return ComparisonResult(
        metrics,
        pairs,
        by_novelty=by_novelty,
        warnings=warnings,
        windows=None,
        **breakdowns,
    )


def write_comparison(
    folder: Path,
    result: ComparisonResult,
    data: PreparedDataset,
    command: str,
    settings: Mapping[str, dict[str, Any]],
) -> None:
    content = {
        "dataset": data.fingerprint,
        "samples": len(data.test),
        "ranking": RANKING,
        **asdict(result),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / COMPARISON, content)
    report = render(
        "compare.html.j2",
        result=result,
        data=data,
        figures=breakdown_figures,
        notices=list(notices(data)),
        command=command,
        settings=settings,
        date=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )
    write_text(folder / REPORT, report)


def breakdown_figures(groups: Breakdown, label: str) -> list[Any]:
    """A figure for each metric, a line for each model; bars show the samples of each group.

    The background stays transparent: the report inverts the colours where the page is dark.
    """
    first_model = next(iter(groups.values()))  # all have the same groups
    names = list(first_model)
    counts = [group["samples"] for group in first_model.values()]
    figures = []
    for metric in ("recall@20", "mrr@20"):
        figure, panel = new_figure(1, 1, (5, 3.2))
        bars = panel.twinx()
        bars.bar(range(len(names)), counts, color="lightgrey")
        bars.set_yticks([])
        bars.set_ylabel("samples (bars)")
        panel.set_zorder(bars.get_zorder() + 1)
        for model, by_group in groups.items():
            values = [100 * group[metric] for group in by_group.values()]
            panel.plot(range(len(names)), values, marker="o", label=model)
        every = 1 + len(" ".join(names)) // 60  # so that names don't overlap
        panel.set_xticks(range(0, len(names), every), names[::every])
        panel.set_xlabel(label)
        panel.set_title(f"{metric}, %")
        panel.set_ylim(bottom=0)
        panel.legend(frameon=False)
        for background in (figure.patch, panel.patch, bars.patch):
            background.set_visible(False)
        figures.append(svg(figure))
    return figures
