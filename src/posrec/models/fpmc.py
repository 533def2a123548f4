"""FPMC (Rendle et al., "Factorizing Personalized Markov Chains for Next-Basket Recommendation", WWW 2010), no user.

The tensor of transitions l -> i of user u is factorised pair by pair; of the three pairs a session without a user
leaves one, from the last item to the next: x_{l,i} = <v_i^{I,L}, v_l^{L,I}>. An item has a vector for being left and
another for being reached. Fitted by S-BPR, the pairwise loss over sequences (`training/ranking_losses.py`).
"""

from dataclasses import dataclass

from torch import Tensor

from posrec.models.base import SessionModel
from posrec.nn.batch import SessionBatch
from posrec.nn.item_table import ItemTable


@dataclass(frozen=True)
class FPMCConfig:
    d: int = 100
    max_length: int = 1  # the last click is all it reads


class FPMC(SessionModel):
    def __init__(self, items: int, config: FPMCConfig) -> None:
        super().__init__(items, config)
        self.left = ItemTable(items, config.d)  # v^{L,I}
        self.reached = ItemTable(items, config.d)  # v^{I,L}

    def session_vectors(self, batch: SessionBatch) -> Tensor:
        """v_l^{L,I} of the last clicks, [B, d]."""
        last = batch.items.gather(1, (batch.lengths - 1)[:, None])[:, 0]
        return self.left.look_up(last)

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        """Session vectors [B, d] and the table of items to be reached, whose first n rows are items."""
        return self.session_vectors(batch), self.reached.weight

    def item_vectors(self) -> Tensor:
        """v^{I,L} [n, d]: row i is item i + 1."""
        return self.reached.vectors()
