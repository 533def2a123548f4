"""Models, runs and other systems on the same test samples: ranked alike, tested in pairs."""

import shlex
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import combinations, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posrec.config import split_settings
from posrec.data.dataset import PreparedDataset
from posrec.errors import InputError, plural
from posrec.evaluation.breakdown import groups_of_samples, metrics_by_group
from posrec.evaluation.evaluate import Evaluation
from posrec.evaluation.metrics import RANKING, gains
from posrec.evaluation.significance import (
    LEVEL,
    Comparison,
    compare_paired,
    holm,
    session_of_samples,
)
from posrec.experiments.rendering import new_figure, render, svg
from posrec.fitting.evaluate_run import evaluate_finished
from posrec.fitting.fit import fit_run
from posrec.io import RUN, write_json, write_text
from posrec.models.registry import ModelSpec, find_spec, short_name, with_own_encoding
from posrec.progress import Progress, default_progress
from posrec.training.settings import Settings

if TYPE_CHECKING:
    import polars as pl

TESTED = (("recall", 20), ("mrr", 20))


@dataclass(frozen=True)
class PairedTest:
    """How two models differ in one metric; `corrected` is p after Holm over all tests."""

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
        if self.corrected >= LEVEL:
            return "no difference shown"
        return (
            f"{self.first if self.comparison.difference > 0 else self.second} is better"
        )

    def exchanged(self) -> "PairedTest":
        """The same test with the second model first."""
        tested = self.comparison
        comparison = replace(
            tested, difference=-tested.difference, low=-tested.high, high=-tested.low
        )
        return PairedTest(
            self.second, self.first, self.metric, comparison, self.corrected
        )


@dataclass(frozen=True, repr=False)
class ComparisonResult:
    """What `compare` found.

    Attributes:
        metrics: the metrics by model.
        pairs: the paired test of every two models and metric.
        lengths: metrics by model and by length of the session.
        repeats: metrics by model and by the position of the first click on an item seen before.
        popularity: metrics by model and by how often the target was clicked in training.
    """

    metrics: dict[str, dict[str, float]]
    pairs: list[PairedTest]
    lengths: dict[str, dict[str, dict[str, float]]]
    repeats: dict[str, dict[str, dict[str, float]]]
    popularity: dict[str, dict[str, dict[str, float]]]

    def __repr__(self) -> str:
        name = "{}@{}".format(*TESTED[0])
        figures = ", ".join(
            f"{model} {100 * metrics[name]:.2f}"
            for model, metrics in self.metrics.items()
        )
        return f"ComparisonResult({name}: {figures})"

    def pairs_with_best(self) -> list[PairedTest]:
        """For each metric, the tests of the best model, which stands first, against all others."""
        with_best = []
        for metric in dict.fromkeys(pair.metric for pair in self.pairs):
            best = max(self.metrics, key=lambda model: self.metrics[model][metric])
            of_best = [
                one
                for one in self.pairs
                if one.metric == metric and best in (one.first, one.second)
            ]
            with_best += [
                one if one.first == best else one.exchanged() for one in of_best
            ]
        return with_best

    def conclusion(self) -> str:
        """Which model is best in each metric, and over which others that is more than chance."""
        sentences = []
        for metric, tests in groupby(
            self.pairs_with_best(), key=lambda pair: pair.metric
        ):
            others: dict[bool, list[str]] = {True: [], False: []}
            for test in tests:
                best = test.first
                others[test.corrected < LEVEL].append(test.second)
            words = {True: "better than", False: "not shown to differ from"}
            parts = [
                f"{words[shown]} {', '.join(names)}"
                for shown, names in others.items()
                if names
            ]
            sentences.append(f"By {metric}, {best} is {', and '.join(parts)}.")
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
        for one in self.pairs:
            tested = one.comparison
            pair = {"first": one.first, "second": one.second, "metric": one.metric}
            test = {
                "difference": tested.difference,
                "low": tested.low,
                "high": tested.high,
                "p": one.corrected,
            }
            rows.append({**pair, **test, "verdict": one.verdict})
        return pl.DataFrame(rows)


def compare(
    data: PreparedDataset,
    models: Sequence[str | ModelSpec] = (),
    out: str | Path | None = None,
    settings: dict[str, Any] | None = None,
    device: str = "auto",
    progress: Progress | None = None,
    own_settings: Mapping[str, dict[str, Any]] | None = None,
    runs: Sequence[str | Path] = (),
    scores: Mapping[str, str | Path] | None = None,
    match_ids: bool = False,
) -> ComparisonResult:
    """Rank the test samples of one dataset with each of several models, finished runs and other
    systems, and test which differences are real. There must be at least two of them in all.

    Args:
        data: the dataset, from `posrec.prepare` or `posrec.load`.
        models: models to train: names of `posrec models`, `"my_model.py:MY_SPEC"`, or ModelSpecs.
        out: the folder to write a run for each model, `comparison.json` and `report.html` into; without it nothing is
            kept on disk.
        settings: settings of every trained model and of its training.
        device: "cpu", "cuda", or "auto": a GPU if there is one.
        progress: where to report progress; by default an epoch a line, and a bar in a notebook.
        own_settings: settings of single models by name, on top of `settings`.
        runs: folders of finished runs, which are not trained again; tables name them by their folder.
        scores: files with the scores of other systems by the names of these (docs/training.md).
        match_ids: allow runs with other items than the dataset, which are matched by id.

    Returns:
        The metrics of each and the paired tests.

    Raises:
        InputError: if a model or a setting is not known, two have the same name, there is no test part, or a run or
            scores are not of the dataset's items or test samples.

    Example::

        found = posrec.compare(data, models=["posrec", "stan", "pop"])
        found.to_frame(), found.pairs_to_frame()
        posrec.compare(data, models=["stan"], runs=["runs/first"], scores={"other": "scores.parquet"})
    """
    names = [short_name(model) for model in models]
    scores = scores or {}
    named_runs = names_of_runs([Path(run) for run in runs], [*names, *scores])
    in_order = [*names, *named_runs, *scores]
    if len(set(in_order)) < max(2, len(in_order)):
        raise InputError(
            f"a comparison needs at least two different names, and there is {', '.join(in_order) or 'none'}: name "
            "models to train (--models posrec,pop), finished runs (--runs RUN) or scores of another system (--scores "
            "NAME=FILE)"
        )
    data.require_test_part()
    of_model: dict[str, dict[str, Any]] = {}
    for name, spec in zip(names, map(find_spec, models), strict=True):
        of_model[name] = (
            {**(settings or {}), **(own_settings or {}).get(name, {})}
            if spec.is_trained
            else {}
        )
        refuse_bad_settings(name, spec, of_model[name])  # before any model is trained
    progress = progress or default_progress()
    evaluations: dict[str, Evaluation] = {}
    with (
        nullcontext(out)
        if out is not None
        else tempfile.TemporaryDirectory(prefix="posrec-") as opened
    ):
        folder = Path(opened)
        for name in names:
            if (folder / name / RUN).exists():
                raise InputError(
                    f"{folder} has a run of {name} from an earlier comparison; name another folder with --out, or "
                    f"compare that run with --runs {folder / name}"
                )
        for name, run in named_runs.items():
            evaluations[name] = evaluate_finished(
                run, data, device, progress, match_ids
            )
        for name, file in scores.items():
            from posrec.experiments.other_system import (
                rank_scores,
            )  # polars: a machine that only trains may lack it

            evaluations[name] = rank_scores(Path(file), data, progress)
        for name, model in zip(names, models, strict=True):
            progress.message(
                f"{name} is trained:"
                if find_spec(model).is_trained
                else f"{name} counts the sessions"
            )
            options: dict[str, Any] = {
                "progress": progress,
                "resumable": out is not None,
                "export": False,
            }
            _, evaluations[name] = fit_run(
                data, model, folder / name, of_model[name], device, **options
            )
        result = compare_rankings({name: evaluations[name] for name in in_order}, data)
        if out is not None:
            folder.mkdir(parents=True, exist_ok=True)
            measured_on = {
                "dataset": data.fingerprint,
                "samples": len(data.test),
                "ranking": RANKING,
            }
            write_json(folder / "comparison.json", {**measured_on, **asdict(result)})
            command = command_line(data, names, runs, scores, settings or {})
            write_text(
                folder / "report.html", html_report(result, data, command, of_model)
            )
    return result


def command_line(
    data: PreparedDataset,
    models: Sequence[str],
    runs: Sequence[str | Path],
    scores: Mapping[str, str | Path],
    settings: Mapping[str, Any],
) -> str:
    """The command that makes the same comparison, for the report."""
    options = [("--models", ",".join(models))] if models else []
    options += [("--runs", str(run)) for run in runs]
    options += [("--scores", f"{name}={file}") for name, file in scores.items()]
    options += [("--set", f"{name}={value}") for name, value in settings.items()]
    return shlex.join(
        [
            "posrec",
            "compare",
            str(data.path),
            *(word for option in options for word in option),
        ]
    )


def names_of_runs(runs: Sequence[Path], taken: Sequence[str]) -> dict[str, Path]:
    """Runs by the names of their folders, or by their paths where a name is taken."""
    short = [run.absolute().name for run in runs]
    counts = Counter([*short, *taken])
    return {
        name if counts[name] == 1 else str(run): run
        for name, run in zip(short, runs, strict=True)
    }


def refuse_bad_settings(name: str, spec: ModelSpec, settings: dict[str, Any]) -> None:
    try:
        split_settings(
            with_own_encoding(settings), spec.config(), Settings(**spec.settings)
        )[1].check()
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def compare_rankings(
    evaluations: dict[str, Evaluation], data: PreparedDataset
) -> ComparisonResult:
    """The metrics, paired tests and breakdowns of several rankings of the test samples."""
    for name, one in evaluations.items():
        if (one.dataset, len(one.ranks)) != (data.fingerprint, len(data.test)):
            raise InputError(
                f"{name} was measured on {plural(len(one.ranks), 'test sample')} of dataset {one.dataset[:12]}, and "
                f"{data.path} has {len(data.test):,} and is dataset {data.fingerprint[:12]}: figures of different "
                "samples do not compare"
            )
    sessions = session_of_samples(data.test)
    tests: list[tuple[str, str, str, Comparison]] = []
    for first, second in combinations(evaluations, 2):
        for metric, k in TESTED:
            ours, theirs = (
                gains(evaluations[name].ranks, metric, k) for name in (first, second)
            )
            tests.append(
                (first, second, f"{metric}@{k}", compare_paired(ours, theirs, sessions))
            )
    corrected = holm([comparison.p for *_, comparison in tests])
    pairs = [PairedTest(*test, p) for test, p in zip(tests, corrected, strict=True)]
    breakdowns = {
        kind: {
            name: metrics_by_group(one.ranks, groups)
            for name, one in evaluations.items()
        }
        for kind, groups in groups_of_samples(data.test, data.train).items()
    }
    return ComparisonResult(
        {name: one.metrics for name, one in evaluations.items()}, pairs, **breakdowns
    )


def html_report(
    result: ComparisonResult,
    data: PreparedDataset,
    command: str,
    settings: Mapping[str, dict[str, Any]],
) -> str:
    """One HTML file that needs nothing else. `command` makes the comparison again."""
    names = next(iter(result.metrics.values()))
    # More popular recommendations are not better ones, so no popularity is marked as the best.
    marked = [name for name in names if not name.startswith("popularity")]
    best = {name: max(one[name] for one in result.metrics.values()) for name in marked}
    breakdowns = [
        ("By length of the session", result.lengths, "clicks before the target"),
        (
            "By popularity of the item",
            result.popularity,
            "clicks on the target in training",
        ),
        (
            "By where the first repeat stands",
            result.repeats,
            "position of the first click on an item seen before",
        ),
    ]
    figures = [
        (heading, breakdown_figures(groups, label))
        for heading, groups, label in breakdowns
    ]
    return render(
        "compare.html.j2",
        result=result,
        data=data,
        best=best,
        figures=figures,
        command=command,
        settings=settings,
        date=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
    )


def breakdown_figures(
    groups: dict[str, dict[str, dict[str, float]]], label: str
) -> list[Any]:
    """A figure for each metric, a line for each model; bars show the samples of each group.

    The background stays transparent: the report inverts the colours where the page is dark.
    """
    names = list(
        dict.fromkeys(name for by_group in groups.values() for name in by_group)
    )
    samples = next(iter(groups.values()))
    counts = [samples.get(name, {}).get("samples", 0) for name in names]
    figures = []
    for metric in ("recall@20", "mrr@20"):
        figure, panel = new_figure(1, 1, (5, 3.2))
        shares = panel.twinx()
        shares.bar(range(len(names)), counts, color="lightgrey")
        shares.set_yticks([])
        shares.set_ylabel("samples (bars)")
        panel.set_zorder(shares.get_zorder() + 1)
        for model, by_group in groups.items():
            values = [
                100 * by_group[name][metric] if name in by_group else float("nan")
                for name in names
            ]
            panel.plot(range(len(names)), values, marker="o", label=model)
        panel.set_xticks(range(len(names)), names)
        panel.set_xlabel(label)
        panel.set_title(f"{metric}, %")
        panel.set_ylim(bottom=0)
        panel.legend(frameon=False)
        for ground in (figure.patch, panel.patch, shares.patch):
            ground.set_visible(False)
        figures.append(svg(figure))
    return figures
