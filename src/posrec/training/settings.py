"""How a model is trained: for a fixed number of epochs, with early stopping on validation, or refitted after that."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from posrec.errors import InputError
from posrec.training.losses import LOSSES

CHOICES = {"protocol": ("paper", "early-stop", "refit"), "loss": LOSSES, "precision": ("auto", "fp32", "tf32", "bf16"),
           "schedule": ("steps", "cosine"), "choose_by": ("mrr@20", "recall@20", "ndcg@20")}  # fmt: skip
# A comparison with a value that is not a number is false, so it is outside every range.
RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "epochs": ("at least 1", lambda value: value >= 1),
    "batch_size": ("at least 1", lambda value: value >= 1),
    "learning_rate": ("above 0 and finite", lambda value: 0 < value < math.inf),
    "decay": ("above 0 and at most 1", lambda value: 0 < value <= 1),
    "decay_every": ("at least 1", lambda value: value >= 1),
    "warmup": ("at least 0 and below 1", lambda value: 0 <= value < 1),
    "recency": ("between 0 and 50", lambda value: 0 <= value <= 50),  # the weights must not round to 0
    "l2": ("at least 0 and finite", lambda value: 0 <= value < math.inf),
    "negatives": ("at least 0", lambda value: value >= 0),
    "sample_alpha": ("at least 0", lambda value: value >= 0),
    "score_l2": ("at least 0", lambda value: value >= 0),
    "replay": ("at least 0", lambda value: value >= 0),
    "patience": ("at least 1", lambda value: value >= 1),
}


@dataclass(frozen=True)
class Settings:
    """The settings of training; the page reference/settings.md of the documentation describes each.

    Protocol `paper` trains for a fixed number of epochs on all training sessions. Protocol `early-stop` trains without
    the latest tenth of the sessions, stops when `choose_by` on that tenth has not improved for `patience` epochs, and
    keeps the weights of the best epoch. Protocol `refit` chooses the number of epochs in the same way, and then trains
    on all training sessions for that number.
    """

    protocol: str = "paper"
    epochs: int = 4
    batch_size: int = 100
    learning_rate: float = 0.001
    schedule: str = "steps"  # steps: the learning rate falls by `decay`; cosine: along a cosine to 0 at the end
    decay: float = 0.1  # the learning rate is multiplied by this number ...
    decay_every: int = 3  # ... each time this many epochs have passed
    warmup: float = 0.0  # cosine: the share of all steps over which the learning rate rises from 0
    recency: float = 0.0  # a sample weighs exp(-recency * age); the age of the oldest is 1
    l2: float = 1e-5
    loss: str = "auto"  # full, chunked, sampled; or a ranking loss: bpr, top1, top1-max, bpr-max
    negatives: int = 2048  # items drawn for every batch by a ranking loss ...
    sample_alpha: float = 0.0  # ... with probability proportional to clicks ** sample_alpha ...
    in_batch: bool = True  # ... in addition to the targets of the batch's other samples
    score_l2: float = 1.0  # bpr-max: weight of the negatives' squared scores
    precision: str = "auto"  # fp32, tf32, bf16; auto: tf32 on a GPU, on a CPU by its instructions
    choose_by: str = "mrr@20"  # early-stop, refit: the metric on validation by which the best epoch is chosen
    patience: int = 2
    replay: float = 1.0  # a warm start: how many samples that the run has seen go with each new one in an epoch
    seed: int = 0

    def rate_at(self, epochs: float) -> float:
        """The learning rate after so many epochs, whole or not.

        >>> settings = Settings(schedule="cosine", warmup=0.25, learning_rate=1.0, epochs=4)
        >>> [round(settings.rate_at(epoch), 2) for epoch in (0.5, 1, 2, 4)]
        [0.48, 0.85, 0.5, 0.0]
        """
        if self.schedule == "steps":
            return self.learning_rate * self.decay ** (int(epochs) // self.decay_every)
        done = epochs / self.epochs
        rising = min(1.0, done / self.warmup) if self.warmup else 1.0
        return self.learning_rate * rising * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    def check(self) -> "Settings":
        """Raise an InputError that names the first setting outside its range or choices; returns the settings."""
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise InputError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")
        for name, (allowed, is_allowed) in RANGES.items():
            if not is_allowed(getattr(self, name)):
                raise InputError(f"{name} must be {allowed}, not {getattr(self, name)}")
        if not self.in_batch and self.negatives < 1:
            raise InputError(f"negatives must be at least 1 without in_batch, not {self.negatives}")
        return self
