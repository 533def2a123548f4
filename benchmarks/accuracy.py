"""PosRec's accuracy under the paper's protocol, and what each choice that the paper leaves open is worth.

    python benchmarks/accuracy.py --data prepared --out accuracy [--rows heads l2] [--json results/accuracy.json]

The result of a job (dataset, model with settings, seed) is saved when it is done, and a job with a saved result is not
run again: an interrupted run continues where it stopped. After `--minutes` no job is started. The records of
all jobs, without their ranks, are written to the result file. The rows of the other models are those of
`posrec reproduce overall`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness import parser_for, write_result
from posrec.data.dataset import load
from posrec.experiments.reproduce.grid import TableRow, jobs_of
from posrec.experiments.reproduce.jobs import Job, run_jobs
from posrec.progress import TerminalProgress

DATASETS = ("diginetica", "yoochoose1_64")
CHOICES: list[dict[str, Any]] = [
    {"feed_forward": 1}, {"anchors": False}, {"encoding": "none"}, {"normalize": True}, {"precision": "bf16"},
    {"precision": "fp32"}, {"heads": 1}, {"heads": 10}, {"l2": 0}, {"l2": 0.0001}, {"initialization": "normal"},
    {"max_length": 69},
]  # fmt: skip


def wanted(seeds: int) -> Iterable[Job]:
    for dataset in DATASETS:
        yield from jobs_of(TableRow("PosRec", "posrec"), dataset, seeds)
        for choice in CHOICES:
            yield from jobs_of(TableRow("PosRec", "posrec", choice), dataset, 1)


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--data", type=Path, default=Path("prepared"), help="holds the prepared datasets, by name")
    parser.add_argument("--out", type=Path, default=Path("accuracy"), help="the folder for the results of jobs")
    parser.add_argument("--seeds", type=int, default=5, help="of PosRec with its defaults; each choice gets one")
    parser.add_argument("--rows", nargs="*", help="only jobs whose name contains one of these words")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--json", type=Path, default=Path("results/accuracy.json"), help="the result file")
    arguments = parser.parse_args()
    datasets = {name: load(arguments.data / name) for name in DATASETS}
    jobs = [job for job in wanted(arguments.seeds)
             if not arguments.rows or any(word in job.name for word in arguments.rows)]  # fmt: skip
    with TerminalProgress() as progress:
        results = run_jobs(jobs, datasets, arguments.out, minutes=arguments.minutes, progress=progress)
    write_result(arguments.json, {"records": [result.record for result in results.values()]})


if __name__ == "__main__":
    main()
