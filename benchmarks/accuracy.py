"""PosRec's accuracy under the paper's protocol, and what each choice the paper leaves open is worth.

    python benchmarks/accuracy.py --data prepared --out results/accuracy.json --seeds 5

Every cell (dataset, variant, seed) is written when it is done, and a cell that is there is not run again: a cut run
goes on where it stopped. `--minutes` stops before a cell would begin too late. Times are seconds an epoch on one GPU.
"""

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from posrec.data.sessions import load
from posrec.files import write_json
from posrec.fitting import fit_run
from posrec.listener import SilentListener
from posrec.training.log import LOG

# The paper's figures (x100) and its lambda2.
DATASETS: dict[str, dict[str, Any]] = {
    "diginetica": {"lambda2": 1.0, "paper": {"recall@5": 27.30, "recall@10": 38.87, "mrr@5": 15.31, "mrr@10": 16.85}},
    "yoochoose1_64": {
        "lambda2": 0.5,
        "paper": {"recall@5": 47.96, "recall@10": 60.90, "mrr@5": 28.83, "mrr@10": 30.57},
    },
}
VARIANTS: dict[str, dict[str, Any]] = {
    "default": {},
    "feed_forward=1": {"feed_forward": 1},
    "anchors=false": {"anchors": False},
    "encoding=none": {"encoding": "none"},
    "normalize=true": {"normalize": True},
    "precision=bf16": {"precision": "bf16"},
    "precision=fp32": {"precision": "fp32"},
    "heads=1": {"heads": 1},
    "heads=10": {"heads": 10},
    "l2=0": {"l2": 0.0},
    "l2=1e-4": {"l2": 1e-4},
    "max_length=69": {"max_length": 69},
}


def run_cell(dataset: str, folder: Path, variant: str, seed: int) -> dict[str, Any]:
    data = load(folder / dataset)
    settings = {"lambda2": DATASETS[dataset]["lambda2"], "seed": seed, **VARIANTS[variant]}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        _, outcome = fit_run(data, "posrec", Path(scratch) / "run", settings, listener=SilentListener())
        log = [json.loads(line) for line in (Path(scratch) / "run" / LOG).read_text().splitlines()]
    return {
        "dataset": dataset,
        "fingerprint": data.fingerprint,
        "variant": variant,
        "seed": seed,
        "metrics": {name: round(100 * value, 4) for name, value in outcome.metrics.items()},
        "epoch_seconds": [entry["seconds"] for entry in log],
        "total_seconds": round(time.monotonic() - began, 1),
    }


def summary(cells: list[dict[str, Any]]) -> list[str]:
    lines = []
    for dataset, facts in DATASETS.items():
        for variant in VARIANTS:
            of = [cell for cell in cells if (cell["dataset"], cell["variant"]) == (dataset, variant)]
            if not of:
                continue
            parts = []
            for metric, paper in facts["paper"].items():
                values = [cell["metrics"][metric] for cell in of]
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                parts.append(f"{metric} {statistics.mean(values):.2f} +- {spread:.2f} (paper {paper:.2f})")
            epoch = statistics.median(second for cell in of for second in cell["epoch_seconds"][1:])
            lines.append(f"{dataset:14} {variant:16} {len(of)} seeds: {'  '.join(parts)}  {epoch:.2f} s an epoch")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("prepared"), help="holds the prepared datasets, by name")
    parser.add_argument("--out", type=Path, default=Path("results/accuracy.json"))
    parser.add_argument("--seeds", type=int, default=5, help="for the default; variants get --variant-seeds")
    parser.add_argument("--variant-seeds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60)
    arguments = parser.parse_args()
    report = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"cells": []}
    done = {(cell["dataset"], cell["variant"], cell["seed"]) for cell in report["cells"]}
    wanted = [
        (dataset, variant, seed)
        for variant in VARIANTS
        for dataset in DATASETS
        for seed in range(arguments.seeds if variant == "default" else arguments.variant_seeds)
    ]
    began = time.monotonic()
    for cell in wanted:
        if cell in done:
            continue
        if time.monotonic() - began > 60 * arguments.minutes:
            print("out of time; run again to go on")
            break
        report["cells"].append(run_cell(cell[0], arguments.data, cell[1], cell[2]))
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
        report |= {"command": " ".join(sys.argv), "machine": device, "torch": torch.__version__,
                   "python": platform.python_version(), "protocol": "paper"}  # fmt: skip
        write_json(arguments.out, report)
        print(report["cells"][-1]["dataset"], cell[1:], report["cells"][-1]["total_seconds"], "s", flush=True)
    print("\n".join(summary(report["cells"])))


if __name__ == "__main__":
    main()
