"""The paper's experiments from one command: run the jobs that have no result yet, then report on all results."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from posrec.data.dataset import PreparedDataset, load
from posrec.errors import InputError
from posrec.experiments.reproduce.claims import answer_claims, pairs_of
from posrec.experiments.reproduce.grid import FIGURES, all_jobs, choose_experiments
from posrec.experiments.reproduce.jobs import run_jobs
from posrec.experiments.reproduce.paper import dataset_of
from posrec.experiments.reproduce.report import Results, write_report
from posrec.experiments.reproduce.tables import make_table
from posrec.progress import Progress, SilentProgress

if TYPE_CHECKING:
    from posrec.io.executor import Cluster

JOBS = "jobs"
QUICK_SEEDS = 2
# For every model that has the setting: everything is run, nothing is trained to the end.
QUICK = {"d": 16, "hidden": 16, "epochs": 1, "batch_size": 256, "learning_rate": 0.01, "max_length": 10}


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
    cluster: "Cluster | None" = None,
) -> Results:
    """Run the missing jobs of `experiment` into `out/jobs`, and write the report.

    With `cluster` the jobs are run by Ray. With `quick_sessions` tiny models are trained on a simulated shop of so many
    sessions instead of on `data`.
    """
    progress = progress or SilentProgress()
    experiments = choose_experiments(experiment)
    out.mkdir(parents=True, exist_ok=True)
    if quick_sessions is None:
        datasets, shared_settings = load_datasets(data), {}
    else:
        datasets, shared_settings, seeds = {"demo": quick_shop(out, quick_sessions)}, QUICK, min(seeds, QUICK_SEEDS)
    jobs = all_jobs(experiments, list(datasets), seeds, shared_settings)
    job_results = run_jobs(jobs, datasets, out / JOBS, device, minutes, progress, cluster)
    results = Results(experiment, datasets, [], [], job_results, jobs, seeds, shared_settings)
    if with_report:
        for one in (one for one in experiments if one is not FIGURES):
            for name, prepared in datasets.items():
                progress.update("Testing differences", len(results.tables), len(experiments) * len(datasets), name)
                pairs = pairs_of(one.name, dataset_of(name))
                results.tables.append(make_table(one, prepared, name, job_results, pairs, seeds, shared_settings))
        results.answers.extend(answer_claims(results.tables))
        write_report(results, out)
    return results


def load_datasets(folders: Sequence[Path]) -> dict[str, PreparedDataset]:
    if not folders:
        raise InputError("no dataset: name one with --data DIR, or try everything on a small shop with --quick")
    datasets = {folder.resolve().name: load(folder) for folder in folders}
    if len(datasets) < len(folders):
        raise InputError("two datasets have the same folder name, which must identify a dataset; rename one")
    return datasets


def quick_shop(out: Path, sessions: int) -> PreparedDataset:
    """A demo shop of few sessions, made once."""
    from posrec.demo.shop import make_demo

    folder = out / f"demo-{sessions}"
    return load(folder / "data") if (folder / "data").exists() else make_demo(folder, sessions=sessions)
