"""Protocol `refit`: choose the number of epochs on validation, then train on all training sessions for that number.

The latest sessions are the most similar to those to come, and `early-stop` holds them out. `refit` holds them out only
while it chooses, and then trains a new model, from the same seed and with the same learning rates, on everything.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from posrec.data.dataset import PreparedDataset
from posrec.errors import plural
from posrec.io import read_json, write_json, write_text
from posrec.models.base import SessionModel
from posrec.progress import Progress
from posrec.training.distributed.world import World
from posrec.training.loop import TrainingState, train
from posrec.training.settings import Settings
from posrec.training.start import Start
from posrec.training.training_log import LOG

SELECTION = "selection"  # a folder inside the run, while the number of epochs is being chosen
CHOSEN = "selection.json"


def train_refit(
    build: Callable[[], SessionModel],
    data: PreparedDataset,
    settings: Settings,
    run: Path,
    device: torch.device,
    progress: Progress,
    resume: bool = False,
    track: bool = False,
    resumable: bool = True,
    start: Start | None = None,
    world: World | None = None,
) -> TrainingState:
    """As `loop.train`, in two parts; `build` makes a new model. With `resume` it continues in whichever part it was.
    `world` are the processes that train together, of which the first has the run folder."""
    epochs = int(read_json(run / CHOSEN)["epochs"]) if (run / CHOSEN).exists() else 0
    world = world or World()
    epochs = int(world.number(epochs, device))
    is_first = world.is_first
    if not epochs:
        epochs = choose_epochs(build, data, settings, run, device, progress, resume, resumable, start, is_first)
    if is_first:
        shutil.rmtree(run / SELECTION, ignore_errors=True)
    progress.message(f"training on all sessions for {plural(epochs, 'epoch')}")
    torch.manual_seed(settings.seed)
    return train(build(), data, settings, run, device, progress, resume, track, resumable, epochs, start)


def choose_epochs(
    build: Callable[[], SessionModel],
    data: PreparedDataset,
    settings: Settings,
    run: Path,
    device: torch.device,
    progress: Progress,
    resume: bool,
    resumable: bool,
    start: Start | None,
    is_first: bool,
) -> int:
    """Train under early stopping and write the best epoch, which is returned, to `selection.json`; its log is kept in
    that of the run."""
    folder = run / SELECTION
    if is_first:
        folder.mkdir(exist_ok=True)
    torch.manual_seed(settings.seed)
    stopped_early = replace(settings, protocol="early-stop")
    state = train(build(), data, stopped_early, folder, device, progress, resume, resumable=resumable, start=start)
    if not is_first:
        return state.best_epoch
    lines = (folder / LOG).read_text(encoding="utf-8").splitlines()
    write_text(run / LOG, "".join(f'{{"part": "{SELECTION}", {line[1:]}\n' for line in lines))
    write_json(run / CHOSEN, {"epochs": state.best_epoch, settings.choose_by: state.best})
    return state.best_epoch
