"""BPR-MF and FPMC: factor models without a user, trained with pairwise losses
(`training/ranking_losses.py`)."""

from dataclasses import dataclass

from torch import Tensor

from posrec.config import setting
from posrec.models.base import CLICKS_READ, ITEM_WIDTH, SessionModel
from posrec.nn.batch import SessionBatch
from posrec.nn.items.item_table import ItemTable


@dataclass(frozen=True)
class BPRMFConfig:
    d: int = setting(100, **ITEM_WIDTH)
    max_length: int = setting(20, **CLICKS_READ)


class BPRMF(SessionModel):
    """BPR-MF (Rendle et al., "BPR: Bayesian Personalized Ranking from Implicit Feedback", UAI 2009)
    for sessions.

    The score of item i for user u is the product of their latent vectors, x_ui = w_u h_i (section
    4.3.1), trained so that clicked items are scored above others (BPR-Opt, section 4.1). A session
    has no user, so w_u is the mean of its items' vectors, as usual since Hidasi et al. (2016)."""

    def __init__(self, items: int, config: BPRMFConfig) -> None:
        super().__init__(items, config)
        self.embedding = ItemTable(items, config.d)

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        """w [B, d] and the item table, whose first n rows are H."""
        x, table = self.embedding.look_up_and_table(batch.items)  # [B, L, d]
        return x.sum(1) / batch.lengths[:, None], table


@dataclass(frozen=True)
class FPMCConfig:
    d: int = setting(100, **ITEM_WIDTH)
    max_length: int = setting(1, "only the last click is read", at_least=1)


class FPMC(SessionModel):
    """FPMC (Rendle et al., "Factorizing Personalized Markov Chains for Next-Basket Recommendation",
    WWW 2010), without users.

    The tensor of transitions l -> i of user u is factorised into three pairs of vectors; without a
    user one is left: x_{l,i} = <v_i^{I,L}, v_l^{L,I}>, of the next item and of the last. Trained
    with S-BPR, the pairwise loss over sequences."""

    def __init__(self, items: int, config: FPMCConfig) -> None:
        super().__init__(items, config)
        self.left = ItemTable(items, config.d)  # v^{L,I}
        self.reached = ItemTable(items, config.d)  # v^{I,L}

    def session_vectors(self, batch: SessionBatch) -> Tensor:
        """v_l^{L,I} of the last clicks."""
        last = batch.items.gather(1, (batch.lengths - 1)[:, None])[:, 0]
        return self.left.look_up(last)

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        return self.session_vectors(batch), self.reached.weight

    def item_vectors(self) -> Tensor:
        return self.reached.vectors()
