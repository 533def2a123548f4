"""PosRec's accuracy under the paper's protocol, and what each choice that the paper leaves open is worth; and that of
the models that only count.

    python benchmarks/accuracy.py posrec --data prepared          results/accuracy.json
    python benchmarks/accuracy.py counting --data prepared        results/counting.json

Nothing is chosen here: the settings of counting models were tuned on the validation parts. The result of a job is saved
when it is done, and a job with a saved result is not run again: an interrupted run continues where it stopped. After
`--minutes` no job is started. The records of all jobs, without their ranks, are written to the result file. The rows of
the other models are those of `posrec reproduce overall`.
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
    {"feed_forward": 1},
    {"anchors": False},
    {"encoding": "none"},
    {"normalize": True},
    {"precision": "bf16"},
    {"precision": "fp32"},
    {"heads": 1},
    {"heads": 10},
    {"l2": 0},
    {"l2": 0.0001},
    {"initialization": "normal"},
    {"max_length": 69},
]
COUNTING = ("pop", "spop", "itemknn", "vsknn", "stan", "coclick")
# Where the validation part of one dataset prefers others than the defaults, which serve both.
OTHER_SETTINGS = [Job("yoochoose1_64", "vsknn", {"weighting": "harmonic", "k": 500})]
RESULTS = {"posrec": ("results/accuracy.json", "records"), "counting": ("results/counting.json", "rows")}


def wanted(models: str) -> Iterable[Job]:
    """Five seeds of PosRec with its defaults, and one of each choice; the counting models have no randomness."""
    for dataset in DATASETS:
        if models == "counting":
            yield from (Job(dataset, model) for model in COUNTING)
        else:
            yield from jobs_of(TableRow("PosRec", "posrec"), dataset, 5)
            for choice in CHOICES:
                yield from jobs_of(TableRow("PosRec", "posrec", choice), dataset, 1)
    yield from OTHER_SETTINGS if models == "counting" else ()


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("models", choices=RESULTS)
    parser.add_argument("--data", type=Path, default=Path("prepared"), help="holds the prepared datasets, by name")
    parser.add_argument("--jobs", type=Path, default=Path("accuracy"), help="the folder for the results of jobs")
    parser.add_argument("--minutes", type=float)
    arguments = parser.parse_args()
    datasets = {name: load(arguments.data / name) for name in DATASETS}
    jobs = list(wanted(arguments.models))
    with TerminalProgress() as progress:
        results = run_jobs(jobs, datasets, arguments.jobs, minutes=arguments.minutes, progress=progress)
    file, key = RESULTS[arguments.models]
    write_result(Path(file), {key: [result.record for result in results.values()]})


if __name__ == "__main__":
    main()
