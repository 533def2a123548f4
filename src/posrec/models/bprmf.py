"""BPR-MF (Rendle et al., "BPR: Bayesian Personalized Ranking from Implicit Feedback", UAI 2009) for sessions.

Matrix factorisation scores item i for user u by the product of their latent vectors, x_ui = w_u h_i (section 4.3.1),
and is fitted so that clicked items are scored above others (BPR-Opt, section 4.1; `training/ranking_losses.py`). A
session has no user, so w_u is the mean of its items' latent vectors, as the field has it since Hidasi et al. (2016).
"""

from dataclasses import dataclass

from torch import Tensor, nn

from posrec.data.batch import SessionBatch
from posrec.layers.item_table import ItemTable


@dataclass(frozen=True)
class BPRMFConfig:
    d: int = 100
    max_length: int = 20  # the latest clicks that are read


class BPRMF(nn.Module):
    """Items are numbered 1..items; any other number is an item the model does not know."""

    def __init__(self, items: int, config: BPRMFConfig) -> None:
        super().__init__()
        self.config = config
        self.items = items
        self.embedding = ItemTable(items, config.d)

    def session_vectors(self, batch: SessionBatch) -> Tensor:
        """w [B, d]."""
        return self.vectors(batch)[0]

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        """w [B, d] and the item table, whose first n rows are H; for training, where both get a gradient."""
        x, table = self.embedding.look_up_and_table(batch.items)  # [B, L, d], zeros where there is no click
        return x.sum(1) / batch.lengths[:, None], table

    def item_vectors(self) -> Tensor:
        """H [n, d]: row i is item i + 1."""
        return self.embedding.vectors()

    def scores(self, batch: SessionBatch) -> Tensor:
        """[B, n]."""
        return self.session_vectors(batch) @ self.item_vectors().T
