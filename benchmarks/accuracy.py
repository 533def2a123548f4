"""PosRec's accuracy under the paper's protocol, and what each choice that the paper leaves open is worth.

    python benchmarks/accuracy.py --data prepared --out accuracy [--rows heads l2] [--json results/accuracy.json]

The result of a job (dataset, model with settings, seed) is saved when it is done, and a job with a saved result is not
run again: an interrupted run continues where it stopped. After `--minutes` no job is started. `--json` writes the
records of all jobs, without their ranks, into one file. Times are seconds an epoch on one GPU. The rows of the other
models are those of `posrec reproduce overall`.
"""

import argparse
import shlex
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from posrec.data.dataset import load
from posrec.experiments.reproduce.grid import TableRow, jobs_of
from posrec.experiments.reproduce.jobs import Job, JobResult, run_jobs
from posrec.io import write_json
from posrec.progress import TerminalProgress

DATASETS = ("diginetica", "yoochoose1_64")
CHOICES: list[dict[str, Any]] = [
    {"feed_forward": 1}, {"anchors": False}, {"encoding": "none"}, {"normalize": True}, {"precision": "bf16"},
    {"precision": "fp32"}, {"heads": 1}, {"heads": 10}, {"l2": 0}, {"l2": 0.0001}, {"initialization": "normal"},
    {"max_length": 69},
]  # fmt: skip
SHOWN = ("recall@5", "recall@10", "mrr@5", "mrr@10")


def wanted(seeds: int) -> Iterable[Job]:
    for dataset in DATASETS:
        yield from jobs_of(TableRow("PosRec", "posrec"), dataset, seeds)
        for choice in CHOICES:
            yield from jobs_of(TableRow("PosRec", "posrec", choice), dataset, 1)


def summary(results: Iterable[JobResult]) -> list[str]:
    rows: dict[tuple[str, str], list[JobResult]] = {}
    for result in results:
        rows.setdefault((result.job.dataset, result.job.row), []).append(result)
    lines = []
    for (dataset, row), of in rows.items():
        whole = [result for result in of if not result.error]
        parts = [f"{len(of) - len(whole)} failed"] if len(whole) < len(of) else []
        for metric in SHOWN if whole else ():
            values = [result.metrics[metric] for result in whole]
            spread = f" +- {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            parts.append(f"{metric} {statistics.mean(values):.2f}{spread}")
        seconds = [second for result in whole for second in result.record["epoch_seconds"][1:]]
        parts += [f"{statistics.median(seconds):.2f} s an epoch"] if seconds else []
        lines.append(f"{dataset:14} {row:30} {len(of)} seeds: {'  '.join(parts)}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("prepared"), help="holds the prepared datasets, by name")
    parser.add_argument("--out", type=Path, default=Path("accuracy"), help="the folder for the results of jobs")
    parser.add_argument("--seeds", type=int, default=5, help="of PosRec with its defaults; each choice gets one")
    parser.add_argument("--rows", nargs="*", help="only jobs whose name contains one of these words")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--json", type=Path, help="write the records of all jobs into this file")
    arguments = parser.parse_args()
    datasets = {name: load(arguments.data / name) for name in DATASETS}
    jobs = [job for job in wanted(arguments.seeds)
             if not arguments.rows or any(word in job.name for word in arguments.rows)]  # fmt: skip
    with TerminalProgress() as progress:
        results = run_jobs(jobs, datasets, arguments.out, minutes=arguments.minutes, progress=progress)
    print("\n".join(summary(results.values())))
    if arguments.json:
        records = [result.record for result in results.values()]
        write_json(arguments.json, {"command": shlex.join(["python", *sys.argv]), "records": records})


if __name__ == "__main__":
    main()
