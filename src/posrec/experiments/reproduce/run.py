"""The paper's experiments from one command: run the jobs that have no result yet, then report on all results."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from posrec.data.dataset import PreparedDataset, load
from posrec.errors import InputError
from posrec.experiments.reproduce.archive import pack, state_of, unpack
from posrec.experiments.reproduce.claims import answer_claims, pairs_of
from posrec.experiments.reproduce.grid import FIGURES, all_jobs, choose_experiments
from posrec.experiments.reproduce.jobs import run_jobs
from posrec.experiments.reproduce.paper import dataset_of
from posrec.experiments.reproduce.report import html_report, markdown_report
from posrec.experiments.reproduce.results import QUICK, Results
from posrec.experiments.reproduce.tables import Table, make_table
from posrec.io import write_json, write_text
from posrec.progress import Progress, SilentProgress

if TYPE_CHECKING:
    from posrec.ray_cluster import Cluster

JOBS, REPORT, MARKDOWN, SUMMARY = "jobs", "report.html", "report.md", "summary.json"
EARLIER_JOBS = "cells"  # the name of the folder in earlier versions
QUICK_SEEDS = 2


def reproduce(
    experiment: str,
    data: Sequence[Path],
    out: Path,
    seeds: int = 5,
    device: str = "auto",
    minutes: float | None = None,
    archive: Path | None = None,
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
    quick = quick_sessions is not None
    datasets = {"demo": quick_shop(out, quick_sessions)} if quick_sessions else load_datasets(data)
    shared_settings = QUICK if quick else {}
    seeds = min(seeds, QUICK_SEEDS) if quick else seeds
    jobs = all_jobs(experiments, list(datasets), seeds, shared_settings)
    folder = jobs_folder(out)
    in_archive = unpack(archive, folder) if archive is not None and archive.exists() else set()
    before = state_of(folder)
    try:
        results = run_jobs(jobs, datasets, folder, device, minutes, progress, cluster)
    finally:
        after = state_of(folder)
        if archive is not None and (after != before or after.keys() != in_archive or not archive.exists()):
            pack(folder, archive)
    if not with_report:
        return Results(experiment, datasets, [], [], results, jobs, seeds, quick)
    tables: list[Table] = []
    for one in (one for one in experiments if one is not FIGURES):
        for name, prepared in datasets.items():
            progress.update("Testing differences", len(tables), len(experiments) * len(datasets), name)
            pairs = pairs_of(one.name, dataset_of(name))
            tables.append(make_table(one, prepared, name, results, pairs, seeds, shared_settings))
    found = Results(experiment, datasets, tables, answer_claims(tables), results, jobs, seeds, quick)
    write_text(out / REPORT, html_report(found))
    write_text(out / MARKDOWN, markdown_report(found))
    write_json(out / SUMMARY, found.summary())
    return found


def jobs_folder(out: Path) -> Path:
    """Where the results of jobs are kept in `out`; a folder that an earlier version made is used further."""
    earlier = out / EARLIER_JOBS
    return earlier if earlier.is_dir() and not (out / JOBS).exists() else out / JOBS


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
