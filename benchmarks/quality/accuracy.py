"""Accuracy on the real test parts of PosRec's open choices, posrec-plus and the counting models.

    python -m benchmarks.quality.accuracy posrec_plus

Nothing is chosen here: every setting was chosen on the validation parts. The result of a job is
saved when it is done, and a job with a saved result is not run again, so an interrupted run
continues where it stopped. Rows of other models are the same as in `posrec reproduce overall`.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.harness.results import parser_for, write_result
from benchmarks.harness.side_by_side import SideBySide
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
# six epochs on all sessions, without the choice of the number of epochs
SIX = {"protocol": "paper"}
WITHOUT: dict[str, dict[str, Any]] = {
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
ENCODINGS = [
    TableRow(name, PLUS, {**SIX, "encoding": name})
    for name in ("none", "lpe", "lrpe", "ldpe")
]
OTHERS = [
    TableRow(name, name.lower()) for name in ("PosRec", "STAN", "VSKNN", "coclick")
]
# posrec: what each choice that the paper leaves open is worth. posrec_plus: the model, with each
# part removed in turn, and other models. positions: posrec-plus with each encoding of positions.
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
    "positions": ENCODINGS,
}
FILES = {
    "posrec": "results/accuracy.json",
    "counting": "results/counting.json",
    "posrec_plus": "results/posrec_plus.json",
    "positions": "results/positions.json",
}
# Tables with three seeds, and the rows whose differences are tested.
PAIRS = {
    "posrec_plus": [
        *((ALL_PARTS, row.label) for row in PARTS),
        *((PLUS, row.label) for row in OTHERS),
    ],
    "positions": [("none", row.label) for row in ENCODINGS[1:]],
}


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
    parser.add_argument(
        "--side-by-side", type=int, default=1, help="how many jobs run at a time"
    )
    arguments = parser.parse_args()
    table = arguments.table
    datasets = {name: load(arguments.data / name) for name in DATASETS}
    seeds = 3 if table in PAIRS else 1
    jobs = [
        job
        for row in ROWS[table]
        for name in DATASETS
        for job in jobs_of(row, name, seeds)
    ]
    jobs.sort(key=lambda job: job.seed)  # a stopped call leaves whole tables
    processes = arguments.side_by_side
    executor = SideBySide(processes, math.inf) if processes > 1 else None
    with TerminalProgress() as progress:
        results = run_jobs(
            jobs,
            datasets,
            arguments.jobs,
            minutes=arguments.minutes,
            progress=progress,
            executor=executor,
        )
    done = {name: result for name, result in results.items() if not result.error}
    records: list[Any] = []
    if table in PAIRS:
        for name, data in datasets.items():
            records += tested_rows(table, name, data, done, seeds)
    else:
        records += [result.record for result in done.values()]
    key = "records" if table == "posrec" else "rows"
    write_result(Path(FILES[table]), {key: records})


def tested_rows(
    table: str,
    dataset: str,
    data: PreparedDataset,
    done: dict[str, JobResult],
    seeds: int,
) -> list[dict[str, Any]]:
    """Rows of a table: the metrics of every seed and their mean (x100), times, differences.

    Differences are tested on the same test samples, with the errors over sessions and over seeds,
    corrected by Holm's method over all rows and both metrics of the dataset.
    """
    results: dict[str, list[JobResult]] = {}
    for row in ROWS[table]:
        results[row.label] = [
            done[job.name] for job in jobs_of(row, dataset, seeds) if job.name in done
        ]
    differences = find_differences(results, PAIRS[table], data, METRICS)
    records = []
    for row in ROWS[table]:
        of_seeds = results[row.label]
        if not of_seeds:
            continue
        means = {
            metric: round(mean(result.metrics[metric] for result in of_seeds), 3)
            for metric in of_seeds[0].metrics
        }
        by_seed = {
            metric: [result.metrics[metric] for result in of_seeds]
            for metric in METRICS
        }
        lower_than = {
            difference["metric"]: tested(difference)
            for difference in differences
            if difference["second"] == row.label
        }
        record = {
            "dataset": dataset,
            "fingerprint": data.fingerprint,
            "row": row.label,
            "model": row.model,
            "settings": dict(row.settings),
            "seeds": [result.record["seed"] for result in of_seeds],
            "mean": means,
            "by_seed": by_seed,
            "total_seconds": [result.record["total_seconds"] for result in of_seeds],
            "lower_than": lower_than,
        }
        records.append(record)
    return records


def tested(difference: Mapping[str, Any]) -> dict[str, Any]:
    margin = difference["margin"]
    return {
        "than": difference["first"],
        "by": round(difference["difference"], 3),
        "margin": margin and round(margin, 3),
        "p": difference["p"],
    }


if __name__ == "__main__":
    main()
