"""STAN: sequence and time aware neighbourhood (Garg et al., SIGIR 2019): session kNN with three
decays."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posrec.config import setting
from posrec.models.base import CLICKS_READ
from posrec.models.baselines.counting.neighbours import NeighbourModel
from posrec.models.baselines.counting.session_index import (
    NEIGHBOURS,
    SAMPLE_SIZE,
    SessionIndex,
)
from posrec.nn.batch import SessionBatch
from posrec.nn.counting import add_up, nearest, spread


@dataclass(frozen=True)
class STANConfig:
    k: int = setting(500, **NEIGHBOURS)
    sample_size: int = setting(2500, **SAMPLE_SIZE)
    lambda1: float = setting(
        1.0,
        "how slowly the weight of the session's earlier clicks falls, in clicks",
        above=0,
        tune=(1.0, 2.0, 4.0),
    )
    lambda2: float = setting(
        1.0,
        "how slowly the weight of older sessions falls, as a share of the training sessions",
        above=0,
        tune=(0.1, 0.3, 1.0),
    )
    lambda3: float = setting(
        4.0,
        "how slowly the weight of items away from the shared one falls, in clicks",
        above=0,
        tune=(1.0, 2.0, 4.0),
    )
    max_length: int = setting(50, **CLICKS_READ)


class STAN(NeighbourModel):
    """Recent clicks, recent sessions, and items near the shared one weigh more:

        similarity(s, n) = sum over items i in both of exp(-backward(i, s) / lambda1)
                           / sqrt(|s| |n|) * exp(-age(n) / lambda2)
        score(i) = sum over the k most similar n that hold i of
                   similarity(s, n) * exp(-|position(i, n) - position(i*, n)| / lambda3)

    where i* is the latest item of s that is in n too. Time is the order of sessions: age(n) is the
    share of training sessions that began after n. The public splits have this order but no times.
    """

    def __init__(self, items: int, config: STANConfig) -> None:
        super().__init__(items, config)
        self.index = SessionIndex(items)

    def count_neighbours(self, items: Tensor, offsets: Tensor) -> None:
        self.index.count(items, offsets)

    def add_scores(self, batch: SessionBatch, scores: Tensor) -> None:
        config = self.config
        index = self.index
        pairs = index.candidates(batch, self.click_weights, config.sample_size)
        begins = index.session_offsets[pairs.session]
        sizes = index.session_offsets[pairs.session + 1] - begins  # [G] |n|
        decay = torch.exp(-(pairs.session / index.sessions) / config.lambda2)
        norm = (batch.lengths[pairs.row] * sizes).sqrt()
        similarity = pairs.overlap / norm * decay
        best = nearest(pairs.row, similarity, config.k)
        pairs = pairs[best]
        neighbour, entry = spread(index.session_offsets, pairs.session)  # [E]
        item = index.session_items[entry].long()
        position = index.positions[entry]
        last = batch.lengths[pairs.row] - 1
        shared = batch.items[pairs.row, last - pairs.backward]  # [G] i*
        # i* is in each neighbour exactly once: [G]
        shared_position = position[item == shared[neighbour]]
        distance = (position - shared_position[neighbour]).abs()
        near = torch.exp(-distance / config.lambda3)
        places = pairs.row[neighbour] * self.items + item - 1
        add_up(scores, places, similarity[best][neighbour] * near)

    def click_weights(self, backward: Tensor, length: Tensor) -> Tensor:
        return torch.exp(-backward / self.config.lambda1)
