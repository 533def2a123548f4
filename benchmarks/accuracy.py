"""PosRec's accuracy under the paper's protocol, and what each choice that the paper leaves open is worth.

    python benchmarks/accuracy.py --data prepared --out results/cells --seeds 5 [--rows heads l2]

A cell (dataset, model with settings, seed) is written when it is done, and one that is there is not run again: a cut
run goes on where it stopped. After `--minutes` no cell is begun. Times are seconds an epoch on one GPU. The other
models' rows are `posrec reproduce overall`.
"""

import argparse
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from posrec.data.dataset import load
from posrec.experiments.reproduce.grid import Row, cells_of
from posrec.experiments.reproduce.jobs import Cell, Outcome, run_cells
from posrec.progress import TerminalProgress

DATASETS = ("diginetica", "yoochoose1_64")
CHOICES: list[dict[str, Any]] = [
    {"feed_forward": 1}, {"anchors": False}, {"encoding": "none"}, {"normalize": True}, {"precision": "bf16"},
    {"precision": "fp32"}, {"heads": 1}, {"heads": 10}, {"l2": 0}, {"l2": 0.0001}, {"start": "normal"},
    {"max_length": 69},
]  # fmt: skip
SHOWN = ("recall@5", "recall@10", "mrr@5", "mrr@10")


def wanted(seeds: int) -> Iterable[Cell]:
    for dataset in DATASETS:
        yield from cells_of(Row("PosRec", "posrec"), dataset, seeds)
        for choice in CHOICES:
            yield from cells_of(Row("PosRec", "posrec", choice), dataset, 1)


def summary(outcomes: Iterable[Outcome]) -> list[str]:
    rows: dict[tuple[str, str], list[Outcome]] = {}
    for outcome in outcomes:
        rows.setdefault((outcome.cell.dataset, outcome.cell.row), []).append(outcome)
    lines = []
    for (dataset, row), of in rows.items():
        whole = [outcome for outcome in of if not outcome.error]
        parts = [f"{len(of) - len(whole)} failed"] if len(whole) < len(of) else []
        for metric in SHOWN if whole else ():
            values = [outcome.metrics[metric] for outcome in whole]
            spread = f" +- {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            parts.append(f"{metric} {statistics.mean(values):.2f}{spread}")
        seconds = [second for outcome in whole for second in outcome.record["epoch_seconds"][1:]]
        parts += [f"{statistics.median(seconds):.2f} s an epoch"] if seconds else []
        lines.append(f"{dataset:14} {row:30} {len(of)} seeds: {'  '.join(parts)}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("prepared"), help="holds the prepared datasets, by name")
    parser.add_argument("--out", type=Path, default=Path("results/cells"))
    parser.add_argument("--seeds", type=int, default=5, help="of PosRec as it is; each choice gets one")
    parser.add_argument("--rows", nargs="*", help="only cells whose name holds one of these words")
    parser.add_argument("--minutes", type=float)
    arguments = parser.parse_args()
    datasets = {name: load(arguments.data / name) for name in DATASETS}
    cells = [cell for cell in wanted(arguments.seeds)
             if not arguments.rows or any(word in cell.name for word in arguments.rows)]  # fmt: skip
    with TerminalProgress() as progress:
        outcomes = run_cells(cells, datasets, arguments.out, minutes=arguments.minutes, progress=progress)
    print("\n".join(summary(outcomes.values())))


if __name__ == "__main__":
    main()
