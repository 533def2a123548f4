"""Every model tuned with the same budget on validation, then ranked once on the test part.

    python -m benchmarks.quality.tuned prepared/diginetica prepared/yoochoose --jobs 8 --minutes 8

A trial is in `--work` as soon as it has ended, and a row of a dataset, a model and a budget is
measured once, so the same command continues an interrupted one. posrec-plus also has a row with
its default settings. Other models are trained as it is: on all sessions, for the number of epochs
that validation chooses. Times are those of `--jobs` trainings side by side.
"""

import math
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.results import parser_for, write_row
from benchmarks.harness.side_by_side import SideBySide
from posrec.config import DEFAULT_MODEL
from posrec.data.dataset import PreparedDataset, load
from posrec.errors import RunStopped
from posrec.experiments.tune import (
    COMMON_METRIC,
    Budget,
    Tuned,
    most_epochs,
    tune_models,
)
from posrec.fitting.fit import train_and_score
from posrec.fitting.job import FitOptions
from posrec.io import read_json
from posrec.models.registry import find_spec
from posrec.progress import SilentProgress
from posrec.version import __version__

MODELS = "narm,gru4rec,sasrec,stamp,srgnn,posrec,itemknn,vsknn,stan,coclick,posrec-plus"
KEY = ("fingerprint", "model", "trials", "seed")


@dataclass(frozen=True)
class Row:
    """A model with settings, to be trained on all training sessions and ranked once."""

    model: str
    settings: dict[str, Any]
    trials: int = 0  # 0: with the default settings
    tuning: dict[str, Any] | None = None


def main() -> None:
    parser = parser_for(__doc__, "results/tuned.json")
    parser.add_argument("datasets", type=Path, nargs="+", help="prepared datasets")
    parser.add_argument("--models", default=MODELS, help=f"[default: {MODELS}]")
    parser.add_argument("--trials", type=int, default=20, help="of each model")
    parser.add_argument("--epochs", type=int, help="at most, of a trial")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--jobs", type=int, default=1, help="how many trainings run side by side"
    )
    parser.add_argument(
        "--minutes", type=float, default=math.inf, help="no training starts after these"
    )
    parser.add_argument(
        "--work", type=Path, default=Path("tuned"), help="the folder of the trials"
    )
    arguments = parser.parse_args()
    executor = SideBySide(arguments.jobs, arguments.minutes)
    budget = Budget(arguments.trials, arguments.epochs, arguments.seed)
    try:
        for path in arguments.datasets:
            data = load(path)
            tuned = tune_models(
                data,
                arguments.models.split(","),
                budget,
                arguments.work / data.fingerprint[:12],
                {"choose_by": COMMON_METRIC},
                executor=executor,
            )
            write_rows(arguments.out, data, tuned, budget, executor)
    except RunStopped as stopped:
        sys.exit(str(stopped))


def write_rows(
    out: Path,
    data: PreparedDataset,
    tuned: dict[str, Tuned],
    budget: Budget,
    executor: SideBySide,
) -> None:
    """Measure the rows that are not in the file; each is in it as soon as it is measured."""
    saved = read_json(out) if out.exists() else []
    measured = [tuple(row[name] for name in KEY) for row in saved]
    rows = [Row(DEFAULT_MODEL, {})]
    for model, outcome in tuned.items():
        settings = {**refit_settings(model, budget), **outcome.settings}
        tuning = asdict(outcome)
        del tuning["history"]
        rows.append(Row(model, settings, budget.trials, tuning))
    missing = [
        row
        for row in rows
        if (data.fingerprint, row.model, row.trials, budget.seed) not in measured
    ]
    task = partial(rank_test, data, budget.seed)
    for row, measurement in executor.run(task, missing, work="Test"):
        record = {
            "dataset": data.path.name,
            "fingerprint": data.fingerprint,
            "posrec": __version__,
            "seed": budget.seed,
            "budget": asdict(budget),
            **asdict(row),
            **measurement,
        }
        write_row(out, record, KEY)


def refit_settings(model: str, budget: Budget) -> dict[str, Any]:
    """What makes a model train as posrec-plus does by default."""
    spec = find_spec(model)
    if not spec.is_trained or spec.settings.get("protocol") == "refit":
        return {}
    epochs = most_epochs(spec, {}, budget.epochs)
    return {"protocol": "refit", "choose_by": COMMON_METRIC, "epochs": epochs}


def rank_test(data: PreparedDataset, seed: int, row: Row) -> dict[str, Any]:
    began = time.monotonic()
    settings = {**row.settings, "seed": seed}
    options = FitOptions(settings, progress=SilentProgress())
    evaluation = train_and_score(data, row.model, options)
    metrics = {
        name: round(100 * value, 4) for name, value in evaluation.metrics.items()
    }
    seconds = round(time.monotonic() - began, 1)
    return {"metrics": metrics, "seconds": seconds}


if __name__ == "__main__":
    main()
