"""Protocol `refit`: choose the number of epochs on validation, then train on all training sessions for that number.

The latest sessions are the most similar to those to come, and `early-stop` holds them out. `refit` holds them out only
while it chooses, and then trains a new model, from the same seed and with the same learning rates, on everything.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace

import torch

from posrec.data.dataset import PreparedDataset
from posrec.errors import plural
from posrec.io import read_json, write_json, write_text
from posrec.models.base import SessionModel
from posrec.training.loop import Place, TrainingState, train
from posrec.training.settings import Settings
from posrec.training.start import Start
from posrec.training.training_log import LOG

SELECTION = "selection"  # a folder inside the run, while the number of epochs is being chosen
CHOSEN = "selection.json"


def train_refit(
    build: Callable[[], SessionModel],
    data: PreparedDataset,
    settings: Settings,
    place: Place,
    start: Start | None = None,
) -> TrainingState:
    """As `loop.train`, in two parts; `build` makes a new model. A run that is resumed continues in whichever part it
    was."""
    chosen = place.run / CHOSEN
    epochs = int(read_json(chosen)["epochs"]) if chosen.exists() else 0
    epochs = place.world.of_first(epochs, place.device)
    if not epochs:
        epochs = choose_epochs(build, data, settings, place, start)
    if place.world.is_first:
        shutil.rmtree(place.run / SELECTION, ignore_errors=True)
    place.progress.message(f"training on all sessions for {plural(epochs, 'epoch')}")
    torch.manual_seed(settings.seed)
    return train(build(), data, settings, place, epochs, start)


def choose_epochs(
    build: Callable[[], SessionModel], data: PreparedDataset, settings: Settings, place: Place, start: Start | None
) -> int:
    """Train under early stopping and write the best epoch, which is returned, to `selection.json`; its log is kept in
    that of the run."""
    run, folder = place.run, place.run / SELECTION
    if place.world.is_first:
        folder.mkdir(exist_ok=True)
    torch.manual_seed(settings.seed)
    stopped_early = replace(settings, protocol="early-stop")
    state = train(build(), data, stopped_early, replace(place, run=folder, track=False), start=start)
    if not place.world.is_first:
        return state.best_epoch
    lines = (folder / LOG).read_text(encoding="utf-8").splitlines()
    write_text(run / LOG, "".join(f'{{"part": "{SELECTION}", {line[1:]}\n' for line in lines))
    write_json(run / CHOSEN, {"epochs": state.best_epoch, settings.choose_by: state.best})
    return state.best_epoch
