"""STAN: sequence and time aware neighbourhood (Garg et al., SIGIR 2019): session kNN with three
decays.

    similarity(s, n) = sum over items i in both of exp(-backward(i, s) / lambda1) / sqrt(|s| |n|)   recent clicks
                       * exp(-age(n) / lambda2)                                                     recent sessions
    score(i) = sum over the k most similar n that hold i of
               similarity(s, n) * exp(-|position(i, n) - position(i*, n)| / lambda3)                near in n

where i* is the latest item of s that is in n too. Time is the order of sessions: age(n) is the
share of training sessions that began after n. The public splits have this order but no times."""

from dataclasses import dataclass

import torch
from torch import Tensor

from posrec.config import setting
from posrec.models.baselines.counting.neighbours import NeighbourModel
from posrec.models.baselines.counting.session_index import SessionIndex
from posrec.nn.batch import SessionBatch
from posrec.nn.counting import add_up, nearest, spread


@dataclass(frozen=True)
class STANConfig:
    k: int = setting(
        500, "the number of neighbours", at_least=1, tune=(100, 200, 500, 1000)
    )
    sample_size: int = setting(
        2500,
        "how many of the newest sessions are searched for neighbours",
        at_least=1,
        tune=(1000, 2500, 5000),
    )
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
    )
    lambda3: float = setting(
        4.0,
        "how slowly the weight of items away from the shared one falls, in clicks",
        above=0,
        tune=(1.0, 2.0, 4.0),
    )
    max_length: int = setting(
        50, "how many of a session's latest clicks are read", at_least=1
    )


class STAN(NeighbourModel):
    """Nearest training sessions, weighted by how recent clicks and sessions are and how near items
    stand."""

    def __init__(self, items: int, config: STANConfig) -> None:
        super().__init__(items, config)
        self.index = SessionIndex(items)

    def count_neighbours(self, items: Tensor, offsets: Tensor) -> None:
        self.index.count(items, offsets)

    def add_scores(self, batch: SessionBatch, scores: Tensor) -> None:
        """Write the scores of the items in neighbours into `scores [B, n]`."""
        config = self.config
        index = self.index
        column = torch.arange(batch.items.shape[1], device=scores.device)
        backward = (batch.lengths[:, None] - 1 - column).clamp(min=0)  # [B, L]
        found = index.candidates(
            batch.items,
            batch.lengths,
            torch.exp(-backward / config.lambda1),
            config.sample_size,
        )
        sizes = (
            index.session_offsets[found.session + 1]
            - index.session_offsets[found.session]
        )  # [G]
        age = found.session / index.sessions
        similarity = (
            found.overlap
            / (batch.lengths[found.row] * sizes).sqrt()
            * torch.exp(-age / config.lambda2)
        )
        kept = nearest(found.row, similarity, config.k)
        found = found.only(kept)
        similarity = similarity[kept]
        neighbour, place = spread(index.session_offsets, found.session)  # [E]
        item = index.session_items[place].long()
        position = index.positions[place]
        shared = batch.items[
            found.row, batch.lengths[found.row] - 1 - found.backward
        ]  # [G] i*
        shared_position = position[
            item == shared[neighbour]
        ]  # [G]: i* is in each neighbour exactly once
        distance = (position - shared_position[neighbour]).abs()
        value = similarity[neighbour] * torch.exp(-distance / config.lambda3)
        add_up(scores, found.row[neighbour] * self.items + item - 1, value)
