"""Warm start against training from scratch, night after night over the last days of a dataset.

    python -m benchmarks.quality.warm_start prepared/diginetica --set protocol=paper

The test part is cut into days of equal size, in the order of its sessions, since the public splits
have no times. Every night trains on all sessions before its day and is ranked on that day.
Finished runs are kept in the folder --work, so that an interrupted call continues.
"""

import json
import shutil
import statistics
from pathlib import Path
from typing import Any

from benchmarks.harness.inputs import prepare_sessions, sessions_of
from benchmarks.harness.results import parser_for, write_result
from benchmarks.harness.training import epochs_of
from posrec.config import parse_pairs
from posrec.data.dataset import PreparedDataset, load
from posrec.fitting.evaluate_run import evaluate_run
from posrec.fitting.fit import fit_run
from posrec.io import read_json
from posrec.progress import TerminalProgress
from posrec.runs.run import load_run

MODELS = ("posrec", "posrec-plus")
METRICS = ("recall@20", "mrr@20")


def main() -> None:
    parser = parser_for(__doc__, "results/warm_start.json")
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="pairs",
        help="key=value of the runs from scratch",
    )
    parser.add_argument("--work", type=Path, default=Path("warm-work"))
    options = parser.parse_args()
    days = cut(load(options.dataset), options.days, options.work / "days")
    models = {}
    for model in MODELS:
        rows = nights(days, model, parse_pairs(options.pairs), options.work / model)
        models[model] = {"by_day": rows, "mean": summary(rows)}
        print(model, json.dumps(models[model]["mean"], indent=2))
    sizes = [
        {
            "train_sessions": day.train.sessions,
            "train_items": day.train_items,
            "test_samples": len(day.test),
        }
        for day in days
    ]
    write_result(
        options.out, {"dataset": options.dataset.name, "days": sizes, "models": models}
    )


def cut(data: PreparedDataset, days: int, folder: Path) -> list[PreparedDataset]:
    """A prepared dataset for each day: trained on everything before it, tested on it."""
    train = sessions_of(data, data.train)
    test = sessions_of(data, data.test)
    datasets = []
    for day in range(days):
        path = folder / str(day)
        if path.exists():
            datasets.append(load(path / "data"))
            continue
        start = round(len(test) * day / days)
        end = round(len(test) * (day + 1) / days)
        prepared = prepare_sessions(path, train + test[:start], test[start:end])
        datasets.append(prepared)
    return datasets


def nights(
    days: list[PreparedDataset], model: str, settings: dict[str, Any], folder: Path
) -> list[dict[str, Any]]:
    """A run from scratch and a warm one, which starts from the run of the night before.

    That run is also ranked without any training, which shows what a night of training is worth.
    """
    rows = []
    from_scratch = {"model": model, "settings": settings}
    before = folder / "scratch-1"
    with TerminalProgress() as progress:
        train(days[0], before, progress, **from_scratch)
        for number, day in enumerate(days[1:], start=2):
            out = folder / f"scratch-{number}"
            scratch = train(day, out, progress, **from_scratch)
            out = folder / f"warm-{number}"
            warm = train(day, out, progress, start_from=before)
            untrained = evaluate_run(
                load_run(before), day, "auto", progress, match_ids=True
            )
            row = {
                "day": number,
                "scratch": scratch,
                "warm": warm,
                "no training": {name: untrained.metrics[name] for name in METRICS},
            }
            rows.append(row)
            before = out
    return rows


def train(
    day: PreparedDataset, out: Path, progress: TerminalProgress, **how: Any
) -> dict[str, Any]:
    """The metrics and the steps of a training, which is not repeated if it is done."""
    if not (out / "metrics.json").exists():
        shutil.rmtree(out, ignore_errors=True)
        fit_run(
            day,
            out=out,
            progress=progress,
            resumable=False,
            export=False,
            **{"model": None, **how},
        )
    metrics = read_json(out / "metrics.json")
    epochs = epochs_of(out)
    return {
        **{name: metrics[name] for name in METRICS},
        "steps": sum(line["steps"] for line in epochs if "part" not in line),
        "seconds": round(sum(line["seconds"] for line in epochs), 2),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Means over the days, metrics in per cent."""

    def mean(kind: str, name: str) -> float:
        return statistics.fmean(row[kind][name] for row in rows)

    kinds = ("scratch", "warm", "no training")
    figures = {
        f"{kind} {name}": round(100 * mean(kind, name), 2)
        for name in METRICS
        for kind in kinds
    }
    shares = {
        f"share of {name}": mean("warm", name) / mean("scratch", name)
        for name in ("steps", "seconds")
    }
    return figures | {name: round(share, 3) for name, share in shares.items()}


if __name__ == "__main__":
    main()
