"""Protocol `refit`: choose the number of epochs on validation, then train on all training sessions
for that number.

The latest sessions are the most similar to those to come, and `early-stop` holds them out. `refit`
holds them out only while it chooses, and then trains a new model, from the same seed and with the
same learning rates, on everything."""

import shutil
from collections.abc import Callable
from dataclasses import replace

import torch

from posrec.data.dataset import PreparedDataset
from posrec.errors import plural
from posrec.io import read_json, write_json, write_text
from posrec.models.base import SessionModel
from posrec.training.loop import Training, TrainingContext
from posrec.training.settings import Settings
from posrec.training.start import Start
from posrec.training.training_log import LOG

SELECTION = (
    "selection"  # a folder inside the run, while the number of epochs is being chosen
)
CHOSEN = "selection.json"


def train_refit(
    build: Callable[[], SessionModel],
    data: PreparedDataset,
    settings: Settings,
    context: TrainingContext,
    start: Start | None,
    training: type[Training],
) -> None:
    """Train twice; `build` makes a new model. A run that is resumed continues in whichever part it
    was."""
    chosen = context.run / CHOSEN
    if chosen.exists():
        epochs = int(read_json(chosen)["epochs"])
    else:
        epochs = choose_epochs(build, data, settings, context, start, training)
    if context.writes:
        shutil.rmtree(context.run / SELECTION, ignore_errors=True)
    context.progress.message(f"training on all sessions for {plural(epochs, 'epoch')}")
    torch.manual_seed(settings.seed)
    training(build(), data, settings, context, start).run(epochs)


def choose_epochs(
    build: Callable[[], SessionModel],
    data: PreparedDataset,
    settings: Settings,
    context: TrainingContext,
    start: Start | None,
    training: type[Training],
) -> int:
    """Train under early stopping and write the best epoch, which is returned, to `selection.json`;
    its log is kept in that of the run."""
    run = context.run
    folder = context.run / SELECTION
    if context.writes:
        folder.mkdir(exist_ok=True)
    torch.manual_seed(settings.seed)
    stopped_early = replace(settings, protocol="early-stop")
    within = replace(context, run=folder, track=False)
    state = training(build(), data, stopped_early, within, start).run()
    if context.writes:
        lines = (folder / LOG).read_text(encoding="utf-8").splitlines()
        write_text(
            run / LOG,
            "".join(f'{{"part": "{SELECTION}", {line[1:]}\n' for line in lines),
        )
        write_json(
            run / CHOSEN, {"epochs": state.best_epoch, settings.choose_by: state.best}
        )
    return state.best_epoch
