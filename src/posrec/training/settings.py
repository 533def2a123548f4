"""How a model is trained: the paper's protocol, or early stopping on validation."""

from dataclasses import dataclass

from posrec.errors import InputError
from posrec.training.losses import LOSSES

PRECISIONS = ("auto", "fp32", "tf32", "bf16")


@dataclass(frozen=True)
class Settings:
    """Protocol `paper`: a fixed number of epochs on all training sessions; nothing is chosen.

    Protocol `early-stop`: fitted without the latest tenth of the sessions, stopped when those are predicted no better
    for `patience` epochs, and the best epoch kept.
    """

    protocol: str = "paper"
    epochs: int = 4
    batch_size: int = 100
    learning_rate: float = 0.001
    decay: float = 0.1  # the learning rate is multiplied by this ...
    decay_every: int = 3  # ... after so many epochs
    l2: float = 1e-5
    loss: str = "auto"  # full, chunked, sampled; or a ranking loss: bpr, top1, top1-max, bpr-max
    negatives: int = 2048  # items drawn for every batch by a ranking loss ...
    sample_alpha: float = 0.0  # ... with a chance of clicks ** sample_alpha ...
    in_batch: bool = True  # ... beside the targets of the batch's other samples
    score_l2: float = 1.0  # bpr-max: weight of the negatives' squared scores
    precision: str = "auto"  # fp32, tf32, bf16; auto: tf32 on a GPU, fp32 on a CPU
    patience: int = 2
    seed: int = 0

    def check(self) -> "Settings":
        sensible = {
            "protocol": self.protocol in ("paper", "early-stop"),
            "epochs": self.epochs >= 1,
            "batch_size": self.batch_size >= 1,
            "learning_rate": self.learning_rate > 0,
            "decay": 0 < self.decay <= 1,
            "decay_every": self.decay_every >= 1,
            "l2": self.l2 >= 0,
            "loss": self.loss in LOSSES,
            "negatives": self.negatives >= (0 if self.in_batch else 1),
            "sample_alpha": self.sample_alpha >= 0,
            "score_l2": self.score_l2 >= 0,
            "precision": self.precision in PRECISIONS,
            "patience": self.patience >= 1,
        }
        for name, fine in sensible.items():
            if not fine:
                raise InputError(f"{name}={getattr(self, name)} makes no sense for training; see docs/training.md")
        return self
