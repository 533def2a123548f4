"""Time, memory and accuracy of a training, alone on its device; or the time of the whole command.

    python benchmarks/training_time.py prepared/diginetica --model posrec-plus
    python benchmarks/training_time.py prepared/diginetica --model posrec --seeds 5 --set batch_size=1024 ...
    python benchmarks/training_time.py prepared/diginetica --model posrec --seeds 3 --command --out results/command.json

A row of results/training_time.json is replaced when it is measured again. Seconds of an epoch are those of the median
epoch; the time to compile is in the total alone, and is short if the machine has compiled the same before. With
--command, `posrec train` is timed from start to exit, each time in a process of its own; the first may have to compile.
"""

import statistics
import tempfile
import time
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
    parser.add_argument("--set", action="append", default=[], dest="pairs", help="key=value, as for posrec train")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--command", action="store_true", help="time the whole command, as often as there are seeds")
    options = parser.parse_args()
    if options.command:
        pairs = [word for pair in options.pairs for word in ("--set", pair)]
        words = ["train", str(options.dataset), "--model", options.model, *pairs]
        with tempfile.TemporaryDirectory() as folder:
            lines = [posrec(*words, "--out", f"{folder}/run-{seed}") for seed in range(options.seeds)]
            seconds = [measured(line)["seconds"] for line in lines]
        write_result(options.out, {"timed": " ".join(["posrec", *words]), "seconds": seconds})
        return
    dataset, settings = load(options.dataset), parse_pairs(options.pairs)
    with TerminalProgress() as progress:
        runs = [trained(dataset, options.model, settings | {"seed": seed}, progress) for seed in range(options.seeds)]
    row = {
        "dataset": options.dataset.name,
        "model": options.model,
        "settings": settings,
        "epoch_seconds": round(statistics.median(second for run in runs for second in run["epochs"]), 3),
        "training_seconds": [round(sum(run["epochs"]), 2) for run in runs],
        "total_seconds": [run["total"] for run in runs],
        "peak_gb": max(run["peak_gb"] for run in runs),
        "metrics": {name: [round(100 * run["metrics"][name], 3) for run in runs] for name in METRICS},
    }
    write_row(options.out, row, ("dataset", "model", "settings"))


def trained(data: Any, model: str, settings: dict[str, Any], progress: TerminalProgress) -> dict[str, Any]:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        _, outcome = fit_run(data, model, out, settings, progress=progress, resumable=False, export=False)
        total = time.perf_counter() - began
        return {
            "epochs": [line["seconds"] for line in epochs_of(out)],
            "total": round(total, 1),
            "peak_gb": round(torch.cuda.max_memory_allocated() / 2**30, 2),  # 0 on a CPU
            "metrics": outcome.metrics,
        }


if __name__ == "__main__":
    main()
