"""The training loop: epochs of shuffled samples, checkpoints, early stopping, and a clean stop on a signal."""

import math
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import torch
from torch import Tensor

from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.device import freed_memory_kept, threads_for
from posrec.errors import RunFailed, RunStopped
from posrec.evaluation.evaluate import Evaluation, compile_ahead, evaluate, rows_for
from posrec.models.base import Model, SessionModel
from posrec.progress import Progress
from posrec.training.adam import make_optimizer, set_learning_rate
from posrec.training.checkpoint import has_state, load_state, save_state, save_weights
from posrec.training.distributed.ranking import sharded_ranker
from posrec.training.distributed.rows import sharded_rows_of
from posrec.training.distributed.world import World
from posrec.training.epoch import EpochRunner, matmul_precision, sample_weights
from posrec.training.settings import Settings
from posrec.training.start import Start, continuation_of
from posrec.training.training_log import Log

EPOCH_CHECKPOINT_SECONDS = 30  # an epoch ends with a checkpoint if the latest is older ...
CHECKPOINT_SECONDS = 600  # ... and during an epoch one is saved if it is older than this
SEEDS_BETWEEN_RANKS = 1_000_003  # between the seeds of two processes


@dataclass
class TrainingState:
    """The progress of a training run; saved in every checkpoint."""

    epoch: int = 0
    step: int = 0
    losses: list[float] = field(default_factory=list)  # mean loss of each finished epoch
    best: float = -math.inf
    best_epoch: int = 0  # counted from 1
    epochs_without_gain: int = 0
    loss_so_far: float = 0.0  # summed over the steps of the unfinished epoch


class StopSignals:
    """Inside `with`, SIGINT and SIGTERM set `received`, and training stops after the step; a second Ctrl-C stops at
    once, unless `patient`."""

    def __init__(self, patient: bool = False) -> None:
        self.received, self.patient = False, patient
        self.handlers: dict[int, Any] = {}  # those that were set before

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self.handlers[number] = signal.signal(number, self.receive)
            except ValueError:  # not the main thread: the caller handles signals
                break
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def receive(self, number: int, frame: FrameType | None) -> None:
        if self.received and number == signal.SIGINT and not self.patient:
            raise KeyboardInterrupt
        self.received = True


@dataclass(frozen=True)
class Place:
    """Where a model is trained, and what is kept of the training."""

    run: Path  # its folder
    device: torch.device
    progress: Progress
    resume: bool = False  # continue from the latest checkpoint
    track: bool = False  # write the folder `tensorboard` too
    # Whether to save checkpoints. Each is three times as large as the weights, and useless if the folder is deleted
    # after the training.
    resumable: bool = True
    world: World = field(default_factory=World)  # the processes that train together, of which the first has the folder


def train(
    model: SessionModel,
    data: PreparedDataset,
    settings: Settings,
    place: Place,
    stop_after: int | None = None,
    start: Start | None = None,
) -> TrainingState:
    """Train `model` in place, and write `model.safetensors` and a log into the run's folder.

    With `stop_after`, training ends after so many epochs, and the learning rate is the same as if it went on. `start`
    sets the initial weights, after the model has counted. With protocol `paper`, an epoch then has the samples that it
    has not seen and some of the others. Protocol `refit` is here its second part, on all training sessions.
    """
    training, world = Training(model, data, settings, place, start), place.world
    if not training.stops_early and world.is_alone:
        compile_ahead(model, data.test, place.device)  # the caller ranks it afterwards
    # Forward and backward, every sample is multiplied with every weight three times.
    operations = 6 * settings.batch_size * sum(weight.numel() for weight in model.parameters())
    with (
        matmul_precision(settings, place.device, data.train_items),
        freed_memory_kept(),
        training.signals,
        threads_for(operations),
        Log(place.run if world.is_first else None, place.track) as log,
    ):
        training.run(stop_after or settings.epochs, log)
    if not training.stops_early:
        training.save()
    return training.state


class Training:
    """A model that is ready to be trained: its samples, its optimiser, and how far the training is."""

    def __init__(
        self, model: SessionModel, data: PreparedDataset, settings: Settings, place: Place, start: Start | None
    ) -> None:
        self.model, self.data, self.settings, self.place = model, data, settings, place
        self.stops_early = settings.protocol == "early-stop"
        samples, device, world = data.fitting if self.stops_early else data.train, place.device, place.world
        model.count(samples.items.to(device), samples.offsets.to(device))
        self.new = None
        if start is not None:
            start.set_weights(model, samples)
            self.new = start.new_samples(samples) if settings.protocol == "paper" else None
        self.trained_until = int(samples.times.max())
        if not world.is_first:
            torch.manual_seed(settings.seed + SEEDS_BETWEEN_RANKS * world.rank)  # dropout must differ
        self.weights = sample_weights(samples, settings.recency, data.target_weights)
        self.samples = samples.to(device)
        model.to(device).train()
        self.optimizer = make_optimizer(model, settings, device)
        if start is not None:
            start.set_moments(model, self.optimizer)
        self.state = TrainingState()
        if place.resume and has_state(place.run, model):
            self.state = TrainingState(**load_state(place.run, model, self.optimizer))
            place.progress.message(f"resuming after epoch {self.state.epoch}, step {self.state.step}")
        # After one Ctrl-C, the terminal and torchrun both send a signal to each process.
        self.signals = StopSignals(patient=not world.is_alone)
        self.has_checkpoint, self.latest_checkpoint = False, time.monotonic()  # or when the training began

    def run(self, epochs: int, log: Log) -> None:
        model, settings, state, place = self.model, self.settings, self.state, self.place
        if place.resume:
            log.resume_after(state.epoch)
        if self.stops_early and place.world.is_alone:
            compile_ahead(model, self.data.validation, place.device)
        items, longest = self.data.train_items, model.config.max_length
        runner = EpochRunner(
            model, self.optimizer, self.samples, settings, place.device, items, longest, self.weights, self.new
        )
        if runner.new is not None:
            count, others = f"{int(runner.new.sum()):,} of {len(self.samples):,}", f"{runner.replayed:,} others"
            place.progress.message(f"{count} samples are new; an epoch has them and {others}")

        def goes_on() -> bool:
            return state.epoch < epochs and state.epochs_without_gain < settings.patience

        while goes_on():
            seconds = self.train_epoch(runner, epochs, log)
            line = f"epoch {state.epoch} of {epochs}: loss {state.losses[-1]:.3f}, {seconds:.1f} s"
            if self.stops_early:
                line += f", {settings.choose_by} {100 * self.keep_if_best(log):.2f} on validation"
            place.progress.message(line)
            (is_old,) = place.world.agree(place.device, self.checkpoint_is_older_than(EPOCH_CHECKPOINT_SECONDS))
            if not self.has_checkpoint or is_old or not goes_on():
                self.save_checkpoint()

    def train_epoch(self, runner: EpochRunner, epochs: int, log: Log) -> float:
        """Train for one epoch of `epochs`, or for the rest of it after a resume. Returns seconds."""
        state, settings = self.state, self.settings
        order = runner.shuffle(state.epoch)
        began = last_read = time.monotonic()
        first_step, unread, rate = state.step, [], settings.rate_at(state.epoch + 1 - 0.5 / order.steps)
        while state.step < order.steps:
            rate = settings.rate_at(state.epoch + (state.step + 0.5) / order.steps)
            set_learning_rate(self.optimizer, rate)
            losses = runner.run(order, state.step)
            unread.append(losses)
            state.step += len(losses)
            now = time.monotonic()
            if state.step < order.steps and not runner.is_time_to_read(state.step, now - last_read):
                continue
            last_read = now
            losses = torch.cat(unread)
            unread.clear()
            runner.world.summed(losses)  # each process has its part of them
            latest = read_losses(losses, state)
            log.point("loss/step", latest, state.epoch * order.steps + state.step)
            name = f"Epoch {state.epoch + 1} of {epochs}"
            speed = (state.step - first_step) * order.samples / order.steps / (now - began)
            average = state.loss_so_far / state.step
            self.place.progress.update(name, state.step, order.steps, f"loss {average:.3f}, {speed:,.0f} samples/s")
            wishes = self.signals.received, self.checkpoint_is_older_than(CHECKPOINT_SECONDS)
            stop, save = runner.world.agree(runner.device, *wishes)
            if stop or save:
                self.save_checkpoint()
            if stop:
                raise RunStopped(f"stopped in epoch {state.epoch + 1}, step {state.step}; continue with --resume")
        seconds = time.monotonic() - began
        state.losses.append(state.loss_so_far / order.steps)
        state.epoch, state.step, state.loss_so_far = state.epoch + 1, 0, 0.0
        samples = (order.steps - first_step) * order.samples / order.steps
        entry = {"loss": state.losses[-1], "learning_rate": rate, "seconds": round(seconds, 3), "steps": order.steps}
        log.epoch(state.epoch, **entry, samples_per_second=round(samples / max(seconds, 1e-9)))
        return seconds

    def keep_if_best(self, log: Log) -> float:
        """Save this epoch's weights if they rank the validation sessions better than those of all epochs before.
        Returns the metric on validation."""
        state, data, place, metric = self.state, self.data, self.place, self.settings.choose_by
        metrics = evaluate_on(self.model, data, data.validation, place.device, place.progress).metrics
        if metrics[metric] > state.best:
            state.best, state.best_epoch, state.epochs_without_gain = metrics[metric], state.epoch, 0
            self.save()
        else:
            state.epochs_without_gain += 1
        log.epoch(state.epoch, validation=metrics)
        place.progress.validated(state.epoch, metrics)
        return metrics[metric]

    def save(self) -> None:
        """Write the weights, and what a training that starts from them needs."""
        save_weights(self.place.run, self.model, continuation_of(self.model, self.optimizer, self.trained_until))

    def save_checkpoint(self) -> None:
        if self.place.resumable:
            save_state(self.place.run, self.model, self.optimizer, vars(self.state))
        self.has_checkpoint, self.latest_checkpoint = True, time.monotonic()

    def checkpoint_is_older_than(self, seconds: float) -> bool:
        return time.monotonic() - self.latest_checkpoint > seconds


def read_losses(losses: Tensor, state: TrainingState) -> float:
    """Copy losses from the device and return their mean. A loss that is not finite raises, before anything is saved."""
    losses = losses.double().cpu()
    if not losses.isfinite().all():
        bad = state.step - len(losses) + int((~losses.isfinite()).nonzero()[0]) + 1
        raise RunFailed(
            f"the loss is not a number at step {bad} of epoch {state.epoch + 1}; the last checkpoint is kept. "
            "Lower learning_rate, or set precision=fp32"
        )
    state.loss_so_far += float(losses.sum())
    return float(losses.mean())


def evaluate_on(
    model: Model, data: PreparedDataset, samples: SessionDataset, device: torch.device, progress: Progress
) -> Evaluation:
    """Rank all items of the model, which is on `device`, for each of `samples`, a part of `data`."""
    was_training = model.training
    model.eval()  # not `to(device)`: torch moves the weights of recurrent layers, also to where they are already
    clicks = torch.bincount(data.train.items.long(), minlength=model.items + 1)
    samples, max_length, at_once = samples.to(device), model.config.max_length, None
    rows, rank = sharded_rows_of(model), None
    if rows is not None and isinstance(model, SessionModel):
        rank = sharded_ranker(model, rows)
        # As much as the first process has memory for: all have to rank the same samples at a time.
        at_once = rows.world.of_process(rows_for(samples, model.items, max_length), device)
    outcome = evaluate(model, samples, model.items, max_length, clicks, progress, rank, at_once)
    model.train(was_training)
    return outcome
