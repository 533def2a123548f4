"""Time, memory and accuracy of a training, alone on its device; or the time of the whole command.

    python benchmarks/training_time.py prepared/diginetica --model posrec-plus
    python benchmarks/training_time.py prepared/diginetica --model posrec --seeds 5 --set batch_size=1024 ...
    python benchmarks/training_time.py prepared/diginetica --seeds 3 --command --out results/command.json
    python benchmarks/training_time.py posrec-demo/data --model posrec --set epochs=1 --seeds 2 --command --beside \
        --out results/side_by_side.json

A row of results/training_time.json is replaced when it is measured again. Seconds of an epoch are
those of the median epoch; the time to compile is in the total alone, and is short if the machine
has compiled the same before. With --command, `posrec train` is timed from start to exit, each time
in a process of its own; the first may have to compile. With --beside too, it is timed alone, and
then as often as there are seeds at the same time; on a machine that has other work, compare the CPU
seconds, of which threads that spin while they wait would take more."""

import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from harness import epochs_of, measured, parser_for, posrec, write_result, write_row
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
        help="time so many commands at the same time, too",
    )
    options = parser.parse_args()
    if options.command:
        pairs = [word for pair in options.pairs for word in ("--set", pair)]
        words = ["train", str(options.dataset), "--model", options.model, *pairs]
        with tempfile.TemporaryDirectory() as folder:
            alone, beside = (
                [
                    posrec(*words, "--out", f"{folder}/{kind}-{seed}")
                    for seed in range(options.seeds)
                ]
                for kind in ("alone", "beside")
            )
            measures = [measured(line) for line in alone]
            first, *others = (one["seconds"] for one in measures)
            result: dict[str, Any] = {"first_seconds": first, "seconds": others}
            if options.beside:
                result["alone"] = measures
                with ThreadPoolExecutor(options.seeds) as together:
                    result["together"] = list(together.map(measured, beside))
        write_result(options.out, {"timed": " ".join(["posrec", *words]), **result})
        return
    dataset = load(options.dataset)
    settings = parse_pairs(options.pairs)
    with TerminalProgress() as progress:
        runs = [
            trained(dataset, options.model, settings | {"seed": seed}, progress)
            for seed in range(options.seeds)
        ]
    row = {
        "dataset": options.dataset.name,
        "model": options.model,
        "settings": settings,
        "epoch_seconds": round(
            statistics.median(second for run in runs for second in run["epochs"]), 3
        ),
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
        return {
            "epochs": [line["seconds"] for line in epochs_of(out)],
            "total": round(total, 1),
            "peak_gb": round(
                torch.cuda.max_memory_allocated() / 2**30, 2
            ),  # 0 on a CPU
            "metrics": outcome.metrics,
        }


if __name__ == "__main__":
    main()
