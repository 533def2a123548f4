"""The training loop: epochs of shuffled samples, checkpoints, early stopping, and an orderly stop on a signal."""

import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.errors import RunFailed, RunStopped
from posrec.evaluation.evaluate import Evaluation, evaluate
from posrec.io import WEIGHTS, save_tensors
from posrec.models.base import Model, SessionModel
from posrec.progress import Progress
from posrec.training.checkpoint import STATE, load_state, save_state
from posrec.training.engine import Steps, make_optimizer, matmul_precision, set_learning_rate
from posrec.training.log import Log
from posrec.training.settings import Settings

CHECKPOINT_SECONDS = 600
LOOK_SECONDS = 0.5  # how often losses are read back from a GPU
CHOSEN_BY = "mrr@20"


@dataclass
class TrainingState:
    """Where a run stands; kept in every checkpoint."""

    epoch: int = 0
    step: int = 0
    losses: list[float] = field(default_factory=list)  # mean loss of each finished epoch
    best: float = -math.inf
    epochs_without_gain: int = 0
    loss_so_far: float = 0.0  # summed over the steps of the unfinished epoch


class StopSignals:
    """While inside `with`, remembers that a signal asked to stop; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.asked = False
        self.before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self.before[number] = signal.signal(number, self.ask)
            except ValueError:  # not the main thread: the caller handles signals
                return self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True


def train(
    model: SessionModel,
    data: PreparedDataset,
    settings: Settings,
    run: Path,
    device: torch.device,
    progress: Progress,
    resume: bool = False,
    track: bool = False,
    resumable: bool = True,
) -> TrainingState:
    """Train `model` in place, on `device`, leaving `model.safetensors` and a log in the folder `run`.

    Unless `resumable` no checkpoints are written: three times the weights an epoch, for nothing where the run's folder
    goes when it ends.
    """
    samples = (data.train if settings.protocol == "paper" else data.fitting).to(device)
    model.to(device).train()
    optimizer = make_optimizer(model, settings, device)
    state = TrainingState()
    if resume and (run / STATE).exists():
        state = TrainingState(**load_state(run, model, optimizer))
        progress.message(f"resuming after epoch {state.epoch}, step {state.step}")

    def keep() -> None:
        if resumable:
            save_state(run, model, optimizer, vars(state))

    with matmul_precision(settings, device), StopSignals() as signals, Log(run, track) as log:
        steps = Steps(model, optimizer, samples, settings, device, data.train_items, model.config.max_length)
        while state.epoch < settings.epochs and state.epochs_without_gain < settings.patience:
            train_epoch(steps, state, settings, keep, progress, signals, log)
            if settings.protocol == "early-stop":
                choose(model, data, state, run, device, progress, log)
            keep()
    if settings.protocol == "paper":
        save_tensors(run / WEIGHTS, model.state_dict(), {})
    return state


def train_epoch(
    steps: Steps,
    state: TrainingState,
    settings: Settings,
    keep: Callable[[], None],
    progress: Progress,
    signals: StopSignals,
    log: Log,
) -> None:
    """One epoch, or what is left of it; `keep` writes a checkpoint."""
    rate = settings.learning_rate * settings.decay ** (state.epoch // settings.decay_every)
    set_learning_rate(steps.optimizer, rate)
    order = steps.shuffled(state.epoch)
    began = looked = saved = time.monotonic()
    first_step, unread = state.step, []
    while state.step < order.steps:
        losses = steps.run(order, state.step)
        unread.append(losses)
        state.step += len(losses)
        now = time.monotonic()
        if steps.device.type == "cuda" and now - looked < LOOK_SECONDS and state.step < order.steps:
            continue
        looked = now
        latest = read(unread, state)
        log.point("loss/step", latest, state.epoch * order.steps + state.step)
        name = f"Epoch {state.epoch + 1} of {settings.epochs}"
        rate_now = (state.step - first_step) * settings.batch_size / (now - began)
        average = state.loss_so_far / state.step
        progress.update(name, state.step, order.steps, f"loss {average:.3f}, {rate_now:,.0f} samples/s")
        if signals.asked or now - saved > CHECKPOINT_SECONDS:
            keep()
            saved = now
        if signals.asked:
            raise RunStopped(f"stopped in epoch {state.epoch + 1}, step {state.step}; go on with --resume")
    seconds = time.monotonic() - began
    state.losses.append(state.loss_so_far / order.steps)
    state.epoch, state.step, state.loss_so_far = state.epoch + 1, 0, 0.0
    log.epoch(state.epoch, loss=state.losses[-1], learning_rate=rate, seconds=round(seconds, 3),
              samples_per_second=round((order.steps - first_step) * settings.batch_size / seconds))  # fmt: skip


def read(unread: list[Tensor], state: TrainingState) -> float:
    """Take losses over from the device and give their mean; stop if one is not a number, before anything is saved."""
    losses = torch.cat(unread).double().cpu()
    unread.clear()
    if not losses.isfinite().all():
        bad = state.step - len(losses) + int((~losses.isfinite()).nonzero()[0]) + 1
        raise RunFailed(
            f"the loss is not a number at step {bad} of epoch {state.epoch + 1}; what was saved before is kept. "
            "Lower learning_rate, or use precision=fp32"
        )
    state.loss_so_far += float(losses.sum())
    return float(losses.mean())


def choose(
    model: SessionModel,
    data: PreparedDataset,
    state: TrainingState,
    run: Path,
    device: torch.device,
    progress: Progress,
    log: Log,
) -> None:
    """Keep this epoch's weights if they predict the validation sessions better than any before."""
    metrics = evaluate_on(model, data, data.validation, device, progress).metrics
    if metrics[CHOSEN_BY] > state.best:
        state.best, state.epochs_without_gain = metrics[CHOSEN_BY], 0
        save_tensors(run / WEIGHTS, model.state_dict(), {})
    else:
        state.epochs_without_gain += 1
    log.epoch(state.epoch, validation=metrics)
    progress.message(f"epoch {state.epoch}: {CHOSEN_BY} {100 * metrics[CHOSEN_BY]:.2f} on validation")
    progress.validated(state.epoch, metrics)


def evaluate_on(
    model: Model, data: PreparedDataset, samples: SessionDataset, device: torch.device, progress: Progress
) -> Evaluation:
    """Full ranking of `samples` by a model of `data`'s items."""
    was_training = model.training
    model.to(device).eval()
    clicks = torch.bincount(data.train.items.long(), minlength=data.train_items + 1)
    outcome = evaluate(model, samples.to(device), data.train_items, model.config.max_length, clicks, progress)
    model.train(was_training)
    return outcome
