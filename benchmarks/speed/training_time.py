"""Time, memory and accuracy of a training, alone on its device; or the time of the whole command.

    python -m benchmarks.speed.training_time prepared/diginetica --command --out command.json

A row of results/training_time.json is replaced when it is measured again. The time to compile is
in the total alone, and is short if the machine has compiled the same before. On a machine that has
other work, compare the CPU seconds.
"""

import argparse
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.measuring import measured, posrec
from benchmarks.harness.results import parser_for, write_result, write_row
from benchmarks.harness.training import epochs_of
from posrec.config import parse_pairs
from posrec.data.dataset import load
from posrec.fitting.fit import fit_run
from posrec.progress import TerminalProgress

METRICS = ("recall@10", "mrr@10", "recall@20", "mrr@20")


def main() -> None:
    parser = parser_for(__doc__, "results/training_time.json")
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--model", default="posrec-plus")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        dest="pairs",
        help="key=value, as for posrec train",
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--command",
        action="store_true",
        help="time the whole command, as often as there are seeds",
    )
    parser.add_argument(
        "--beside",
        action="store_true",
        help="with --command: then time the same number of commands at the same time",
    )
    options = parser.parse_args()
    if options.command:
        time_commands(options)
    else:
        time_trainings(options)


def time_commands(options: argparse.Namespace) -> None:
    """Time `posrec train` from start to exit. The first one may have to compile."""
    words = ["train", str(options.dataset), "--model", options.model]
    for pair in options.pairs:
        words += ["--set", pair]
    with tempfile.TemporaryDirectory() as folder:

        def lines(kind: str) -> list[list[str]]:
            return [
                posrec(*words, "--out", f"{folder}/{kind}-{seed}")
                for seed in range(options.seeds)
            ]

        alone = [measured(line) for line in lines("alone")]
        first, *others = (figures["seconds"] for figures in alone)
        result: dict[str, Any] = {"first_seconds": first, "seconds": others}
        if options.beside:
            result["alone"] = alone
            with ThreadPoolExecutor(options.seeds) as together:
                result["together"] = list(together.map(measured, lines("beside")))
    write_result(options.out, {"timed": " ".join(["posrec", *words]), **result})


def time_trainings(options: argparse.Namespace) -> None:
    dataset = load(options.dataset)
    settings = parse_pairs(options.pairs)
    with TerminalProgress() as progress:
        runs = [
            trained(dataset, options.model, settings | {"seed": seed}, progress)
            for seed in range(options.seeds)
        ]
    epochs = [seconds for run in runs for seconds in run["epochs"]]
    row = {
        "dataset": options.dataset.name,
        "model": options.model,
        "settings": settings,
        "epoch_seconds": round(statistics.median(epochs), 3),
        "training_seconds": [round(sum(run["epochs"]), 2) for run in runs],
        "total_seconds": [run["total"] for run in runs],
        "peak_gb": max(run["peak_gb"] for run in runs),
        "metrics": {
            name: [round(100 * run["metrics"][name], 3) for run in runs]
            for name in METRICS
        },
    }
    write_row(options.out, row, ("dataset", "model", "settings"))


def trained(
    data: Any, model: str, settings: dict[str, Any], progress: TerminalProgress
) -> dict[str, Any]:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        _, outcome = fit_run(
            data, model, out, settings, progress=progress, resumable=False, export=False
        )
        total = time.perf_counter() - began
        peak = torch.cuda.max_memory_allocated()  # 0 on a CPU
        return {
            "epochs": [line["seconds"] for line in epochs_of(out)],
            "total": round(total, 1),
            "peak_gb": round(peak / 2**30, 2),
            "metrics": outcome.metrics,
        }


if __name__ == "__main__":
    main()
