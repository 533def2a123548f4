"""Jobs of an experiment: a model with its settings, trained once on a dataset with a seed.

The result of a job is saved when it is done: a small JSON file with the metrics, and a compressed file with the ranks
of the test targets (and for seed 0 the learned encoding). A job with a saved result is not run again. So an interrupted
experiment continues where it stopped, on this machine or on another one with the files copied over, and experiments
that need the same job run it once. Processes that run at the same time into the same folder share the jobs, by locks;
or Ray gives each job to a process of its cluster. A result on other data, or of settings whose defaults have changed
since, is not used, and the job is run again.
"""

import json
import math
import platform
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

import posrec
from posrec.config import split_settings
from posrec.data.dataset import PreparedDataset, load_once
from posrec.device import choose_device
from posrec.errors import RunStopped
from posrec.experiments.reproduce.saved_results import (
    Job,
    JobResult,
    clip_ranks,
    load_results,
    modified_at,
    path_of,
    write_arrays,
)
from posrec.fitting import fit_run
from posrec.io import write_json
from posrec.io.locks import try_lock
from posrec.models.lookup import find_spec
from posrec.progress import Progress, SilentProgress
from posrec.run import Run
from posrec.training.log import LOG
from posrec.training.settings import Settings

if TYPE_CHECKING:
    from posrec.ray_cluster import Cluster


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
    """Run the jobs that have no result yet, here or on a Ray cluster; return all results.

    After `minutes` no further job is started.
    """
    progress = progress or SilentProgress()
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {job.name: job for job in jobs}
    # Taken before the results are read: what another process writes meanwhile is then seen as changed.
    before = {name: modified_at(path_of(job, folder)) for name, job in wanted.items()}
    done, reasons = valid_results(load_results(folder), wanted, datasets)
    for name, reason in reasons.items():
        progress.message(f"the result of {name} is not used: {reason}")
    todo = [job for name, job in wanted.items() if name not in done or done[name].error]
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    if cluster is not None:
        run_on_cluster(cluster, todo, done, datasets, folder, device, deadline, progress)
        return valid_results(load_results(folder), wanted, datasets)[0]
    elsewhere: list[str] = []
    for number, job in enumerate(todo):
        if time.monotonic() >= deadline:
            left = len(todo) - number
            progress.message(f"{left} of {len(wanted)} jobs are left; the same command continues with them")
            break
        progress.update("Jobs", number, len(todo), job.name)
        path = path_of(job, folder)
        with try_lock(path.with_suffix(".lock")) as is_ours:
            if not is_ours or modified_at(path) != before[job.name]:
                elsewhere.append(job.name)  # another process runs it, or finished it meanwhile
                continue
            done[job.name] = run_job(job, datasets[job.dataset], folder, device)
        ahead = [one for one in todo[number + 1 :] if modified_at(path_of(one, folder)) == before[one.name]]
        processes = 1 + len(list(folder.glob("*.lock")))  # this one, and one for each lock that is held
        time_left = duration_text(seconds_left(ahead, done) / processes)
        progress.message(f"{number + 1} of {len(todo)}: {result_line(done[job.name])}; about {time_left} left")
    else:
        progress.update("Jobs", len(todo), len(todo))
    done, _ = valid_results(load_results(folder), wanted, datasets)
    if unfinished := len(set(elsewhere) - done.keys()):
        progress.message(f"{unfinished} of {len(wanted)} jobs were left to other processes")
    return done


def run_on_cluster(
    cluster: "Cluster",
    todo: Sequence[Job],
    done: dict[str, JobResult],
    datasets: Mapping[str, PreparedDataset],
    folder: Path,
    device: str,
    deadline: float,
    progress: Progress,
) -> None:
    """Run jobs as Ray tasks, each with a core, or with a GPU where the cluster has any; add their results to `done`."""
    gpus, started = cluster.gpus_for(device), 0

    def inputs() -> Iterator[Job]:
        nonlocal started
        while started < len(todo) and time.monotonic() < deadline:
            started += 1
            yield todo[started - 1]

    paths = {name: data.path.absolute() for name, data in datasets.items()}
    task = partial(run_task, paths, folder.absolute(), device)
    finished = cluster.run(task, inputs(), work="Jobs", total=len(todo), gpus=gpus, queued=1, progress=progress)
    left = dict.fromkeys(job.name for job in todo)
    for number, (job, result) in enumerate(finished, start=1):
        done[job.name], _ = result, left.pop(job.name)
        ahead = [one for one in todo if one.name in left]
        time_left = duration_text(seconds_left(ahead, done) / cluster.at_once(gpus=gpus))
        progress.message(f"{number} of {len(todo)}: {result_line(result)}; about {time_left} left")
    if left:
        progress.message(f"{len(left)} jobs are left; the same command continues with them")


def run_task(paths: Mapping[str, Path], folder: Path, device: str, job: Job) -> JobResult:
    return run_job(job, load_once(paths[job.dataset]), folder, device)


def valid_results(
    results: Mapping[str, JobResult], wanted: Mapping[str, Job], datasets: Mapping[str, PreparedDataset]
) -> tuple[dict[str, JobResult], dict[str, str]]:
    """Of the wanted jobs the results that can be used, and for the other results the reason why not."""
    found = {name: result for name, result in results.items() if name in wanted}
    reasons = {name: why_outdated(result, datasets[result.job.dataset]) for name, result in found.items()}
    return (
        {name: result for name, result in found.items() if reasons[name] is None},
        {name: reason for name, reason in reasons.items() if reason is not None},
    )


def seconds_left(todo: Sequence[Job], done: Mapping[str, JobResult]) -> float:
    """A job takes as long as the jobs of its model on its dataset did, else as long as the mean of all."""
    known: dict[tuple[str, str], list[float]] = {}
    for result in done.values():
        known.setdefault((result.job.dataset, result.job.model), []).append(result.record["total_seconds"])
    usual = mean([seconds for times in known.values() for seconds in times] or [0.0])
    return sum(mean(known.get((job.dataset, job.model), [usual])) for job in todo)


def duration_text(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def result_line(result: JobResult) -> str:
    took = duration_text(result.record["total_seconds"])
    if result.error:
        return f"{result.job.name} failed after {took}: {result.error}"
    figures = ", ".join(f"{name} {result.metrics[name]:.2f}" for name in ("recall@10", "mrr@10"))
    return f"{result.job.name}: {figures} in {took}"


def run_job(job: Job, data: PreparedDataset, folder: Path, device: str = "auto") -> JobResult:
    """Train and evaluate, and save the result, or the error where it fails."""
    began = time.monotonic()
    where = choose_device(device)
    record: dict[str, Any] = {
        "dataset": job.dataset, "model": job.model, "settings": dict(job.settings), "seed": job.seed,
        "fingerprint": data.fingerprint, "posrec": posrec.__version__, "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": torch.cuda.get_device_name() if where.type == "cuda" else f"{platform.machine()} CPU",
    }  # fmt: skip
    path = path_of(job, folder)
    with tempfile.TemporaryDirectory() as scratch:
        folder_of_run = Path(scratch) / "run"
        try:
            record["config"] = config_of(job)
            settings = {**job.settings, "seed": job.seed}
            run, evaluation = fit_run(
                data,
                job.model,
                folder_of_run,
                settings,
                device,
                progress=SilentProgress(),
                resumable=False,
                export=False,
            )
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
            encoding = learned_encoding(run) if job.seed == 0 else {}  # the report draws those of seed 0
            write_arrays(path.with_suffix(".npz"), {"ranks": clip_ranks(evaluation.ranks), **encoding})
    record |= {"total_seconds": round(time.monotonic() - began, 1), "finished": datetime.now(UTC).date().isoformat()}
    write_json(path, record)
    return JobResult(job, record, path)


def learned_encoding(run: Run) -> dict[str, npt.NDArray[np.float32]]:
    """{"encoding": its table}, where the model has one encoding that is learned."""
    tables = [value for name, value in run.model.state_dict().items() if f".{name}".endswith(".encoding.table")]
    return {"encoding": tables[0].cpu().numpy()} if len(tables) == 1 else {}
