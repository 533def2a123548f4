"""Jobs of an experiment: a model with its settings, trained once on a dataset with a seed.

A finished job leaves JSON with the metrics, and .npz with the ranks of the test targets (and for
seed 0 the learned encoding). It is run again only if its data or the default settings change, so an
interrupted experiment continues, and experiments share jobs.
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
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from posrec.config import split_settings
from posrec.data.dataset import PreparedDataset
from posrec.device import choose_device
from posrec.errors import InputError, RunStopped
from posrec.evaluation.evaluate import Evaluation
from posrec.evaluation.metrics import CUTOFFS
from posrec.experiments.encodings import encoding_tables
from posrec.fitting.fit import train_and_score
from posrec.fitting.job import FitOptions
from posrec.io import WEIGHTS, load_tensors, read_json, whole_file, write_json
from posrec.io.executor import Executor, ThisProcess
from posrec.io.unfinished import one_writer
from posrec.models.registry import find_spec
from posrec.progress import Progress, SilentProgress
from posrec.training.settings import Settings
from posrec.training.training_log import LOG
from posrec.version import __version__

# Every rank from here on is stored as this one: no metric looks further, and files are half the
# size.
WORST = max(CUTOFFS) + 1


@dataclass(frozen=True)
class Job:
    """`dataset` is the name of a prepared folder; `settings` differ from the model's defaults."""

    dataset: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def row(self) -> str:
        """The job without its dataset and seed: what a table has a row for."""
        settings = [f"{key}={value}" for key, value in sorted(self.settings.items())]
        return " ".join([self.model, *settings])

    @property
    def name(self) -> str:
        return f"{self.dataset} {self.row} seed={self.seed}"

    @property
    def all_settings(self) -> dict[str, Any]:
        return {**self.settings, "seed": self.seed}


@dataclass(frozen=True)
class JobResult:
    """The saved result of a job: `record` is the JSON. A failed job has an `error`, no metrics."""

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
        """`ranks` [test samples], at most WORST; for seed 0 the learned `encoding` [rows, d]."""
        path = self.path.with_suffix(".npz")
        try:
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        except Exception as error:  # a damaged archive can raise almost anything
            raise InputError(
                f"{path} can't be read ({error}); remove it, and the job is run again"
            ) from None


def path_of(job: Job, folder: Path) -> Path:
    return folder / f"{job.name.replace(' ', '_').replace('=', '-')}.json"


def load_result(job: Job, folder: Path) -> JobResult | None:
    """The saved result of a job; a successful one without its ranks counts as missing."""
    path = path_of(job, folder)
    if not path.exists():
        return None
    record = read_json(path)
    needed = {"fingerprint", "total_seconds"}
    if not isinstance(record, dict) or not needed <= record.keys():
        raise InputError(
            f"{path} is not the result of a job; remove it, or name another --out"
        )
    result = JobResult(job, record, path)
    return result if result.error or path.with_suffix(".npz").exists() else None


def why_outdated(result: JobResult, data: PreparedDataset) -> str | None:
    """Why a saved result can't be used: other data, or other default settings."""
    fingerprint = result.record["fingerprint"]
    if fingerprint != data.fingerprint:
        return (
            f"it was run on other data (fingerprint {fingerprint[:8]}, "
            f"now {data.fingerprint[:8]})"
        )
    before = result.record.get("config", {})
    now = {} if result.error else config_of(result.job)
    for key, value in now.items():
        # Settings that were added since then are off by default.
        if key in before and before[key] != value:
            return f"it was run with {key}={before[key]}, which is {value} now"
    return None


def config_of(job: Job) -> dict[str, Any]:
    """Every setting of a job; a model that counts has none of a training."""
    spec = find_spec(job.model)
    defaults = (spec.config(), Settings(**spec.settings))
    model, training = split_settings(job.all_settings, *defaults)
    if not spec.is_trained:
        return asdict(model)
    return {**asdict(training), **asdict(model)}


def run_jobs(
    jobs: Iterable[Job],
    datasets: Mapping[str, PreparedDataset],
    folder: Path,
    device: str = "auto",
    minutes: float | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
) -> dict[str, JobResult]:
    """Run the jobs that have no result yet; return all results by the jobs' names.

    After `minutes` no further job is started. One process at a time runs jobs into a folder.
    """
    progress = progress or SilentProgress()
    executor = executor or ThisProcess()
    folder = folder.absolute()
    jobs = list({job.name: job for job in jobs}.values())
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes

    def jobs_to_start(missing: list[Job]) -> Iterator[Job]:
        for number, job in enumerate(missing):
            if time.monotonic() >= deadline:
                left = f"{len(missing) - number} of {len(jobs)} jobs are left"
                progress.message(f"{left}; the same command continues with them")
                return
            progress.update("Jobs", number, len(missing), job.name)
            yield job

    with one_writer(folder):
        missing = [
            job
            for job in jobs
            if not is_done(job, datasets[job.dataset], folder, progress)
        ]
        task = partial(run_job, datasets, folder, device)
        gpus = executor.gpus_for(device)
        results = executor.run(task, jobs_to_start(missing), work="Jobs", gpus=gpus)
        for number, (_, result) in enumerate(results, start=1):
            progress.message(f"{number} of {len(missing)}: {result_line(result)}")
        saved = [load_result(job, folder) for job in jobs]
    return {
        result.job.name: result
        for result in saved
        if result and not why_outdated(result, datasets[result.job.dataset])
    }


def is_done(job: Job, data: PreparedDataset, folder: Path, progress: Progress) -> bool:
    """Whether a job has a result that can be used; one that failed is tried again."""
    result = load_result(job, folder)
    if result is None:
        return False
    if why := why_outdated(result, data):
        progress.message(f"the result of {job.name} is not used: {why}")
    return not result.error and not why


def result_line(result: JobResult) -> str:
    name = result.job.name
    seconds = f"{result.record['total_seconds']:.0f} s"
    if result.error:
        return f"{name} failed after {seconds}: {result.error}"
    recall = f"recall@10 {result.metrics['recall@10']:.2f}"
    return f"{name}: {recall}, mrr@10 {result.metrics['mrr@10']:.2f} in {seconds}"


def run_job(
    datasets: Mapping[str, PreparedDataset], folder: Path, device: str, job: Job
) -> JobResult:
    """Train and evaluate, and save the result, or why it failed."""
    began = time.monotonic()
    data = datasets[job.dataset]
    path = path_of(job, folder)
    machine = f"{platform.machine()} CPU"
    if choose_device(device).type == "cuda":
        machine = torch.cuda.get_device_name()
    record: dict[str, Any] = {
        **asdict(job),
        "fingerprint": data.fingerprint,
        "posrec": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": machine,
    }
    options = FitOptions(
        job.all_settings, device, SilentProgress(), resumable=False, export=False
    )
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        try:
            record["config"] = config_of(job)
            evaluation = train_and_score(data, job.model, options, run)
        except RunStopped:
            raise RunStopped(
                f"stopped in {job.name}; the same command continues with it"
            ) from None
        # Hours of other jobs must not be lost to one that fails, whatever the reason.
        except Exception as error:
            record["error"] = "".join(traceback.format_exception_only(error)).strip()
        else:
            record |= figures_of_run(run, evaluation)
            save_arrays(path.with_suffix(".npz"), job, run, evaluation)
    record["total_seconds"] = round(time.monotonic() - began, 1)
    record["finished"] = datetime.now(UTC).date().isoformat()
    write_json(path, record)
    return JobResult(job, record, path)


def figures_of_run(run: Path, evaluation: Evaluation) -> dict[str, Any]:
    lines = (run / LOG).read_text().splitlines() if (run / LOG).exists() else []
    log = [json.loads(line) for line in lines]
    return {
        "metrics": {
            name: round(100 * value, 4) for name, value in evaluation.metrics.items()
        },
        "losses": [round(line["loss"], 4) for line in log if "loss" in line],
        "epoch_seconds": [line["seconds"] for line in log if "seconds" in line],
    }


def save_arrays(path: Path, job: Job, run: Path, evaluation: Evaluation) -> None:
    ranks = evaluation.ranks.clamp(max=WORST).numpy().astype(np.uint8)
    arrays: dict[str, Any] = {"ranks": ranks}
    weights, _ = load_tensors(run / WEIGHTS)
    tables = list(encoding_tables(weights).values())
    if job.seed == 0 and len(tables) == 1:  # the report draws those of seed 0
        arrays["encoding"] = tables[0].numpy()
    with (
        whole_file(path, overwrite=True) as unfinished,
        unfinished.open("wb") as file,
    ):
        np.savez_compressed(file, **arrays)
