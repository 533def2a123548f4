"""Cells of an experiment: a model with its settings, trained once on a dataset with a seed.

A cell is saved when it is done, a small JSON file with its metrics and a compressed array with the ranks of the test
samples, and a cell that is saved is not run again. So a cut experiment goes on where it stopped, on this machine or on
another one with the cells copied over, and experiments that share a cell run it once.
"""

import json
import platform
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import posrec
from posrec.data.sessions import PreparedDataset
from posrec.devices import choose_device
from posrec.errors import RunStopped
from posrec.files import read_json, write_json
from posrec.fitting import fit_run
from posrec.listener import Listener, SilentListener
from posrec.training.log import LOG

WORST = 255  # ranks are kept up to this, in a byte: no metric looks further down than 20


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
        return np.asarray(np.load(self.path.with_suffix(".npz"))["ranks"])


def saved(folder: Path) -> dict[str, Outcome]:
    """Every cell in `folder`, by name."""
    outcomes = {}
    for path in sorted(folder.glob("*.json")):
        record = read_json(path)
        cell = Cell(record["dataset"], record["model"], record["settings"], record["seed"])
        outcomes[cell.name] = Outcome(cell, record, path)
    return outcomes


def run_cells(
    cells: Iterable[Cell],
    datasets: Mapping[str, PreparedDataset],
    folder: Path,
    device: str = "auto",
    minutes: float | None = None,
    listener: Listener | None = None,
) -> dict[str, Outcome]:
    """Run what is not saved yet; gives all of `cells` that are there. After `minutes` no further cell is begun."""
    listener = listener or SilentListener()
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {cell.name: cell for cell in cells}
    done = saved(folder)
    todo = [cell for name, cell in wanted.items() if name not in done or done[name].error]
    began = time.monotonic()
    for number, cell in enumerate(todo):
        if minutes is not None and time.monotonic() - began > 60 * minutes:
            listener.say(f"{len(todo) - number} cells are left; the same command goes on with them")
            break
        listener.progress("Cells", number, len(todo), cell.name)
        run_cell(cell, datasets[cell.dataset], folder, device)
    listener.progress("Cells", len(todo), len(todo))
    return {name: outcome for name, outcome in saved(folder).items() if name in wanted}


def run_cell(cell: Cell, data: PreparedDataset, folder: Path, device: str = "auto") -> None:
    """Train and evaluate, and write down what came out, be it an error."""
    began = time.monotonic()
    where = choose_device(device)
    record = {
        "dataset": cell.dataset, "model": cell.model, "settings": dict(cell.settings), "seed": cell.seed,
        "fingerprint": data.fingerprint, "posrec": posrec.__version__, "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": torch.cuda.get_device_name() if where.type == "cuda" else platform.machine(),
    }  # fmt: skip
    path = folder / f"{cell.name.replace(' ', '_').replace('=', '-')}.json"
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        try:
            settings = {**cell.settings, "seed": cell.seed}
            opened, outcome = fit_run(data, cell.model, run, settings, device, listener=SilentListener())
        except RunStopped:
            raise
        except (ValueError, RuntimeError) as error:
            record["error"] = "".join(traceback.format_exception_only(error)).strip()
        else:
            log = (run / LOG).read_text().splitlines() if (run / LOG).exists() else []
            record |= {
                "training": opened.config["training"],
                "metrics": {name: round(100 * value, 4) for name, value in outcome.metrics.items()},
                "losses": [round(json.loads(line)["loss"], 4) for line in log if "loss" in json.loads(line)],
                "epoch_seconds": [json.loads(line)["seconds"] for line in log if "seconds" in json.loads(line)],
            }
            np.savez_compressed(path.with_suffix(".npz"), ranks=outcome.ranks.clamp(max=WORST).numpy().astype(np.uint8))
    record["total_seconds"] = round(time.monotonic() - began, 1)
    write_json(path, record)
