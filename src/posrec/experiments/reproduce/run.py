"""The paper's experiments: run the jobs that have no result yet, then report on all results."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from posrec.data.dataset import PreparedDataset, load
from posrec.errors import InputError
from posrec.experiments.encoding_figures import mean_similarities
from posrec.experiments.encodings import TrainedEncoding
from posrec.experiments.reproduce.claims import answer_claims, pairs_of
from posrec.experiments.reproduce.grid import (
    FIGURES,
    Experiment,
    all_jobs,
    choose_experiments,
    jobs_of,
)
from posrec.experiments.reproduce.jobs import JobResult, run_jobs
from posrec.experiments.reproduce.paper import dataset_of
from posrec.experiments.reproduce.report import write_report
from posrec.experiments.reproduce.tables import make_table
from posrec.io.executor import Executor
from posrec.progress import Progress, SilentProgress

QUICK_SEEDS = 2
# For every model that has the setting: everything is run, nothing is trained to the end.
QUICK = {
    "d": 16,
    "hidden": 16,
    "epochs": 1,
    "batch_size": 256,
    "learning_rate": 0.01,
    "max_length": 10,
}


@dataclass(frozen=True)
class Plan:
    """Which experiments are run, on which datasets, and with how many seeds."""

    name: str  # of the experiment, or "all"
    experiments: Sequence[Experiment]
    datasets: Mapping[str, PreparedDataset]
    seeds: int
    shared_settings: Mapping[str, Any]


def make_plan(
    experiment: str,
    data: Sequence[Path],
    out: Path,
    seeds: int = 5,
    quick_sessions: int | None = None,
) -> Plan:
    """With `quick_sessions`, tiny models are trained on a simulated shop of that size."""
    experiments = choose_experiments(experiment)
    if quick_sessions is None:
        return Plan(experiment, experiments, load_datasets(data), seeds, {})
    shop = {"demo": quick_shop(out, quick_sessions)}
    return Plan(experiment, experiments, shop, min(seeds, QUICK_SEEDS), QUICK)


def reproduce(
    plan: Plan,
    out: Path,
    device: str = "auto",
    minutes: float | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
    with_report: bool = True,
) -> dict[str, Any]:
    """Run the missing jobs of a plan into `out/jobs`, and report; return summary.json."""
    progress = progress or SilentProgress()
    out.mkdir(parents=True, exist_ok=True)
    datasets = plan.datasets
    jobs = all_jobs(plan.experiments, list(datasets), plan.seeds, plan.shared_settings)
    results = run_jobs(
        jobs, datasets, out / "jobs", device, minutes, progress, executor
    )
    tables = make_tables(plan, results, progress) if with_report else []
    learned = learned_encodings(plan, results) if with_report else []
    summary = {
        "experiment": plan.name,
        "seeds": plan.seeds,
        "quick": bool(plan.shared_settings),
        "datasets": {name: dataset_summary(data) for name, data in datasets.items()},
        **results_summary(results),
        "jobs": {"wanted": len(jobs), "missing": len(jobs) - len(results)},
        "tables": tables,
        "claims": answer_claims(tables),
        "encodings": [
            {
                "encoding": encoding.name,
                "run": str(encoding.run),
                "similarity": mean_similarities(encoding.scheme),
            }
            for encoding in learned
        ],
    }
    if with_report:
        write_report(summary, learned, out)
    return summary


def make_tables(
    plan: Plan, results: Mapping[str, JobResult], progress: Progress
) -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = []
    total = len(plan.experiments) * len(plan.datasets)
    for experiment in plan.experiments:
        if experiment is FIGURES:
            continue
        for name, data in plan.datasets.items():
            progress.update("Testing differences", len(tables), total, name)
            pairs = pairs_of(experiment.name, dataset_of(name))
            settings = plan.shared_settings
            tables.append(
                make_table(experiment, data, name, results, pairs, plan.seeds, settings)
            )
    return tables


def learned_encodings(
    plan: Plan, results: Mapping[str, JobResult]
) -> list[TrainedEncoding]:
    """LPE and LDPE as PosRec learned them on each dataset, seed 0, where there is a result."""
    encodings: list[TrainedEncoding] = []
    if FIGURES not in plan.experiments:
        return encodings
    for dataset, row in product(plan.datasets, FIGURES.rows):
        (job,) = jobs_of(row, dataset, 1, plan.shared_settings)
        result = results.get(job.name)
        if result is None or result.error:
            continue
        table = result.arrays().get("encoding")
        if table is not None:
            name = str(row.settings["encoding"])
            run = Path(f"{dataset}, seed 0")
            encodings.append(TrainedEncoding(run, name, torch.from_numpy(table)))
    return encodings


def load_datasets(folders: Sequence[Path]) -> dict[str, PreparedDataset]:
    if not folders:
        raise InputError(
            "no dataset: name one with --data DIR, or try everything on a small shop with --quick"
        )
    datasets = {folder.resolve().name: load(folder) for folder in folders}
    if len(datasets) < len(folders):
        raise InputError(
            "two datasets have the same folder name, which must identify a dataset; rename one"
        )
    return datasets


def quick_shop(out: Path, sessions: int) -> PreparedDataset:
    from posrec.demo.shop import make_demo

    folder = out / f"demo-{sessions}"
    if (folder / "data").exists():
        return load(folder / "data")
    return make_demo(folder, sessions=sessions)


def dataset_summary(data: PreparedDataset) -> dict[str, Any]:
    return {
        "fingerprint": data.fingerprint,
        "train_samples": len(data.train),
        "test_samples": len(data.test),
        "test_sessions": data.test.sessions,
        "train_items": data.train_items,
    }


def results_summary(results: Mapping[str, JobResult]) -> dict[str, Any]:
    records = [result.record for result in results.values()]
    made_by = {}
    for key in ("machine", "posrec", "torch", "python", "finished"):
        made_by[key] = dict(Counter(str(record.get(key, "")) for record in records))
    return {
        "made_by": made_by,
        "seconds": round(sum(record["total_seconds"] for record in records), 1),
        "failed": {
            name: result.error for name, result in results.items() if result.error
        },
    }
