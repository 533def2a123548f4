"""A job, and its result as it is saved: a JSON file with the metrics, and a compressed file with the ranks."""

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from posrec.errors import InputError
from posrec.evaluation.metrics import CUTOFFS
from posrec.io import read_json, whole_file

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

    def ranks(self) -> npt.NDArray[np.uint8]:
        """[test samples], WORST for every rank from there on."""
        ranks: npt.NDArray[np.uint8] = self.arrays()["ranks"]
        return np.minimum(ranks, np.uint8(WORST))  # earlier versions saved ranks up to 255

    def encoding(self) -> npt.NDArray[np.float32] | None:
        """The learned table of a positional encoding, [rows, d], for seed 0 where the model has one."""
        return self.arrays().get("encoding")

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        path = self.path.with_suffix(".npz")
        try:
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        except Exception as error:  # a damaged archive can raise almost anything
            raise InputError(f"{path} can't be read ({error}); remove it, and the job is run again") from None


def load_results(folder: Path) -> dict[str, JobResult]:
    """Every result in `folder`, by the job's name. A successful one without its ranks counts as missing."""
    results = {}
    for path in sorted(folder.glob("*.json")):
        record = read_json(path)
        if not isinstance(record, dict) or not {"dataset", "model", "settings", "seed"} <= record.keys():
            raise InputError(f"{path} is not the result of a job; remove it, or name another --out")
        job = Job(record["dataset"], record["model"], record["settings"], record["seed"])
        result = JobResult(job, record, path)
        if result.error or path.with_suffix(".npz").exists():
            results[job.name] = result
    return results


def path_of(job: Job, folder: Path) -> Path:
    return folder / f"{job.name.replace(' ', '_').replace('=', '-')}.json"


def modified_at(path: Path) -> int:
    """In nanoseconds; 0 where there is no such file."""
    return path.stat().st_mtime_ns if path.exists() else 0


def clip_ranks(ranks: Tensor) -> npt.NDArray[np.uint8]:
    return ranks.clamp(max=WORST).numpy().astype(np.uint8)


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """As numpy.savez_compressed, but with LZMA: ranks take a seventh less, and hundreds of these files are kept."""
    with whole_file(path, overwrite=True) as unfinished, zipfile.ZipFile(unfinished, "w", zipfile.ZIP_LZMA) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
