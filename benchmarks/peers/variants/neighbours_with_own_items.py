"""Neighbour models with what session-rec's and implicit's have, to find why the figures differ.

These do not lower the scores of a session's own items. session-rec's VSKNN also has a weight of a
neighbour after i clicks, 1 / i^2, that posrec's has not.
"""

from unittest.mock import patch

from torch import Tensor

from posrec.models.baselines.counting.itemknn import ItemKNN, ItemKNNConfig
from posrec.models.baselines.counting.neighbours import NeighbourModel
from posrec.models.baselines.counting.stan import STAN, STANConfig
from posrec.models.baselines.counting.vsknn import VSKNN, WEIGHTS, VSKNNConfig
from posrec.models.registry import ModelSpec
from posrec.nn.batch import SessionBatch


class WithOwnItems(NeighbourModel):
    def count(self, items: Tensor, offsets: Tensor) -> None:
        super().count(items, offsets)
        self.own_factors.fill_(1)


class STANWithOwnItems(WithOwnItems, STAN):
    pass


class VSKNNWithOwnItems(WithOwnItems, VSKNN):
    pass


class ItemKNNWithOwnItems(WithOwnItems, ItemKNN):
    pass


class VSKNNWithSquares(VSKNNWithOwnItems):
    def add_scores(self, batch: SessionBatch, scores: Tensor) -> None:
        squares = {"harmonic": lambda backward, length: 1 / (backward + 1) ** 2}
        with patch.dict(WEIGHTS, squares):
            super().add_scores(batch, scores)


ABOUT = "own items are not lowered"
STAN_SPEC = ModelSpec(STANWithOwnItems, STANConfig, ABOUT)
VSKNN_SPEC = ModelSpec(VSKNNWithOwnItems, VSKNNConfig, ABOUT)
ITEMKNN_SPEC = ModelSpec(ItemKNNWithOwnItems, ItemKNNConfig, ABOUT)
SQUARES_SPEC = ModelSpec(VSKNNWithSquares, VSKNNConfig, about="weights of 1 / i^2")
