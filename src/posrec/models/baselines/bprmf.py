"""BPR-MF (Rendle et al., "BPR: Bayesian Personalized Ranking from Implicit Feedback", UAI 2009) for sessions.

Matrix factorisation scores item i for user u by the product of their latent vectors, x_ui = w_u h_i (section 4.3.1),
and is trained so that clicked items are scored above others (BPR-Opt, section 4.1; `training/ranking_losses.py`). A
session has no user, so w_u is the mean of its items' latent vectors, as is usual since Hidasi et al. (2016).
"""

from dataclasses import dataclass

from torch import Tensor

from posrec.config import setting
from posrec.models.base import SessionModel
from posrec.nn.batch import SessionBatch
from posrec.nn.items.item_table import ItemTable


@dataclass(frozen=True)
class BPRMFConfig:
    d: int = setting(100, "width of item vectors", at_least=1, tune=(50, 64, 100, 128, 200))
    max_length: int = setting(20, "how many of a session's latest clicks are read", at_least=1)


class BPRMF(SessionModel):
    """Matrix factorisation whose user vector is the mean of the session's item vectors."""

    def __init__(self, items: int, config: BPRMFConfig) -> None:
        super().__init__(items, config)
        self.embedding = ItemTable(items, config.d)

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        """w [B, d] and the item table, whose first n rows are H."""
        x, table = self.embedding.look_up_and_table(batch.items)  # [B, L, d], zeros where there is no click
        return x.sum(1) / batch.lengths[:, None], table
