"""posrec-plus on the real test parts: three seeds, each part removed in turn, and the other models beside it.

    python benchmarks/posrec_plus.py --data prepared --jobs plus-jobs --out results/posrec_plus.json

Finished trainings are kept in the folder of jobs, so that a stopped call continues, and several processes share them
(`--minutes 0` runs none and only writes the results). Nothing is chosen here: every setting was chosen on the
validation parts (docs/models_plus.md). Differences are tested on the same test samples, with the errors over sessions
and over seeds, corrected by Holm's method over all rows and both metrics of a dataset.
"""

from pathlib import Path
from typing import Any

from harness import parser_for, write_result
from posrec.data.dataset import load
from posrec.experiments.reproduce.grid import TableRow, jobs_of
from posrec.experiments.reproduce.jobs import JobResult, run_jobs
from posrec.experiments.reproduce.tables import Line, find_differences
from posrec.progress import TerminalProgress

DATASETS = ("diginetica", "yoochoose1_64")
SEEDS = 3
METRICS = ("recall@20", "mrr@20")
PLUS = "posrec-plus"
ALL_PARTS = "all parts"
# A part is removed from trainings of six epochs on all sessions, without the choice of the number of epochs.
SIX = {"protocol": "paper"}
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
ROWS = (
    TableRow(PLUS, PLUS),
    TableRow(ALL_PARTS, PLUS, SIX),
    *(TableRow(f"without {name}", PLUS, {**SIX, **settings}) for name, settings in WITHOUT.items()),
    TableRow("PosRec", "posrec"),
    TableRow("STAN", "stan"),
    TableRow("VSKNN", "vsknn"),
    TableRow("co-clicks", "coclick"),
)
PAIRS = [(ALL_PARTS, row.label) for row in ROWS if row.label.startswith("without")] + [
    (PLUS, name) for name in ("PosRec", "STAN", "VSKNN", "co-clicks")
]


def main() -> None:
    parser = parser_for(__doc__, "results/posrec_plus.json")
    parser.add_argument("--data", type=Path, default=Path("prepared"), help="holds the prepared datasets, by name")
    parser.add_argument("--jobs", type=Path, default=Path("plus-jobs"), help="finished trainings")
    parser.add_argument("--minutes", type=float, help="start no training after this time")
    arguments = parser.parse_args()
    datasets = {name: load(arguments.data / name) for name in DATASETS}
    # The first seed of every row, then the second: a stopped call leaves whole tables.
    jobs = [job for row in ROWS for name in DATASETS for job in jobs_of(row, name, SEEDS)]
    jobs.sort(key=lambda job: (not (job.model == PLUS and not job.settings), job.seed))
    with TerminalProgress() as progress:
        done = run_jobs(jobs, datasets, arguments.jobs, minutes=arguments.minutes, progress=progress)
    results = []
    for name, data in datasets.items():
        lines = [line for row in ROWS if (line := line_of(row, name, done)).results]
        found = find_differences(lines, PAIRS, data, METRICS)
        for line in lines:
            differences = [one for one in found if line.row.label == one.second]
            results.append({"dataset": name, "fingerprint": data.fingerprint, **as_json(line, differences)})
    write_result(arguments.out, {"rows": results})


def line_of(row: TableRow, dataset: str, done: dict[str, JobResult]) -> Line:
    jobs = jobs_of(row, dataset, SEEDS)
    found = [done[job.name] for job in jobs if job.name in done and not done[job.name].error]
    return Line(row, tuple(found))


def as_json(line: Line, differences: list[Any]) -> dict[str, Any]:
    """A row: the metrics of every seed and their mean (x100), times, and how far it is from the model it belongs to."""
    records = [result.record for result in line.results]
    metrics = records[0]["metrics"]
    return {
        "row": line.row.label,
        "model": line.row.model,
        "settings": dict(line.row.settings),
        "seeds": [record["seed"] for record in records],
        "mean": {name: round(line.mean(name), 3) for name in metrics},
        "by_seed": {name: line.values(name) for name in METRICS},
        "total_seconds": [record["total_seconds"] for record in records],
        "lower_than": {
            one.metric: {"than": one.first, "by": round(one.difference, 3), "margin": round(one.margin, 3), "p": one.p}
            for one in differences
        },
    }


if __name__ == "__main__":
    main()
