"""Warm start against training from scratch, night after night over the last days of a dataset.

    python benchmarks/warm_start.py prepared/diginetica --work warm-work --out results/warm_start.json

The sessions of both parts are put in order of time and the latest ones are cut into days: by the clock where the
dataset has times, else into equal parts of the test part, with the number of a session as its time. For each day d, the
training sessions are all before it.

    day 1            one run from scratch
    day 2, 3, ...    one run from scratch, and one that starts from the warm run of the day before (day 2: from day 1's)

Both are ranked on day d, and so is the warm run of the day before without any training, which says what a night of
training is worth. Finished runs are kept in the folder --work, so that a stopped call continues.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import command, conditions, parser_for, write_split
from posrec.config import parse_pairs
from posrec.data.dataset import PreparedDataset, load
from posrec.fitting.evaluate_run import evaluate_run
from posrec.fitting.fit import fit_run
from posrec.io import read_json, write_json
from posrec.progress import TerminalProgress
from posrec.runs.run import load_run

DAY = 86_400_000
METRICS = ("recall@20", "mrr@20")


def main() -> None:
    parser = parser_for(__doc__, "results/warm_start.json")
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--days", type=int, default=7)
    parser.add_argument("--sessions", type=int, help="use only so many of the latest sessions")
    parser.add_argument("--models", default="posrec,posrec-plus")
    parser.add_argument("--set", action="append", default=[], dest="pairs", help="key=value of the runs from scratch")
    parser.add_argument("--warm-set", action="append", default=[], dest="warm_pairs", help="key=value of warm starts")
    parser.add_argument("--work", type=Path, default=Path("warm-work"))
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    days = cut(load(options.dataset), options.days, options.sessions, options.work / "days")
    settings = parse_pairs(options.pairs)
    warm_settings = parse_pairs(options.warm_pairs)  # all others are those of the run that it starts from
    results: dict[str, Any] = {
        "command": command(),
        "dataset": options.dataset.name,
        "conditions": conditions(),
        "days": [
            {"train_sessions": day.train.sessions, "train_items": day.train_items, "test_samples": len(day.test)}
            for day in days
        ],
        "models": {},
    }
    with TerminalProgress() as progress:
        for model in options.models.split(","):
            rows = []
            folder = options.work / model
            before = folder / "scratch-1"
            finished(days[0], model, before, settings, options.device, progress)
            for number, day in enumerate(days[1:], start=2):
                scratch = finished(day, model, folder / f"scratch-{number}", settings, options.device, progress)
                warm = finished(day, None, folder / f"warm-{number}", warm_settings, options.device, progress, before)
                untrained = evaluate_run(load_run(before), day, options.device, progress, match_ids=True)
                without_training = {name: untrained.metrics[name] for name in METRICS}
                rows.append({"day": number, "scratch": scratch, "warm": warm, "no training": without_training})
                before = folder / f"warm-{number}"
                results["models"][model] = {"by_day": rows, "mean": summary(rows)}
                write_json(options.out, results)
            print(model, json.dumps(results["models"][model]["mean"], indent=2))


def cut(data: PreparedDataset, days: int, sessions: int | None, folder: Path) -> list[PreparedDataset]:
    """A prepared dataset for each day: trained on everything before it, tested on it."""
    items, lengths, times = (
        np.concatenate([getattr(part, name).numpy() for part in (data.train, data.test)])
        for name in ("items", "lengths", "times")
    )
    times = np.maximum.accumulate(times)  # sessions in the order of their last clicks may begin before the one before
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    first = 0 if sessions is None else max(0, len(times) - sessions)
    if data.test.sessions and times[-1] - times[0] > DAY:
        starts = np.searchsorted(times, times[-1] + 1 - DAY * np.arange(days, 0, -1))
    else:
        times = np.arange(len(times))
        share = (data.test.sessions or len(times) // 10) * (len(times) - first) / len(times)
        starts = len(times) - np.round(share * np.arange(days, 0, -1) / days).astype(int)
    found = []
    for number, (start, end) in enumerate(zip(starts, [*starts[1:], len(times)], strict=True), start=1):
        path, sizes = folder / str(number), (first, int(start), int(end))
        day = load(path) if path.exists() else write_split(path, data.vocabulary, items, offsets, times, *sizes)
        found.append(day)
    return found


def finished(
    day: PreparedDataset,
    model: str | None,
    out: Path,
    settings: dict[str, Any],
    device: str,
    progress: TerminalProgress,
    start_from: Path | None = None,
) -> dict[str, Any]:
    """Train unless it is done already, on the same day; its metrics and its steps."""
    if not (out / "metrics.json").exists() or read_json(out / "metrics.json").get("dataset") != day.fingerprint:
        shutil.rmtree(out, ignore_errors=True)
        fit_run(
            day, model, out, settings, device, progress=progress, resumable=False, start_from=start_from, export=False
        )
    metrics = read_json(out / "metrics.json")
    epochs = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    trained = [line for line in epochs if "loss" in line]
    return {
        **{name: metrics[name] for name in METRICS},
        "steps": sum(line["steps"] for line in trained if "part" not in line),
        "steps_with_selection": sum(line["steps"] for line in trained),
        "seconds": round(sum(line["seconds"] for line in trained), 2),
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Means over the days, metrics in per cent."""

    def mean(kind: str, name: str) -> float:
        return float(torch.tensor([row[kind][name] for row in rows], dtype=torch.double).mean())

    kinds = ("scratch", "warm", "no training")
    figures = {f"{kind} {name}": round(100 * mean(kind, name), 2) for name in METRICS for kind in kinds}
    for name in METRICS:
        figures[f"warm minus scratch {name}"] = round(100 * (mean("warm", name) - mean("scratch", name)), 2)
    for name in ("steps", "steps_with_selection", "seconds"):
        figures[f"share of {name}"] = round(mean("warm", name) / mean("scratch", name), 3)
    return figures


if __name__ == "__main__":
    main()
