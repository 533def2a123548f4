"""The training loop: epochs of shuffled samples, checkpoints, early stopping, and a calm end whatever happens."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from posrec.data.sessions import PreparedDataset, SessionDataset
from posrec.errors import RunFailed, RunStopped
from posrec.evaluation.evaluate import Scorer, evaluate
from posrec.listener import Listener
from posrec.tensors import WEIGHTS, save_tensors
from posrec.training.checkpoint import STATE, load_state, save_state
from posrec.training.engine import Steps, make_optimizer, matmul_precision, set_learning_rate
from posrec.training.log import Log
from posrec.training.settings import Settings
from posrec.training.stopping import StopSignals

CHECKPOINT_SECONDS = 600
LOOK_SECONDS = 0.5  # how often losses are read back from a GPU
CHOSEN_BY = "mrr@20"


class TrainableScorer(Scorer, Protocol):
    """A module that scores, with a config that says how many clicks it reads."""

    config: Any
    items: int


@dataclass
class Progress:
    """Where a run stands; kept in every checkpoint."""

    epoch: int = 0
    step: int = 0
    losses: list[float] = field(default_factory=list)  # mean loss of each finished epoch
    best: float = -math.inf
    epochs_without_gain: int = 0
    loss_so_far: float = 0.0  # summed over the steps of the unfinished epoch


def train(
    model: nn.Module,
    data: PreparedDataset,
    settings: Settings,
    run: Path,
    device: torch.device,
    listener: Listener,
    resume: bool = False,
    track: bool = False,
    resumable: bool = True,
) -> Progress:
    """Train `model` in place, on `device`, leaving `model.safetensors` and a log in the folder `run`.

    Unless `resumable` no checkpoints are written: three times the weights an epoch, for nothing where the run's folder
    goes when it ends.
    """
    samples = (data.train if settings.protocol == "paper" else data.fitting).to(device)
    model.to(device).train()
    optimizer = make_optimizer(model, settings, device)
    progress = Progress()
    if resume and (run / STATE).exists():
        progress = Progress(**load_state(run, model, optimizer))
        listener.say(f"resuming after epoch {progress.epoch}, step {progress.step}")

    def keep() -> None:
        if resumable:
            save_state(run, model, optimizer, vars(progress))

    with matmul_precision(settings, device), StopSignals() as signals, Log(run, track) as log:
        reads: int = model.config.max_length  # type: ignore[assignment,union-attr]
        steps = Steps(model, optimizer, samples, settings, device, data.train_items, reads)
        while progress.epoch < settings.epochs and progress.epochs_without_gain < settings.patience:
            train_epoch(steps, progress, settings, keep, listener, signals, log)
            if settings.protocol == "early-stop":
                choose(model, data, progress, run, device, listener, log)
            keep()
    if settings.protocol == "paper":
        save_tensors(run / WEIGHTS, model.state_dict(), {})
    return progress


def train_epoch(
    steps: Steps,
    progress: Progress,
    settings: Settings,
    keep: Callable[[], None],
    listener: Listener,
    signals: StopSignals,
    log: Log,
) -> None:
    """One epoch, or what is left of it; `keep` writes a checkpoint."""
    rate = settings.learning_rate * settings.decay ** (progress.epoch // settings.decay_every)
    set_learning_rate(steps.optimizer, rate)
    order = steps.shuffled(progress.epoch)
    began = looked = saved = time.monotonic()
    first_step, unread = progress.step, []
    while progress.step < order.steps:
        losses = steps.run(order, progress.step)
        unread.append(losses)
        progress.step += len(losses)
        now = time.monotonic()
        if steps.device.type == "cuda" and now - looked < LOOK_SECONDS and progress.step < order.steps:
            continue
        looked = now
        latest = read(unread, progress)
        log.point("loss/step", latest, progress.epoch * order.steps + progress.step)
        name = f"Epoch {progress.epoch + 1} of {settings.epochs}"
        rate_now = (progress.step - first_step) * settings.batch_size / (now - began)
        average = progress.loss_so_far / progress.step
        listener.progress(name, progress.step, order.steps, f"loss {average:.3f}, {rate_now:,.0f} samples/s")
        if signals.asked or now - saved > CHECKPOINT_SECONDS:
            keep()
            saved = now
        if signals.asked:
            raise RunStopped(f"stopped in epoch {progress.epoch + 1}, step {progress.step}; go on with --resume")
    seconds = time.monotonic() - began
    progress.losses.append(progress.loss_so_far / order.steps)
    progress.epoch, progress.step, progress.loss_so_far = progress.epoch + 1, 0, 0.0
    log.epoch(progress.epoch, loss=progress.losses[-1], learning_rate=rate, seconds=round(seconds, 3),
              samples_per_second=round((order.steps - first_step) * settings.batch_size / seconds))  # fmt: skip


def read(unread: list[Tensor], progress: Progress) -> float:
    """Take losses over from the device and give their mean; stop if one is not a number, before anything is saved."""
    losses = torch.cat(unread).double().cpu()
    unread.clear()
    if not losses.isfinite().all():
        bad = progress.step - len(losses) + int((~losses.isfinite()).nonzero()[0]) + 1
        raise RunFailed(
            f"the loss is not a number at step {bad} of epoch {progress.epoch + 1}; what was saved before is kept. "
            "Lower learning_rate, or use precision=fp32"
        )
    progress.loss_so_far += float(losses.sum())
    return float(losses.mean())


def choose(
    model: nn.Module,
    data: PreparedDataset,
    progress: Progress,
    run: Path,
    device: torch.device,
    listener: Listener,
    log: Log,
) -> None:
    """Keep this epoch's weights if they predict the validation sessions better than any before."""
    metrics = evaluate_on(model, data, data.validation, device, listener).metrics
    if metrics[CHOSEN_BY] > progress.best:
        progress.best, progress.epochs_without_gain = metrics[CHOSEN_BY], 0
        save_tensors(run / WEIGHTS, model.state_dict(), {})
    else:
        progress.epochs_without_gain += 1
    log.epoch(progress.epoch, validation=metrics)
    listener.say(f"epoch {progress.epoch}: {CHOSEN_BY} {100 * metrics[CHOSEN_BY]:.2f} on validation")
    listener.validated(progress.epoch, metrics)


def evaluate_on(
    model: nn.Module, data: PreparedDataset, samples: SessionDataset, device: torch.device, listener: Listener
) -> Any:
    """Full ranking of `samples` by a model of `data`'s items."""
    was_training = model.training
    model.to(device).eval()
    clicks = torch.bincount(data.train.items.long(), minlength=data.train_items + 1)
    scorer: TrainableScorer = model  # type: ignore[assignment]
    outcome = evaluate(scorer, samples.to(device), data.train_items, scorer.config.max_length, clicks, listener)
    model.train(was_training)
    return outcome
