"""Why an item is scored as it is: in item numbers, for a model behind its protocol.

Two readings stand side by side. Where the score is a sum of named parts (PosRec, Eq. (10) and (11)) each part is the
product of its vector with the item's, and nothing is left over. And for every model each click is left out in turn, and
the session without it is scored again.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posrec.evaluation.metrics import ranks_of
from posrec.models.base import Model, SessionModel
from posrec.nn.batch import SessionBatch


@dataclass(frozen=True)
class Account:
    """Of I items: their scores and ranks, the parts of the scores, and what they would be without each of C clicks."""

    scores: Tensor  # [I]
    ranks: Tensor  # [I]
    parts: dict[str, Tensor]  # [I] each, adding up to the scores; empty where the score is no sum
    attention: dict[str, Tensor]  # [C] each
    scores_without: Tensor | None  # [C, I]; None for a session of one click
    ranks_without: Tensor | None  # [C, I]


@torch.inference_mode()
def account(model: Model, session: Sequence[int], items: Sequence[int], device: torch.device) -> Account:
    """`session` and `items` are item numbers; of the session the clicks that the model reads are left out in turn.

    A click is left out of the whole session: where that is longer than the model reads, an earlier click comes in.
    """
    longest: int = model.config.max_length
    whole = SessionBatch.of([session], longest).to(device)
    wanted = torch.tensor(items, device=device)
    scores, ranks = scores_and_ranks(model, whole, wanted)
    parts, attention = parts_of(model, whole, wanted)
    if len(session) == 1:
        return Account(scores[0], ranks[0], parts, attention, None, None)
    read = range(len(session))[-longest:]
    without = SessionBatch.of([[*session[:click], *session[click + 1 :]] for click in read], longest).to(device)
    return Account(scores[0], ranks[0], parts, attention, *scores_and_ranks(model, without, wanted))


def scores_and_ranks(model: Model, batch: SessionBatch, items: Tensor) -> tuple[Tensor, Tensor]:
    """[B, I] each, on the CPU."""
    scores = model.scores(batch)
    ranks = torch.stack([ranks_of(scores, item.expand(scores.shape[0])) for item in items], dim=1)
    return scores[:, items - 1].cpu(), ranks.cpu()


def parts_of(model: Model, batch: SessionBatch, items: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parts of the scores of `items` by name, and how much each reads the clicks; for models that have such."""
    named = model.vector_parts(batch)
    if not isinstance(model, SessionModel) or not named:
        return {}, {}
    vectors = model.item_vectors()[items - 1]  # [I, d]
    parts = {name: (vectors @ part[0]).cpu() for name, part in named.items()}
    return parts, {name: weights[0].cpu() for name, weights in model.click_attention(batch).items()}
