"""Protocol `refit`: choose the number of epochs on validation, then train on all sessions.

The latest sessions are the most similar to those to come, and `early-stop` holds them out. `refit`
holds them out only while it chooses, and then trains a new model, from the same seed and with the
same learning rates, on everything.
"""

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
from posrec.training.tracking import Tracker
from posrec.training.training_log import LOG

SELECTION = "selection"  # a folder inside the run, while the epochs are being chosen
CHOSEN = "selection.json"


def train_refit(
    build: Callable[[], SessionModel],
    data: PreparedDataset,
    settings: Settings,
    context: TrainingContext,
    start: Start | None,
    training: type[Training],
) -> None:
    """Train twice, each time a new model of `build`; a resumed run continues where it was."""
    selection = context.run / SELECTION
    chosen = context.run / CHOSEN
    torch.manual_seed(settings.seed)
    if chosen.exists():
        epochs = int(read_json(chosen)["epochs"])
    else:
        if context.writes:
            selection.mkdir(exist_ok=True)
        stopped_early = replace(settings, protocol="early-stop")
        within = replace(context, run=selection, tracker=Tracker())
        state = training(build(), data, stopped_early, within, start).run()
        epochs = state.best_epoch
        if context.writes:
            copy_log(context)
            write_json(chosen, {"epochs": epochs, settings.choose_by: state.best})
    if context.writes:
        shutil.rmtree(selection, ignore_errors=True)
    context.progress.message(f"training on all sessions for {plural(epochs, 'epoch')}")
    torch.manual_seed(settings.seed)
    training(build(), data, settings, context, start).run(epochs)


def copy_log(context: TrainingContext) -> None:
    """The lines of the first training, marked as such, begin the run's log."""
    lines = (context.run / SELECTION / LOG).read_text(encoding="utf-8").splitlines()
    marked = [f'{{"part": "{SELECTION}", {line[1:]}\n' for line in lines]
    write_text(context.run / LOG, "".join(marked))
