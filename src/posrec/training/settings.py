"""The settings of training."""

import math
from dataclasses import dataclass

from posrec.config import check_settings, setting
from posrec.errors import InputError

SECOND_CYCLE = 2  # its length, in `epochs`
RANKING_LOSSES = ("bpr", "top1", "top1-max", "bpr-max")


@dataclass(frozen=True)
class Settings:
    """Protocol `paper` trains for a fixed number of epochs on all training sessions. `early-stop`
    validates on the latest tenth of them, stops after `patience` epochs without improvement, and
    keeps the best weights. `refit` then trains on all sessions for the best number of epochs."""

    protocol: str = setting(
        "paper",
        "how the number of epochs is chosen: "
        "[the three protocols](protocol.md#the-three-protocols)",
        choices=("paper", "early-stop", "refit"),
    )
    epochs: int = setting(
        4,
        "passes over the training samples; with `early-stop` and `refit` the largest number of "
        "them",
        at_least=1,
    )
    extend: bool = setting(
        False,
        "of `early-stop` and `refit`: if validation still rises at the end, train for twice as "
        "many epochs more, with a second cycle of the learning rate; false if `epochs` is set",
    )
    batch_size: int = setting(100, "samples in a step", at_least=1)
    optimizer: str = setting(
        "adam",
        "`adam`, or `adagrad` with learning rates of about 0.05, as GRU4Rec's authors use it",
        choices=("adam", "adagrad"),
    )
    learning_rate: float = setting(0.001, "of the optimizer", above=0)
    beta2: float = setting(
        0.999, "of `adam`: decay of the mean squared gradient", at_least=0, below=1
    )
    schedule: str = setting(
        "steps",
        "`steps`: the learning rate is multiplied by `decay` after every `decay_every` epochs; "
        "`cosine`: it falls along a cosine to 0 at the end of the last epoch",
        choices=("steps", "cosine"),
    )
    decay: float = setting(
        0.1, "of `schedule=steps`: the factor of the learning rate", above=0, at_most=1
    )
    decay_every: int = setting(
        3,
        "of `schedule=steps`: after how many epochs it is applied, each time",
        at_least=1,
    )
    warmup: float = setting(
        0.0,
        "of `schedule=cosine`: the share of all steps over which the learning rate rises from 0",
        at_least=0,
        below=1,
    )
    recency: float = setting(
        0.0,
        "a sample weighs exp(-`recency` * age) in the loss; the age of the oldest sample is 1",
        between=(0, 50),  # the weights must not round to 0
    )
    l2: float = setting(
        1e-5, "added to the gradient: `l2` times the weights", at_least=0
    )
    loss: str = setting(
        "auto",
        "`full` softmax, `chunked` (the same value in less memory), `sampled`, or a ranking loss: "
        "`bpr`, `top1`, `top1-max`, `bpr-max` ([formulas](models_baselines.md#what-they-share)). "
        "`auto` is `full` up to 200,000 items, `chunked` up to 2 million, `sampled` past that",
        choices=("auto", "full", "chunked", "sampled", *RANKING_LOSSES),
    )
    negatives: int = setting(
        2048, "of a ranking loss: how many negatives are drawn for a batch", at_least=0
    )
    sample_alpha: float = setting(
        0.0,
        "of a ranking loss: negatives are drawn in proportion to clicks ** `sample_alpha`",
        at_least=0,
    )
    in_batch: bool = setting(
        True,
        "of a ranking loss: whether other targets of the batch are negatives too",
    )
    score_l2: float = setting(
        1.0, "of `bpr-max`: the weight of the negatives' squared scores", at_least=0
    )
    precision: str = setting(
        "auto",
        "of products: `fp32`, `tf32`, `bf16`; `auto` is `tf32` on a GPU "
        "([performance](performance.md#on-a-gpu)), and on a CPU `bf16` for the products of the "
        "softmax where it has AMX and there are 10,000 items, else `fp32`",
        choices=("auto", "fp32", "tf32", "bf16"),
    )
    choose_by: str = setting(
        "mrr@20",
        "of `early-stop` and `refit`: the validation metric that chooses the epoch",
        choices=("mrr@20", "recall@20", "ndcg@20"),
    )
    patience: int = setting(
        2,
        "of `early-stop` and `refit`: epochs without improvement until training stops",
        at_least=1,
    )
    replay: float = setting(
        1.0,
        "of a [warm start](nightly.md): how many samples of the run's own sessions go with each "
        "new one in an epoch",
        at_least=0,
    )
    half_life: float = setting(
        3.0,
        "of the clicks by which items are ranked for "
        "[a session without a known click](recommending.md#rules-for-all-options): a click this "
        "many days before the end of the log counts half",
        above=0,
    )
    seed: int = setting(0, "of initial weights, shuffling, dropout and drawn negatives")

    def rate_at(self, epochs: float) -> float:
        """The learning rate after `epochs` epochs, whole or not.

        >>> settings = Settings(schedule="cosine", warmup=0.25, learning_rate=1.0, epochs=4)
        >>> [round(settings.rate_at(epoch), 2) for epoch in (0.5, 1, 2, 4)]
        [0.48, 0.85, 0.5, 0.0]
        >>> [round(settings.rate_at(epoch), 2) for epoch in (5, 6, 8, 12)]  # if it is extended
        [0.48, 0.85, 0.5, 0.0]
        """
        if self.schedule == "steps":
            return self.learning_rate * self.decay ** (int(epochs) // self.decay_every)
        done = epochs / self.epochs
        if done > 1:
            done = (done - 1) / SECOND_CYCLE
        rising = min(1.0, done / self.warmup) if self.warmup else 1.0
        cosine = math.cos(math.pi * min(1.0, done))
        return self.learning_rate * rising * 0.5 * (1 + cosine)

    def check(self) -> "Settings":
        """Raise an InputError that names the first setting outside its range; returns self."""
        check_settings(self)
        if not self.in_batch and self.negatives < 1:
            raise InputError(
                f"negatives must be at least 1 without in_batch, not {self.negatives}"
            )
        return self
