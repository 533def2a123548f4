"""What the order of clicks, and their positions, are worth in a log: PosRec with and without them.

PosRec is trained with four encodings and, with the paper's, on samples whose clicks are shuffled.
The differences are tested in pairs on the same samples. With several seeds, the gains of each
sample are averaged, and the variance over seeds is added to that over sessions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.evaluation.evaluate import Evaluation
from posrec.evaluation.metrics import gains
from posrec.evaluation.significance import (
    LEVEL,
    combine_errors,
    compare_paired,
    error_over_seeds,
    holm,
    session_of_samples,
)
from posrec.evaluation.windows import over
from posrec.experiments.compare import TESTED
from posrec.experiments.rendering import new_figure, svg
from posrec.fitting.fit import train_and_score
from posrec.fitting.job import FitOptions, configs_of
from posrec.io import write_json, write_text
from posrec.models.registry import find_spec
from posrec.progress import Progress, default_progress

MODEL = "posrec"
SHUFFLED = "shuffled"
# The rows: the encoding of each, and what it can tell.
ROWS = {
    "none": "no positions",
    "lpe": "positions from the start",
    "lrpe": "positions from the end",
    "ldpe": "both",
    SHUFFLED: "both, of clicks in random order",
}
# What is asked: the first row's gain over the second.
QUESTIONS = {
    "the order of clicks": ("ldpe", SHUFFLED),
    "the position from the end": ("lrpe", "none"),
    "the position from the start": ("lpe", "none"),
    "both positions together": ("ldpe", "none"),
}
RESULT = "positions.json"
FIGURE = "positions.svg"


@dataclass(frozen=True)
class Worth:
    """A gain in points of percent, half its 95 % interval, and p after Holm over all questions."""

    question: str
    first: str
    second: str
    metric: str
    points: float
    margin: float
    p: float

    @property
    def is_shown(self) -> bool:
        return self.p < LEVEL


@dataclass(frozen=True)
class PositionsResult:
    """What `positions` found: the mean metrics of each row, and an answer to each question."""

    dataset: str
    samples: int
    seeds: int
    settings: dict[str, Any]
    metrics: dict[str, dict[str, float]]
    worths: list[Worth]

    def conclusion(self) -> str:
        answers = [worth for worth in self.worths if worth.metric == "recall@20"][:3]
        order, end, start = map(in_words, answers)
        return (
            f"In this log the order of clicks is worth {order} of R@20, the position from the "
            f"end {end}, and that from the start {start}."
        )


def in_words(worth: Worth) -> str:
    """
    >>> in_words(Worth("the order of clicks", "ldpe", "shuffled", "recall@20", 3.14, 0.4, 0.001))
    '3.1 points'
    """
    if not worth.is_shown:
        return "nothing that could be measured"
    return f"{worth.points:.1f} points"


def positions(
    data: PreparedDataset,
    out: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    seeds: int = 1,
    device: str = "auto",
    progress: Progress | None = None,
) -> PositionsResult:
    """Measure what the order and the positions of clicks are worth in a log, by training PosRec
    without each of them.

    Args:
        data, device, progress: as for `posrec.fit`.
        out: the folder to write `positions.json` and `positions.svg` into.
        settings: settings of PosRec and of its training.
        seeds: how many times each row is trained.

    Returns:
        The metrics of each row, and the gains with their tests.

    Raises:
        InputError: if a setting is not known, or there is no test part.

    Example::

        found = posrec.positions(posrec.load("shop"), seeds=3)
        found.conclusion()
    """
    data.require_test_part()
    settings = dict(settings or {})
    config, training = configs_of(find_spec(MODEL), settings)
    progress = progress or default_progress()
    shuffled = with_shuffled_samples(data, config.max_length, training.seed)
    evaluations: dict[str, list[Evaluation]] = {}
    for row, meaning in ROWS.items():
        progress.message(f"PosRec with {meaning}:")
        own = {**settings, "encoding": "ldpe" if row == SHUFFLED else row}
        rows_data = shuffled if row == SHUFFLED else data
        evaluations[row] = []
        for seed in range(training.seed, training.seed + seeds):
            options = FitOptions({**own, "seed": seed}, device, progress)
            evaluations[row].append(train_and_score(rows_data, MODEL, options))
    result = PositionsResult(
        data.fingerprint,
        len(data.test),
        seeds,
        settings,
        {
            row: over([evaluation.metrics for evaluation in by_seed], mean)
            for row, by_seed in evaluations.items()
        },
        answer_questions(evaluations, session_of_samples(data.test)),
    )
    if out is not None:
        folder = Path(out)
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / RESULT, asdict(result))
        write_text(folder / FIGURE, draw(result))
    return result


def with_shuffled_samples(
    data: PreparedDataset, max_length: int, seed: int
) -> PreparedDataset:
    """The same samples in the same order, with the clicks before each target shuffled."""
    random = torch.Generator().manual_seed(seed)
    train, clicks = shuffled_samples(data.train, max_length, random)
    test, _ = shuffled_samples(data.test, max_length, random)
    weights = data.target_weights
    if weights is not None:
        weights = weights[clicks.numpy()]
    manifest = {**data.manifest, "validation_start": len(data.fitting)}
    return replace(
        data, train=train, test=test, manifest=manifest, target_weights=weights
    )


def shuffled_samples(
    samples: SessionDataset, max_length: int, random: torch.Generator
) -> tuple[SessionDataset, Tensor]:
    """Every sample as a session of its own: its latest `max_length` clicks in random order, then
    its target. Also the click of `samples` that each click was."""
    session, target = samples.locate(torch.arange(len(samples)))
    before = (target - samples.offsets[session]).clamp(max=max_length)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), (before + 1).cumsum(0)])
    owner = torch.repeat_interleave(before + 1)  # [clicks] the sample of each click
    click = torch.arange(len(owner)) - offsets[owner] + (target - before)[owner]
    # Sorted by sample and then by chance; a target comes last.
    place = owner + torch.rand(len(owner), generator=random, dtype=torch.float64) / 2
    place[offsets[1:] - 1] += 0.5
    click = click[place.argsort()]
    shuffled = SessionDataset(
        samples.items[click], offsets, samples.times[session], offsets[1:] - 1
    )
    return shuffled, click


def answer_questions(
    evaluations: Mapping[str, Sequence[Evaluation]], session: Tensor
) -> list[Worth]:
    """An answer to each question in each metric; `session [N]` is that of each sample."""
    sessions = len(set(session.tolist()))
    answers = []
    for metric, k in TESTED:
        name = f"{metric}@{k}"
        for question, (first, second) in QUESTIONS.items():
            rows = [evaluations[first], evaluations[second]]
            first_gains, second_gains = (
                torch.stack([gains(run.ranks, metric, k) for run in runs]).mean(0)
                for runs in rows
            )
            tested = compare_paired(first_gains, second_gains, session)
            several = rows if len(rows[0]) > 1 else []
            values = [[100 * run.metrics[name] for run in runs] for runs in several]
            found = combine_errors(tested, sessions, map(error_over_seeds, values))
            answers.append(Worth(question, first, second, name, *found))
    corrected = holm([answer.p for answer in answers])
    return [replace(answer, p=p) for answer, p in zip(answers, corrected, strict=True)]


def draw(result: PositionsResult) -> str:
    """The gains with their intervals, a panel for each metric."""
    figure, panels = new_figure(1, len(TESTED), (9, 2.8))
    for (metric, k), panel in zip(TESTED, panels, strict=True):
        worths = [worth for worth in result.worths if worth.metric == f"{metric}@{k}"]
        names = [worth.question for worth in worths]
        values = [worth.points for worth in worths]
        halves = [worth.margin for worth in worths]
        panel.barh(names, values, xerr=halves, color="lightsteelblue", capsize=3)
        panel.axvline(0, color="black", linewidth=0.8)
        panel.invert_yaxis()
        panel.set_title(f"{metric}@{k}, points of percent")
    panels[1].set_yticklabels([])
    return str(svg(figure))
