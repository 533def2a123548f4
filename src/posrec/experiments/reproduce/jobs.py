"""Cells of an experiment: a model with its settings, trained once on a dataset with a seed.

A cell is saved when it is done, a small JSON file with its metrics and a compressed file with the ranks of the test
samples (and of seed 0 the learned encoding), and a cell that is saved is not run again. So a cut experiment goes on
where it stopped, on this machine or on another one with the cells copied over, and experiments that share a cell run it
once. Processes that run at the same time into the same folder share the work. A cell of other data, or of settings that
have since changed, is run again.
"""

import json
import platform
import tempfile
import time
import traceback
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import posrec
from posrec.config import split_settings
from posrec.data.dataset import PreparedDataset
from posrec.device import choose_device
from posrec.errors import InputError, RunStopped
from posrec.evaluation.metrics import CUTOFFS
from posrec.experiments.reproduce.locks import taken
from posrec.fitting import fit_run
from posrec.io import read_json, whole_file, write_json
from posrec.models.lookup import find_spec
from posrec.progress import Progress, SilentProgress
from posrec.run import Run
from posrec.training.log import LOG
from posrec.training.settings import Settings

WORST = max(CUTOFFS) + 1  # stands for every rank from there down: no metric looks further, and files are half the size


@dataclass(frozen=True)
class Cell:
    """`dataset` is the name of a prepared folder; `settings` are what differs from the model's own."""

    dataset: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def row(self) -> str:
        """The cell without its seed and dataset: what a table has a row for."""
        return " ".join([self.model, *(f"{key}={value}" for key, value in sorted(self.settings.items()))])

    @property
    def name(self) -> str:
        return f"{self.dataset} {self.row} seed={self.seed}"


@dataclass(frozen=True)
class Outcome:
    """What a cell gave; `error` where it failed, and then no metrics."""

    cell: Cell
    record: dict[str, Any]
    path: Path

    @property
    def error(self) -> str | None:
        return self.record.get("error")

    @property
    def metrics(self) -> dict[str, float]:
        return dict(self.record.get("metrics", {}))

    def ranks(self) -> npt.NDArray[np.uint8]:
        """[test samples], WORST for every rank from there down."""
        ranks: npt.NDArray[np.uint8] = self.arrays()["ranks"]
        return np.minimum(ranks, np.uint8(WORST))  # cells of earlier versions go further down

    def encoding(self) -> npt.NDArray[np.float32] | None:
        """The learned table of a positional encoding, [rows, d], of seed 0 where the model has one."""
        return self.arrays().get("encoding")

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        path = self.path.with_suffix(".npz")
        try:
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        except Exception as error:  # a damaged archive can raise almost anything
            raise InputError(f"{path} can't be read ({error}); remove it, and the cell is run again") from None


def saved(folder: Path) -> dict[str, Outcome]:
    """Every cell in `folder`, by name. One that did well but came without its ranks is as good as not there."""
    outcomes = {}
    for path in sorted(folder.glob("*.json")):
        record = read_json(path)
        if not isinstance(record, dict) or not {"dataset", "model", "settings", "seed"} <= record.keys():
            raise InputError(f"{path} is no cell of an experiment; remove it, or name another --out")
        outcome = Outcome(Cell(record["dataset"], record["model"], record["settings"], record["seed"]), record, path)
        if outcome.error or path.with_suffix(".npz").exists():
            outcomes[outcome.cell.name] = outcome
    return outcomes


def outdated(outcome: Outcome, data: PreparedDataset) -> str | None:
    """Why a saved cell is not an answer any more: other data under the same name, or other defaults."""
    record = outcome.record
    if record["fingerprint"] != data.fingerprint:
        return f"it was run on other data (fingerprint {record['fingerprint'][:8]}, at hand is {data.fingerprint[:8]})"
    before, now = record.get("config", {}), None if outcome.error else config_of(outcome.cell)
    for key, value in (now or {}).items():
        if key in before and before[key] != value:  # a setting that is new since changes nothing where it is off
            return f"it was run with {key}={before[key]}, which is {value} now"
    return None


def config_of(cell: Cell) -> dict[str, Any]:
    """Every setting of a cell, the model's and, where it is trained, its training's."""
    spec = find_spec(cell.model)
    model, training = split_settings({**cell.settings, "seed": cell.seed}, spec.config(), Settings(**spec.settings))
    return asdict(model) if not spec.is_trained else {**asdict(training), **asdict(model)}


def run_cells(
    cells: Iterable[Cell],
    datasets: Mapping[str, PreparedDataset],
    folder: Path,
    device: str = "auto",
    minutes: float | None = None,
    progress: Progress | None = None,
) -> dict[str, Outcome]:
    """Run what is not saved yet; gives all of `cells` that are there. After `minutes` no further cell is begun."""
    progress = progress or SilentProgress()
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {cell.name: cell for cell in cells}
    # Taken first: what another process writes while the cells are read is seen as written since.
    before = {name: written(path_of(cell, folder)) for name, cell in wanted.items()}
    done, reasons = valid_results(saved(folder), wanted, datasets)
    for name, reason in reasons.items():
        progress.message(f"{name} does not count: {reason}")
    todo = [cell for name, cell in wanted.items() if name not in done or done[name].error]
    elsewhere: list[str] = []
    began = time.monotonic()
    for number, cell in enumerate(todo):
        if minutes is not None and time.monotonic() - began >= 60 * minutes:
            progress.message(
                f"{len(todo) - number} of {len(wanted)} cells are left; the same command goes on with them"
            )
            break
        progress.update("Cells", number, len(todo), cell.name)
        path = path_of(cell, folder)
        with taken(path.with_suffix(".lock")) as mine:
            if not mine or written(path) != before[cell.name]:
                elsewhere.append(cell.name)  # another process runs it, or did meanwhile
                continue
            done[cell.name] = run_cell(cell, datasets[cell.dataset], folder, device)
        ahead = [cell for cell in todo[number + 1 :] if written(path_of(cell, folder)) == before[cell.name]]
        left = seconds_left(ahead, done) / (1 + len(list(folder.glob("*.lock"))))  # each is a process that helps
        progress.message(f"{number + 1} of {len(todo)}: {told(done[cell.name])}; about {minutes_shown(left)} left")
    else:
        progress.update("Cells", len(todo), len(todo))
    done, _ = valid_results(saved(folder), wanted, datasets)
    if running := len(set(elsewhere) - done.keys()):
        progress.message(f"{running} of {len(wanted)} cells were left to other processes")
    return done


def valid_results(
    outcomes: Mapping[str, Outcome], wanted: Mapping[str, Cell], datasets: Mapping[str, PreparedDataset]
) -> tuple[dict[str, Outcome], dict[str, str]]:
    """Of the wanted cells those that are an answer, and for the others why not."""
    there = {name: outcome for name, outcome in outcomes.items() if name in wanted}
    reasons = {name: outdated(outcome, datasets[outcome.cell.dataset]) for name, outcome in there.items()}
    return (
        {name: outcome for name, outcome in there.items() if reasons[name] is None},
        {name: reason for name, reason in reasons.items() if reason is not None},
    )


def path_of(cell: Cell, folder: Path) -> Path:
    return folder / f"{cell.name.replace(' ', '_').replace('=', '-')}.json"


def written(path: Path) -> int:
    """When, in nanoseconds; 0 where it is not there."""
    return path.stat().st_mtime_ns if path.exists() else 0


def seconds_left(todo: Sequence[Cell], done: Mapping[str, Outcome]) -> float:
    """A cell takes as long as the cells of its model on its dataset did, else as long as all did."""
    known: dict[tuple[str, str], list[float]] = {}
    for outcome in done.values():
        known.setdefault((outcome.cell.dataset, outcome.cell.model), []).append(outcome.record["total_seconds"])
    usual = mean([seconds for of in known.values() for seconds in of] or [0.0])
    return sum(mean(known.get((cell.dataset, cell.model), [usual])) for cell in todo)


def minutes_shown(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def told(outcome: Outcome) -> str:
    took = minutes_shown(outcome.record["total_seconds"])
    if outcome.error:
        return f"{outcome.cell.name} failed after {took}: {outcome.error}"
    figures = ", ".join(f"{name} {outcome.metrics[name]:.2f}" for name in ("recall@10", "mrr@10"))
    return f"{outcome.cell.name}: {figures} in {took}"


def run_cell(cell: Cell, data: PreparedDataset, folder: Path, device: str = "auto") -> Outcome:
    """Train and evaluate, and write down what came out, be it an error."""
    began = time.monotonic()
    where = choose_device(device)
    record: dict[str, Any] = {
        "dataset": cell.dataset, "model": cell.model, "settings": dict(cell.settings), "seed": cell.seed,
        "fingerprint": data.fingerprint, "posrec": posrec.__version__, "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": torch.cuda.get_device_name() if where.type == "cuda" else f"{platform.machine()} CPU",
    }  # fmt: skip
    path = path_of(cell, folder)
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        try:
            record["config"] = config_of(cell)
            settings = {**cell.settings, "seed": cell.seed}
            quiet = SilentProgress()
            opened, outcome = fit_run(data, cell.model, run, settings, device, progress=quiet, resumable=False)
        except RunStopped:
            raise RunStopped(f"stopped in {cell.name}; the same command goes on with it") from None
        except Exception as error:  # whatever it is, hours of other cells must not be lost to it
            record["error"] = "".join(traceback.format_exception_only(error)).strip()
        else:
            log = [json.loads(line) for line in (run / LOG).read_text().splitlines()] if (run / LOG).exists() else []
            record |= {
                "metrics": {name: round(100 * value, 4) for name, value in outcome.metrics.items()},
                "losses": [round(line["loss"], 4) for line in log if "loss" in line],
                "epoch_seconds": [line["seconds"] for line in log if "seconds" in line],
            }
            drawn = learned_encoding(opened) if cell.seed == 0 else {}  # the report's figures are of that seed
            write_arrays(path.with_suffix(".npz"), {"ranks": shortened(outcome.ranks), **drawn})
    record |= {"total_seconds": round(time.monotonic() - began, 1), "finished": datetime.now(UTC).date().isoformat()}
    write_json(path, record)
    return Outcome(cell, record, path)


def shortened(ranks: Tensor) -> npt.NDArray[np.uint8]:
    return ranks.clamp(max=WORST).numpy().astype(np.uint8)


def write_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """As numpy.savez_compressed, but by LZMA: ranks take a seventh less, and hundreds of these files are kept."""
    with whole_file(path, overwrite=True) as unfinished, zipfile.ZipFile(unfinished, "w", zipfile.ZIP_LZMA) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def learned_encoding(run: Run) -> dict[str, npt.NDArray[np.float32]]:
    """{"encoding": its table}, where the model has one encoding that is learned."""
    tables = [value for name, value in run.model.state_dict().items() if f".{name}".endswith(".encoding.table")]
    return {"encoding": tables[0].cpu().numpy()} if len(tables) == 1 else {}
