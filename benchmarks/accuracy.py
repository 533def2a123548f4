"""Accuracy on the real test parts: PosRec's open choices, posrec-plus without each of its parts,
the counting models.

    python benchmarks/accuracy.py posrec            what each choice that the paper leaves open is worth, one seed
    python benchmarks/accuracy.py counting          the models that only count
    python benchmarks/accuracy.py posrec_plus       three seeds, each part removed in turn, other models beside it

Nothing is chosen here: every setting was chosen on the validation parts. The result of a job is
saved when it is done, and a job with a saved result is not run again: an interrupted run continues
where it stopped. PosRec with its defaults and the rows of the other models are those of `posrec
reproduce overall`. Differences of posrec-plus are tested on the same test samples, with the errors
over sessions and over seeds, corrected by Holm's method over all rows and both metrics of a
dataset."""

from pathlib import Path
from statistics import mean
from typing import Any

from harness import parser_for, write_result
from posrec.data.dataset import PreparedDataset, load
from posrec.experiments.reproduce.grid import TableRow, jobs_of
from posrec.experiments.reproduce.jobs import JobResult, run_jobs
from posrec.experiments.reproduce.tables import find_differences
from posrec.progress import TerminalProgress

DATASETS = ("diginetica", "yoochoose1_64")
METRICS = ("recall@20", "mrr@20")
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
PLUS = "posrec-plus"
ALL_PARTS = "all parts"
SIX = {
    "protocol": "paper"
}  # six epochs on all sessions, without the choice of the number of epochs
WITHOUT = {
    "repeats": {"repeat": False},
    "trend": {"trend": False},
    "smoothing": {"smoothing": 0.0},
    "positions": {"encoding": "none"},
    "item dropout": {"item_dropout": 0.0},
    "message": {"message": False},
    "initial intention": {"initial": False},
    "recency": {"recency": 0.0},
    "repeat dropout": {"repeat_dropout": 0.0},
    "cosine": {"cosine": False},
}
PARTS = [
    TableRow(f"without {name}", PLUS, {**SIX, **settings})
    for name, settings in WITHOUT.items()
]
OTHERS = [
    TableRow(name, name.lower()) for name in ("PosRec", "STAN", "VSKNN", "coclick")
]
ROWS = {
    "posrec": [TableRow("PosRec", "posrec", choice) for choice in CHOICES],
    "counting": [
        TableRow(model, model)
        for model in ("pop", "spop", "itemknn", "vsknn", "stan", "coclick")
    ],
    "posrec_plus": [
        TableRow(PLUS, PLUS),
        TableRow(ALL_PARTS, PLUS, SIX),
        *PARTS,
        *OTHERS,
    ],
}
FILES = {"posrec": "results/accuracy.json", "counting": "results/counting.json"}
PAIRS = [(ALL_PARTS, row.label) for row in PARTS] + [
    (PLUS, row.label) for row in OTHERS
]


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("table", choices=ROWS)
    parser.add_argument(
        "--data",
        type=Path,
        default=Path("prepared"),
        help="holds the prepared datasets, by name",
    )
    parser.add_argument(
        "--jobs",
        type=Path,
        default=Path("accuracy"),
        help="the folder for the results of jobs",
    )
    parser.add_argument(
        "--minutes",
        type=float,
        help="start no training after this time; 0: only write the results",
    )
    given = parser.parse_args()
    datasets = {name: load(given.data / name) for name in DATASETS}
    rows = ROWS[given.table]
    seeds = 3 if given.table == "posrec_plus" else 1
    jobs = [
        job for row in rows for name in DATASETS for job in jobs_of(row, name, seeds)
    ]
    jobs.sort(key=lambda job: job.seed)  # a stopped call leaves whole tables
    with TerminalProgress() as progress:
        done = run_jobs(
            jobs, datasets, given.jobs, minutes=given.minutes, progress=progress
        )
    found = {name: result for name, result in done.items() if not result.error}
    if given.table == "posrec_plus":
        records = [
            row
            for name, data in datasets.items()
            for row in tested_rows(name, data, found, seeds)
        ]
    else:
        records = [result.record for result in found.values()]
    file = FILES.get(given.table, "results/posrec_plus.json")
    write_result(
        Path(file), {"records" if given.table == "posrec" else "rows": records}
    )


def tested_rows(
    dataset: str, data: PreparedDataset, done: dict[str, JobResult], seeds: int
) -> list[dict[str, Any]]:
    """Rows of posrec-plus: the metrics of every seed and their mean (x100), times, and how far it
    is from another."""
    results: dict[str, list[JobResult]] = {}
    for row in ROWS["posrec_plus"]:
        results[row.label] = [
            done[job.name] for job in jobs_of(row, dataset, seeds) if job.name in done
        ]
    differences = find_differences(results, PAIRS, data, METRICS)
    return [
        {
            "dataset": dataset,
            "fingerprint": data.fingerprint,
            "row": row.label,
            "model": row.model,
            "settings": dict(row.settings),
            "seeds": [result.record["seed"] for result in runs],
            "mean": {
                name: round(mean(run.metrics[name] for run in runs), 3)
                for name in runs[0].metrics
            },
            "by_seed": {name: [run.metrics[name] for run in runs] for name in METRICS},
            "total_seconds": [result.record["total_seconds"] for result in runs],
            "lower_than": {
                one["metric"]: {
                    "than": one["first"],
                    "by": round(one["difference"], 3),
                    "margin": one["margin"] and round(one["margin"], 3),
                    "p": one["p"],
                }
                for one in differences
                if one["second"] == row.label
            },
        }
        for row in ROWS["posrec_plus"]
        if (runs := results[row.label])
    ]


if __name__ == "__main__":
    main()
