"""Jobs of an experiment: a model with its settings, trained once on a dataset with a seed.

A finished job leaves two files: JSON with the metrics, and .npz with the ranks of the test targets (and for seed 0 the
learned encoding). A job that has them is not run again, unless its data or the default settings have changed since. So
an interrupted experiment continues where it stopped, on this machine or on another one with the files copied over, and
experiments that need the same job run it once. Processes that run at the same time into the same folder share the jobs,
by locks; so do the processes of a Ray cluster.
"""

import json
import math
import platform
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from posrec.config import split_settings
from posrec.data.dataset import PreparedDataset, load_once
from posrec.device import choose_device
from posrec.errors import InputError, RunStopped
from posrec.evaluation.metrics import CUTOFFS
from posrec.experiments.encodings import encoding_tables
from posrec.fitting.fit import fit_run
from posrec.io import read_json, whole_file, write_json
from posrec.io.executor import ThisProcess
from posrec.io.unfinished import try_lock
from posrec.models.registry import find_spec
from posrec.progress import Progress, SilentProgress
from posrec.training.settings import Settings
from posrec.training.training_log import LOG
from posrec.version import __version__

if TYPE_CHECKING:
    from posrec.io.executor import Cluster

WORST = max(CUTOFFS) + 1  # stands for every rank from here on: no metric looks further, and files are half the size


@dataclass(frozen=True)
class Job:
    """`dataset` is the name of a prepared folder; `settings` are those that differ from the model's defaults."""

    dataset: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def row(self) -> str:
        """The job without its dataset and seed: what a table has a row for."""
        return " ".join([self.model, *(f"{key}={value}" for key, value in sorted(self.settings.items()))])

    @property
    def name(self) -> str:
        return f"{self.dataset} {self.row} seed={self.seed}"


@dataclass(frozen=True)
class JobResult:
    """The saved result of a job: `record` is the JSON file's content. A job that failed has an `error`, no metrics."""

    job: Job
    record: dict[str, Any]
    path: Path

    @property
    def error(self) -> str | None:
        return self.record.get("error")

    @property
    def metrics(self) -> dict[str, float]:
        return dict(self.record.get("metrics", {}))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """`ranks` [test samples], WORST for every rank from there on; and for seed 0, where the model has one, the
        learned table of its positional encoding, `encoding` [rows, d]."""
        path = self.path.with_suffix(".npz")
        try:
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        except Exception as error:  # a damaged archive can raise almost anything
            raise InputError(f"{path} can't be read ({error}); remove it, and the job is run again") from None


def path_of(job: Job, folder: Path) -> Path:
    return folder / f"{job.name.replace(' ', '_').replace('=', '-')}.json"


def load_result(job: Job, folder: Path) -> JobResult | None:
    """The saved result of a job; a successful one without its ranks counts as missing."""
    path = path_of(job, folder)
    if not path.exists():
        return None
    record = read_json(path)
    if not isinstance(record, dict) or not {"fingerprint", "total_seconds"} <= record.keys():
        raise InputError(f"{path} is not the result of a job; remove it, or name another --out")
    result = JobResult(job, record, path)
    return result if result.error or path.with_suffix(".npz").exists() else None


def why_outdated(result: JobResult, data: PreparedDataset) -> str | None:
    """Why a saved result can't be used: other data under the same name, or other default settings. None: it can."""
    record = result.record
    if record["fingerprint"] != data.fingerprint:
        return f"it was run on other data (fingerprint {record['fingerprint'][:8]}, now {data.fingerprint[:8]})"
    before, now = record.get("config", {}), {} if result.error else config_of(result.job)
    for key, value in now.items():
        if key in before and before[key] != value:  # settings added since then are off by default
            return f"it was run with {key}={before[key]}, which is {value} now"
    return None


def config_of(job: Job) -> dict[str, Any]:
    """Every setting of a job: the model's and, where it is trained, those of the training."""
    spec = find_spec(job.model)
    model, training = split_settings({**job.settings, "seed": job.seed}, spec.config(), Settings(**spec.settings))
    return asdict(model) if not spec.is_trained else {**asdict(training), **asdict(model)}


def run_jobs(
    jobs: Iterable[Job],
    datasets: Mapping[str, PreparedDataset],
    folder: Path,
    device: str = "auto",
    minutes: float | None = None,
    progress: Progress | None = None,
    cluster: "Cluster | None" = None,
) -> dict[str, JobResult]:
    """Run the jobs that have no result yet, here or on a Ray cluster; return all results by the jobs' names.

    After `minutes` no further job is started.
    """
    progress, folder = progress or SilentProgress(), folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    wanted = list({job.name: job for job in jobs}.values())
    for job in wanted:
        if (result := load_result(job, folder)) and (why := why_outdated(result, datasets[job.dataset])):
            progress.message(f"the result of {job.name} is not used: {why}")
    todo = [job for job in wanted if not is_done(job, datasets[job.dataset], folder)]
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes

    def started() -> Iterator[Job]:
        for number, job in enumerate(todo):
            if time.monotonic() >= deadline:
                left = len(todo) - number
                progress.message(f"{left} of {len(wanted)} jobs are left; the same command continues with them")
                return
            progress.update("Jobs", number, len(todo), job.name)
            yield job

    executor, gpus = cluster or ThisProcess(), 0 if cluster is None else cluster.gpus_for(device)
    sources = datasets if cluster is None else {name: data.path.absolute() for name, data in datasets.items()}
    task = partial(run_if_free, sources, folder, device)
    elsewhere = 0
    for number, (_, result) in enumerate(executor.run(task, started(), work="Jobs", gpus=gpus), start=1):
        elsewhere += result is None
        if result is not None:
            progress.message(f"{number} of {len(todo)}: {result_line(result)}")
    if elsewhere:
        progress.message(f"{elsewhere} of {len(todo)} jobs were left to other processes")
    results = [result for job in wanted if (result := load_result(job, folder))]
    return {one.job.name: one for one in results if why_outdated(one, datasets[one.job.dataset]) is None}


def is_done(job: Job, data: PreparedDataset, folder: Path) -> bool:
    """Whether a job has a result that can be used; one that failed is tried again."""
    result = load_result(job, folder)
    return result is not None and not result.error and why_outdated(result, data) is None


def run_if_free(sources: Mapping[str, PreparedDataset | Path], folder: Path, device: str, job: Job) -> JobResult | None:
    """Run a job; None if another process runs it, or has run it meanwhile. A process of a cluster is given the paths of
    the datasets."""
    source = sources[job.dataset]
    data = load_once(source) if isinstance(source, Path) else source
    with try_lock(path_of(job, folder).with_suffix(".lock")) as is_ours:
        return run_job(job, data, folder, device) if is_ours and not is_done(job, data, folder) else None


def result_line(result: JobResult) -> str:
    seconds = result.record["total_seconds"]
    if result.error:
        return f"{result.job.name} failed after {seconds:.0f} s: {result.error}"
    figures = ", ".join(f"{name} {result.metrics[name]:.2f}" for name in ("recall@10", "mrr@10"))
    return f"{result.job.name}: {figures} in {seconds:.0f} s"


def run_job(job: Job, data: PreparedDataset, folder: Path, device: str = "auto") -> JobResult:
    """Train and evaluate, and save the result, or the error where it fails."""
    began = time.monotonic()
    where = choose_device(device)
    record: dict[str, Any] = {
        **{"dataset": job.dataset, "model": job.model, "settings": dict(job.settings), "seed": job.seed},
        **{"fingerprint": data.fingerprint, "posrec": __version__, "torch": torch.__version__},
        "python": platform.python_version(),
        "machine": torch.cuda.get_device_name() if where.type == "cuda" else f"{platform.machine()} CPU",
    }
    path = path_of(job, folder)
    with tempfile.TemporaryDirectory() as scratch:
        folder_of_run = Path(scratch) / "run"
        try:
            record["config"] = config_of(job)
            settings = {**job.settings, "seed": job.seed}
            options: dict[str, Any] = {"progress": SilentProgress(), "resumable": False, "export": False}
            run, evaluation = fit_run(data, job.model, folder_of_run, settings, device, **options)
        except RunStopped:
            raise RunStopped(f"stopped in {job.name}; the same command continues with it") from None
        except Exception as error:  # hours of other jobs must not be lost to one that fails, whatever the reason
            record["error"] = "".join(traceback.format_exception_only(error)).strip()
        else:
            log_file = folder_of_run / LOG
            log = [json.loads(line) for line in log_file.read_text().splitlines()] if log_file.exists() else []
            record |= {
                "metrics": {name: round(100 * value, 4) for name, value in evaluation.metrics.items()},
                "losses": [round(line["loss"], 4) for line in log if "loss" in line],
                "epoch_seconds": [line["seconds"] for line in log if "seconds" in line],
            }
            arrays: dict[str, Any] = {"ranks": evaluation.ranks.clamp(max=WORST).numpy().astype(np.uint8)}
            tables = list(encoding_tables(run.model.state_dict()).values())
            if job.seed == 0 and len(tables) == 1:  # the report draws those of seed 0
                arrays["encoding"] = tables[0].cpu().numpy()
            with whole_file(path.with_suffix(".npz"), overwrite=True) as unfinished, unfinished.open("wb") as file:
                np.savez_compressed(file, **arrays)
    record |= {"total_seconds": round(time.monotonic() - began, 1), "finished": datetime.now(UTC).date().isoformat()}
    write_json(path, record)
    return JobResult(job, record, path)
