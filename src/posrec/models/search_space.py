"""The settings that `posrec tune` searches, and the values that it may choose for each."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Range:
    """Any number between `low` and `high`, drawn uniformly on a logarithmic scale.

    >>> 0.001 in Range(3e-4, 1e-2)
    True
    """

    low: float
    high: float

    def __contains__(self, value: Any) -> bool:
        return bool(self.low <= value <= self.high)


Choices = tuple[Any, ...]
SearchSpace = Mapping[str, Range | Choices]

# Of the training, for every trained model; a model of a user's own that names no search space has this one.
TRAINING: SearchSpace = {
    "learning_rate": Range(3e-4, 1e-2),
    "batch_size": (100, 128, 256, 512),
    "l2": (0.0, 1e-6, 1e-5, 1e-4),
}
DROPOUT: Choices = (0.0, 0.1, 0.2, 0.3, 0.5)
WIDTHS: Choices = (50, 64, 100, 128, 200)

# Small on purpose: the settings known to matter for each model. Every space contains the defaults.
SEARCH: dict[str, SearchSpace] = {
    "posrec": {**TRAINING, "d": WIDTHS, "dropout": DROPOUT, "encoding": ("ldpe", "dpe", "lrpe", "none"),
               "anchors": (True, False), "lambda2": (0.25, 0.5, 1.0, 2.0)},
    "posrec-plus": {"learning_rate": Range(5e-4, 5e-3), "batch_size": (256, 512, 1024, 2048), "d": (100, 128, 200, 256),
                    "item_dropout": (0.1, 0.2, 0.35, 0.5), "repeat_dropout": (0.2, 0.5), "scale": (11.0, 13.0, 16.0),
                    "smoothing": (0.0, 0.25, 0.5, 1.0), "recency": (0.0, 1.0, 2.0), "max_length": (20, 50, 100)},
    "itemknn": {"neighbours": (50, 100, 200, 500), "regularization": (0.0, 10.0, 20.0, 50.0),
                "alpha": (0.25, 0.5, 0.75)},
    "bprmf": {**TRAINING, "d": WIDTHS, "sample_alpha": (0.0, 0.25, 0.5, 0.75)},
    "fpmc": {**TRAINING, "d": WIDTHS, "sample_alpha": (0.0, 0.25, 0.5, 0.75)},
    "gru4rec": {**TRAINING, "dropout": DROPOUT, "embedding_dropout": (0.0, 0.25, 0.5), "truncated": (True, False)},
    "narm": {**TRAINING, "d": WIDTHS, "dropout": DROPOUT, "embedding_dropout": (0.0, 0.25, 0.5)},
    "stamp": {**TRAINING, "d": WIDTHS, "dropout": DROPOUT, "encoding": ("none", "ldpe"), "add_mean": (False, True)},
    "srgnn": {**TRAINING, "d": WIDTHS, "steps": (1, 2, 3), "anchors": (False, True)},
    "fgnn": {**TRAINING, "d": WIDTHS, "layers": (1, 2, 3), "heads": (1, 2, 4, 8), "anchors": (False, True)},
    "gcsan": {**TRAINING, "d": WIDTHS, "layers": (1, 2), "weight": (0.4, 0.6, 0.8), "dropout": DROPOUT},
    "sasrec": {**TRAINING, "d": WIDTHS, "layers": (1, 2, 3), "dropout": DROPOUT, "encoding": ("lpe", "ldpe")},
    "vsknn": {"k": (100, 300, 500, 1000), "sample_size": (1000, 2500, 5000), "idf": (0.0, 1.0, 5.0)},
    "stan": {"k": (100, 200, 500, 1000), "sample_size": (1000, 2500, 5000), "lambda1": (1.0, 2.0, 4.0),
             "lambda3": (1.0, 2.0, 4.0)},
    "coclick": {"window": (3, 6, 10), "before": (0.25, 0.5, 1.0), "smoothing": (1.0, 5.0, 10.0, 20.0),
                "decay": (0.3, 0.5, 0.7), "repeat": (0.05, 0.1, 0.15, 0.3, 0.6), "repeat_decay": (0.5, 0.7, 0.9)},
}  # fmt: skip
