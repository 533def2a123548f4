"""The paper's experiments: run the jobs that have no result yet, then report on all results."""

from collections import Counter
from collections.abc import Mapping, Sequence
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

JOBS = "jobs"
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


def reproduce(
    experiment: str,
    data: Sequence[Path],
    out: Path,
    seeds: int = 5,
    device: str = "auto",
    minutes: float | None = None,
    quick_sessions: int | None = None,
    progress: Progress | None = None,
    with_report: bool = True,
    executor: Executor | None = None,
) -> dict[str, Any]:
    """Run the missing jobs of `experiment` into `out/jobs`, and report; return summary.json.

    With `quick_sessions` tiny models are trained on a simulated shop of so many sessions.
    """
    progress = progress or SilentProgress()
    experiments = choose_experiments(experiment)
    out.mkdir(parents=True, exist_ok=True)
    if quick_sessions is None:
        datasets = load_datasets(data)
        shared_settings = {}
    else:
        datasets = {"demo": quick_shop(out, quick_sessions)}
        shared_settings = QUICK
        seeds = min(seeds, QUICK_SEEDS)
    jobs = all_jobs(experiments, list(datasets), seeds, shared_settings)
    results = run_jobs(jobs, datasets, out / JOBS, device, minutes, progress, executor)
    tables: list[dict[str, Any]] = []
    learned: list[TrainedEncoding] = []
    for one in experiments if with_report else ():
        for name, prepared in datasets.items():
            progress.update(
                "Testing differences",
                len(tables),
                len(experiments) * len(datasets),
                name,
            )
            if one is FIGURES:
                learned += learned_encodings(name, results, shared_settings)
            else:
                pairs = pairs_of(one.name, dataset_of(name))
                tables.append(
                    make_table(
                        one, prepared, name, results, pairs, seeds, shared_settings
                    )
                )
    summary = {
        "experiment": experiment,
        "seeds": seeds,
        "quick": bool(shared_settings),
        "datasets": {
            name: dataset_summary(prepared) for name, prepared in datasets.items()
        },
        **results_summary(results),
        "jobs": {"wanted": len(jobs), "missing": len(jobs) - len(results)},
        "tables": tables,
        "claims": answer_claims(tables),
        "encodings": [
            {
                "encoding": one.name,
                "run": str(one.run),
                "similarity": mean_similarities(one.scheme),
            }
            for one in learned
        ],
    }
    if with_report:
        write_report(summary, learned, out)
    return summary


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
    """A demo shop of few sessions, made once."""
    from posrec.demo.shop import make_demo

    folder = out / f"demo-{sessions}"
    return (
        load(folder / "data")
        if (folder / "data").exists()
        else make_demo(folder, sessions=sessions)
    )


def learned_encodings(
    dataset: str, results: Mapping[str, JobResult], shared_settings: Mapping[str, Any]
) -> list[TrainedEncoding]:
    """LPE and LDPE as PosRec learned them on a dataset, seed 0, where there is a result."""
    encodings = []
    for row in FIGURES.rows:
        result = results.get(jobs_of(row, dataset, 1, shared_settings)[0].name)
        table = result.arrays().get("encoding") if result and not result.error else None
        if table is not None:
            name = str(row.settings["encoding"])
            run = Path(f"{dataset}, seed 0")
            encodings.append(TrainedEncoding(run, name, torch.from_numpy(table)))
    return encodings


def dataset_summary(data: PreparedDataset) -> dict[str, Any]:
    return {
        "fingerprint": data.fingerprint,
        "train_samples": len(data.train),
        "test_samples": len(data.test),
        "test_sessions": data.test.sessions,
        "train_items": data.train_items,
    }


def results_summary(results: Mapping[str, JobResult]) -> dict[str, Any]:
    """Trainings by machine, version and day; their time; failures."""
    records = [result.record for result in results.values()]
    keys = ("machine", "posrec", "torch", "python", "finished")
    return {
        "made_by": {
            key: dict(Counter(str(record.get(key, "")) for record in records))
            for key in keys
        },
        "seconds": round(sum(record["total_seconds"] for record in records), 1),
        "failed": {
            name: result.error for name, result in results.items() if result.error
        },
    }
