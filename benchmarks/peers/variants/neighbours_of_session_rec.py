"""STAN and VSKNN with what session-rec's have, to find why the figures differ.

session-rec does not lower the scores of a session's own items, and its VSKNN has a weight of a
neighbour after i clicks, 1 / i^2, that posrec's has not.
"""

from unittest.mock import patch

from torch import Tensor

from posrec.models.baselines.counting.stan import STAN, STANConfig
from posrec.models.baselines.counting.vsknn import VSKNN, WEIGHTS, VSKNNConfig
from posrec.models.registry import ModelSpec
from posrec.nn.batch import SessionBatch


class STANWithOwnItems(STAN):
    def count(self, items: Tensor, offsets: Tensor) -> None:
        super().count(items, offsets)
        self.own_factors.fill_(1)


class VSKNNWithOwnItems(VSKNN):
    def count(self, items: Tensor, offsets: Tensor) -> None:
        super().count(items, offsets)
        self.own_factors.fill_(1)


class VSKNNWithSquares(VSKNNWithOwnItems):
    def add_scores(self, batch: SessionBatch, scores: Tensor) -> None:
        squares = {"harmonic": lambda backward, length: 1 / (backward + 1) ** 2}
        with patch.dict(WEIGHTS, squares):
            super().add_scores(batch, scores)


STAN_SPEC = ModelSpec(STANWithOwnItems, STANConfig, about="own items are not lowered")
VSKNN_SPEC = ModelSpec(
    VSKNNWithOwnItems, VSKNNConfig, about="own items are not lowered"
)
SQUARES_SPEC = ModelSpec(VSKNNWithSquares, VSKNNConfig, about="weights of 1 / i^2")
