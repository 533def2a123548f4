"""Why an item has its score, for any model.

There are two views. Where the score is a sum of named parts (PosRec, Eq. (10) and (11)), each part is the product of
its vector with the item's vector, and the parts add up to the score. And for every model, each click is left out in
turn, and the session without it is scored again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from posrec.evaluation.metrics import ranks_of
from posrec.models.base import Model, SessionModel
from posrec.nn.batch import SessionBatch
from posrec.recommend.results import ClickEffect, Explanation
from posrec.recommend.session import EncodedSession


@dataclass(frozen=True)
class ScoreBreakdown:
    """The scores and ranks of I items, the parts of the scores, and both again without each of C clicks."""

    scores: Tensor  # [I]
    ranks: Tensor  # [I]
    parts: dict[str, Tensor]  # [I] each, adding up to the scores; empty where the score is not a sum
    attention: dict[str, Tensor]  # [C] each
    scores_without: Tensor | None  # [C, I]; None for a session of one click
    ranks_without: Tensor | None  # [C, I]
    read: Sequence[int]  # [C] the items of these clicks: those that the model reads

    def explanation(
        self, place: int, session: EncodedSession, item: int, id_and_title: Callable[[int], tuple[str, str | None]]
    ) -> Explanation:
        """The explanation of `item`, the number of the item at this place, in raw ids."""
        score = float(self.scores[place])
        clicks = []
        for position, click in enumerate(self.read):
            effect = rank = None
            if self.scores_without is not None and self.ranks_without is not None:
                effect = score - float(self.scores_without[position, place])
                rank = int(self.ranks_without[position, place])
            attention = {name: float(weights[position]) for name, weights in self.attention.items()}
            clicks.append(ClickEffect(*id_and_title(click), effect, rank, attention))
        return Explanation(
            *id_and_title(item),
            score=score,
            rank=int(self.ranks[place]),
            parts={name: float(values[place]) for name, values in self.parts.items()},
            clicks=tuple(clicks),
            unread=len(session.numbers) - len(self.read),
            unknown=session.unknown,
        )


@torch.inference_mode()
def break_down(model: Model, session: Sequence[int], items: Sequence[int], device: torch.device) -> ScoreBreakdown:
    """`session` and `items` are item numbers. Each click that the model reads is left out in turn.

    A click is left out of the whole session: if that is longer than what the model reads, an earlier click moves in.
    """
    longest: int = model.config.max_length
    whole = SessionBatch.of([session], longest).to(device)
    wanted = torch.tensor(items, device=device)
    scores, ranks = scores_and_ranks(model, whole, wanted)
    scores_without = ranks_without = None
    if len(session) > 1:
        places = range(len(session))[-longest:]
        shorter = [[*session[:place], *session[place + 1 :]] for place in places]
        scores_without, ranks_without = scores_and_ranks(model, SessionBatch.of(shorter, longest).to(device), wanted)
    parts = parts_of(model, whole, wanted)
    return ScoreBreakdown(scores[0], ranks[0], *parts, scores_without, ranks_without, session[-longest:])


def scores_and_ranks(model: Model, batch: SessionBatch, items: Tensor) -> tuple[Tensor, Tensor]:
    """[B, I] each, on the CPU."""
    scores = model.scores(batch)
    ranks = torch.stack([ranks_of(scores, item.expand(scores.shape[0])) for item in items], dim=1)
    return scores[:, items - 1].cpu(), ranks.cpu()


def parts_of(model: Model, batch: SessionBatch, items: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parts of the scores of `items` by name, and each part's attention to the clicks; empty for most models."""
    named = model.vector_parts(batch)
    if not isinstance(model, SessionModel) or not named:
        return {}, {}
    vectors = model.item_vectors()[items - 1]  # [I, d]
    parts = {name: (vectors @ part[0]).cpu() for name, part in named.items()}
    return parts, {name: weights[0].cpu() for name, weights in model.click_attention(batch).items()}
