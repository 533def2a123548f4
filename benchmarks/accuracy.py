"""What each choice that the paper leaves open is worth to PosRec, one seed each; and the models that only count.

    python benchmarks/accuracy.py posrec --data prepared          results/accuracy.json
    python benchmarks/accuracy.py counting --data prepared        results/counting.json

Nothing is chosen here: the settings of counting models were tuned on the validation parts. The result of a job is saved
when it is done, and a job with a saved result is not run again: an interrupted run continues where it stopped. The
records of all jobs, without their ranks, are written to the result file. PosRec with its defaults and the rows of the
other models are those of `posrec reproduce overall`.
"""

from pathlib import Path
from typing import Any

from harness import parser_for, write_result
from posrec.data.dataset import load
from posrec.experiments.reproduce.grid import TableRow, jobs_of
from posrec.experiments.reproduce.jobs import run_jobs
from posrec.progress import TerminalProgress

DATASETS = ("diginetica", "yoochoose1_64")
CHOICES: list[dict[str, Any]] = [
    {"feed_forward": 1},
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
RESULTS = {"posrec": ("results/accuracy.json", "records"), "counting": ("results/counting.json", "rows")}


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("models", choices=RESULTS)
    parser.add_argument("--data", type=Path, default=Path("prepared"), help="holds the prepared datasets, by name")
    parser.add_argument("--jobs", type=Path, default=Path("accuracy"), help="the folder for the results of jobs")
    arguments = parser.parse_args()
    datasets = {name: load(arguments.data / name) for name in DATASETS}
    choices = [TableRow("PosRec", "posrec", choice) for choice in CHOICES]
    rows = choices if arguments.models == "posrec" else [TableRow(model, model) for model in COUNTING]
    jobs = [job for name in DATASETS for row in rows for job in jobs_of(row, name, 1)]
    with TerminalProgress() as progress:
        results = run_jobs(jobs, datasets, arguments.jobs, progress=progress)
    file, key = RESULTS[arguments.models]
    write_result(Path(file), {key: [result.record for result in results.values()]})


if __name__ == "__main__":
    main()
