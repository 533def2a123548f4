"""The training loop: epochs of shuffled samples, checkpoints, early stopping, and a clean stop on a
signal."""

import math
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Self

import torch
from torch import Tensor

from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.device import threads_for
from posrec.errors import RunFailed, RunStopped
from posrec.evaluation.evaluate import Evaluation, compile_ahead, evaluate
from posrec.io import ATTRIBUTES, STATE, WEIGHTS, save_tensors
from posrec.models.base import Model, SessionModel
from posrec.progress import Progress
from posrec.training.checkpoint import load_state, save_state
from posrec.training.epoch import EpochRunner, matmul_precision, sample_weights
from posrec.training.optimizers import make_optimizer, set_learning_rate
from posrec.training.settings import SECOND_CYCLE, Settings
from posrec.training.start import Continuation, Start
from posrec.training.tracking import Tracker
from posrec.training.training_log import TrainingLog

# A checkpoint is saved if the latest is older: at the end of an epoch, and during one.
EPOCH_CHECKPOINT_SECONDS = 30
CHECKPOINT_SECONDS = 600
# Validation still rises if the second half of the epochs has raised it by at least this share. The
# learning rate falls to 0, so the rise of the last epoch alone says little.
RISE = 0.02


@dataclass
class TrainingState:
    """The progress of a training run; saved in every checkpoint."""

    epoch: int = 0
    step: int = 0
    losses: list[float] = field(default_factory=list)  # the mean of each finished epoch
    validated: list[float] = field(default_factory=list)  # the metric of each epoch
    best_epoch: int = 0  # counted from 1
    loss_so_far: float = 0.0  # summed over the steps of the unfinished epoch

    @property
    def best(self) -> float:
        return max(self.validated, default=-math.inf)


class StopSignals:
    """Inside `with`, SIGINT and SIGTERM set `received`, and training stops after the step. A second
    Ctrl-C, if it `may_interrupt`, stops at once."""

    def __init__(self) -> None:
        self.received = False
        self.may_interrupt = True
        self.handlers: dict[int, Any] = {}  # those that were set before

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self.handlers[number] = signal.signal(number, self.receive)
            except ValueError:  # not the main thread: the caller handles signals
                break
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def receive(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT and self.may_interrupt:
            raise KeyboardInterrupt
        self.received = True


@dataclass(frozen=True)
class TrainingContext:
    """Where a model is trained, and what is kept of the training."""

    run: Path  # its folder
    device: torch.device
    progress: Progress
    resume: bool = False  # continue from the latest checkpoint
    tracker: Tracker = field(default_factory=Tracker)
    # Whether to save checkpoints, each three times as large as the weights.
    resumable: bool = True
    # Whether this process writes the run's files; of several that train together, one does.
    writes: bool = True


class Training:
    """Trains `model` in place, and writes `model.safetensors` and a log into the run's folder.

    `start` sets the initial weights, after the model has counted; with protocol `paper`, an epoch
    then has the samples that are new to it and some of the others. Protocol `refit` is here its
    second part, on all training sessions."""

    runner_type: type[EpochRunner] = EpochRunner

    def __init__(
        self,
        model: SessionModel,
        data: PreparedDataset,
        settings: Settings,
        context: TrainingContext,
        start: Start | None = None,
    ) -> None:
        self.model = model
        self.data = data
        self.settings = settings
        self.context = context
        self.stops_early = settings.protocol == "early-stop"
        samples = data.fitting if self.stops_early else data.train
        device = context.device
        model.count(samples.items.to(device), samples.offsets.to(device))
        self.new = None
        if start is not None:
            start.set_weights(model, samples)
            if settings.protocol == "paper":
                self.new = start.new_samples(samples)
        self.trained_until = int(samples.times.max())
        self.weights = sample_weights(samples, settings.recency, data.target_weights)
        self.samples = samples.to(device)
        model.to(device).train()
        self.optimizer = make_optimizer(model, settings, device)
        if start is not None:
            start.set_moments(model, self.optimizer)
        self.state = TrainingState()
        if context.resume and (context.run / STATE).exists():
            self.state = TrainingState(**load_state(context.run, model, self.optimizer))
            context.progress.message(
                f"resuming after epoch {self.state.epoch}, step {self.state.step}"
            )
        self.signals = StopSignals()
        self.has_checkpoint = False
        self.latest_checkpoint = time.monotonic()  # or when the training began

    def run(self, stop_after: int | None = None) -> TrainingState:
        """Train for all epochs, and write the weights. With `stop_after`, training ends after that
        many, with the learning rates as if it went on."""
        settings = self.settings
        context = self.context
        if context.writes and not self.stops_early:
            # The caller ranks the test sessions afterwards.
            compile_ahead(self.model, self.data.test, context.device)
        # Forward and backward, every sample is multiplied with every weight three times.
        weights = sum(weight.numel() for weight in self.model.parameters())
        operations = 6 * settings.batch_size * weights
        log = TrainingLog(context.run if context.writes else None, context.tracker)
        with (
            matmul_precision(settings, context.device, self.data.train_items),
            self.signals,
            threads_for(operations),
        ):
            self.train_epochs(stop_after, log)
        if not self.stops_early:
            self.save()
        return self.state

    def train_epochs(self, stop_after: int | None, log: TrainingLog) -> None:
        state = self.state
        context = self.context
        progress = context.progress
        if context.resume:
            log.resume_after(state.epoch)
        if context.writes and self.stops_early:
            compile_ahead(self.model, self.data.validation, context.device)
        runner = self.runner_type(
            self.model,
            self.optimizer,
            self.samples,
            self.settings,
            self.data.train_items,
            self.weights,
            self.new,
        )
        if runner.new is not None:
            count = f"{int(runner.new.sum()):,} of {len(self.samples):,}"
            others = f"{runner.replayed:,} others"
            progress.message(f"{count} samples are new; an epoch has them and {others}")
        while not self.is_finished(stop_after):
            epochs = self.planned_epochs(stop_after)
            seconds = self.train_epoch(runner, epochs, log)
            line = f"epoch {state.epoch} of {epochs}: loss {state.losses[-1]:.3f}, {seconds:.1f} s"
            if self.stops_early:
                metric = f"{self.settings.choose_by} {100 * self.keep_if_best(log):.2f}"
                line += f", {metric} on validation"
            progress.message(line)
            is_old = self.checkpoint_age() > EPOCH_CHECKPOINT_SECONDS
            if is_old or not self.has_checkpoint or self.is_finished(stop_after):
                self.save_checkpoint()

    def is_finished(self, stop_after: int | None) -> bool:
        if self.state.epoch >= self.planned_epochs(stop_after):
            return True
        # A second cycle begins with a high learning rate, which makes the metric fall at first.
        validated = self.state.validated
        cycle = validated[self.settings.epochs :] or validated
        if len(cycle) < 2:
            return False
        epochs_without_gain = len(cycle) - 1 - cycle.index(max(cycle))
        # A small log may learn little in its first epochs, and much in later ones.
        is_rising = cycle[-1] > cycle[-2]
        return epochs_without_gain >= self.settings.patience and not is_rising

    def planned_epochs(self, stop_after: int | None) -> int:
        """How many epochs there are, as far as is known."""
        length = self.settings.epochs
        first_cycle = self.state.validated[:length]
        is_known = self.settings.extend and len(first_cycle) == length
        if is_known and still_rises(first_cycle):
            return length * (1 + SECOND_CYCLE)
        return stop_after or length

    def train_epoch(self, runner: EpochRunner, epochs: int, log: TrainingLog) -> float:
        """Train for one epoch, or for the rest of it after a resume. Returns seconds."""
        state = self.state
        settings = self.settings
        order = runner.shuffle(state.epoch)
        samples_per_step = order.samples / order.steps
        name = f"Epoch {state.epoch + 1} of {epochs}"
        began = time.monotonic()
        last_read = began
        first_step = state.step
        unread = []
        rate = settings.rate_at(state.epoch + 1 - 0.5 / order.steps)
        while state.step < order.steps:
            rate = settings.rate_at(state.epoch + (state.step + 0.5) / order.steps)
            set_learning_rate(self.optimizer, rate)
            unread.append(runner.run(order, state.step))
            state.step += len(unread[-1])
            now = time.monotonic()
            is_end = state.step == order.steps
            if not is_end and not runner.is_time_to_read(state.step, now - last_read):
                continue
            last_read = now
            losses, stop = self.read(torch.cat(unread))
            unread.clear()
            latest = add_losses(losses, state)
            log.point("loss/step", latest, state.epoch * order.steps + state.step)
            average = state.loss_so_far / state.step
            speed = (state.step - first_step) * samples_per_step / (now - began)
            note = f"loss {average:.3f}, {speed:,.0f} samples/s"
            self.context.progress.update(name, state.step, order.steps, note)
            if stop or self.checkpoint_age() > CHECKPOINT_SECONDS:
                self.save_checkpoint()
            if stop:
                raise RunStopped(
                    f"stopped in epoch {state.epoch + 1}, step {state.step}; continue with --resume"
                )
        seconds = time.monotonic() - began
        state.losses.append(state.loss_so_far / order.steps)
        state.epoch += 1
        state.step = 0
        state.loss_so_far = 0.0
        samples = (order.steps - first_step) * samples_per_step
        log.epoch(
            state.epoch,
            loss=state.losses[-1],
            learning_rate=rate,
            seconds=round(seconds, 3),
            steps=order.steps,
            samples_per_second=round(samples / max(seconds, 1e-9)),
        )
        return seconds

    def read(self, losses: Tensor) -> tuple[Tensor, bool]:
        """The losses of some steps on the CPU, and whether a signal stops the training."""
        return losses.double().cpu(), self.signals.received

    def validate(self) -> dict[str, float]:
        """The metrics on the validation sessions."""
        data = self.data
        context = self.context
        return evaluate_on(
            self.model, data, data.validation, context.device, context.progress
        ).metrics

    def keep_if_best(self, log: TrainingLog) -> float:
        """Save the weights if they rank the validation sessions best so far; returns the metric."""
        state = self.state
        metrics = self.validate()
        metric = metrics[self.settings.choose_by]
        if metric > state.best:
            state.best_epoch = state.epoch
            self.save()
        state.validated.append(metric)
        log.epoch(state.epoch, validation=metrics)
        self.context.progress.validated(state.epoch, metrics)
        return metric

    def save(self) -> None:
        """Write the weights, and what a training that starts from them needs."""
        if not self.context.writes:
            return
        save_tensors(self.context.run / WEIGHTS, self.model.saved_weights(), {})
        if (parts := self.model.attribute_parts()) is not None:
            save_tensors(self.context.run / ATTRIBUTES, *parts)
        continuation = Continuation.of_training(
            self.model, self.optimizer, self.trained_until
        )
        continuation.save(self.context.run)

    def save_checkpoint(self) -> None:
        if self.context.writes and self.context.resumable:
            save_state(self.context.run, self.model, self.optimizer, vars(self.state))
        self.has_checkpoint = True
        self.latest_checkpoint = time.monotonic()

    def checkpoint_age(self) -> float:
        return time.monotonic() - self.latest_checkpoint


def still_rises(validated: list[float]) -> bool:
    """Whether the metric on validation, of one epoch after the other, is likely to rise further.

    >>> still_rises([34.3, 42.8, 44.7, 45.6, 45.9, 46.0])
    True
    >>> still_rises([36.9, 38.7, 39.2, 39.5, 39.7, 39.7])
    False
    """
    middle = validated[(len(validated) - 1) // 2]
    last = validated[-1]
    return last == max(validated) and last >= (1 + RISE) * middle


def add_losses(losses: Tensor, state: TrainingState) -> float:
    """Add the losses of some steps to the epoch's, and return their mean. A loss that is not finite
    raises, before anything is saved."""
    if not losses.isfinite().all():
        bad = state.step - len(losses) + int((~losses.isfinite()).nonzero()[0]) + 1
        raise RunFailed(
            f"the loss is not a number at step {bad} of epoch {state.epoch + 1}; "
            "the last checkpoint is kept. Lower learning_rate, or set precision=fp32"
        )
    state.loss_so_far += float(losses.sum())
    return float(losses.mean())


def evaluate_on(
    model: Model,
    data: PreparedDataset,
    samples: SessionDataset,
    device: torch.device,
    progress: Progress,
) -> Evaluation:
    """Rank all items of the model, which is on `device`, for each of `samples`, some of `data`."""
    was_training = model.training
    # Not `to(device)`: torch moves the weights of recurrent layers, also to where they are already.
    model.eval()
    clicks = torch.bincount(data.train.items.long(), minlength=model.items + 1)
    samples = samples.to(device)
    max_length = model.config.max_length
    outcome = evaluate(model, samples, model.items, max_length, clicks, progress)
    model.train(was_training)
    return outcome
