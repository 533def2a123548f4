"""Why an item has its score, for any model.

There are two views. If the score is a sum of named parts (PosRec, Eq. (10) and (11)), each part is
the product of its vector with the item's vector, and the parts add up to the score. And for every
model, each click is left out in turn, and the session without it is scored again.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from posrec.evaluation.metrics import ranks_of
from posrec.models.base import Model, SessionModel
from posrec.nn.batch import SessionBatch
from posrec.nn.first_read import first_read
from posrec.nn.items.own_items import REPEAT
from posrec.recommend.results import NORMALISATION, ClickEffect, Explanation
from posrec.recommend.session import EncodedSession


@torch.inference_mode()
def explain(
    model: Model,
    session: EncodedSession,
    items: Sequence[int],
    device: torch.device,
    id_and_title: Callable[[int], tuple[str, str | None]],
) -> list[Explanation]:
    """When a click is left out, an earlier click of a longer session moves in, unless the model
    reads windows that begin at multiples of its stride."""
    clicks = session.numbers
    window = (model.config.max_length, model.stride)
    batch = SessionBatch.of([clicks], *window).to(device)
    first = first_read(len(clicks), *window)
    explained = torch.tensor(items, device=device)  # [I]
    scores, ranks = scores_and_ranks(model, batch, explained)  # [1, I]
    parts, attention = parts_of(model, batch, explained)
    own_parts, repeat_chance = own_parts_of(model, batch, explained)
    if parts:
        parts |= own_parts
    if len(clicks) > 1:
        begin = max(first - 1, 0) if model.stride == 1 else first
        shorter = [
            [*clicks[begin:position], *clicks[position + 1 :]]
            for position in range(first, len(clicks))
        ]
        without = SessionBatch.of(shorter).to(device)
        # [C, I] for the C clicks that are read
        scores_without, ranks_without = scores_and_ranks(model, without, explained)

    def effect_of(row: int, column: int) -> ClickEffect:
        effect = None
        rank = None
        if len(clicks) > 1:
            effect = float(scores[0, column] - scores_without[row, column])
            rank = int(ranks_without[row, column])
        weights = {name: float(values[row]) for name, values in attention.items()}
        item_and_title = id_and_title(clicks[first + row])
        return ClickEffect(*item_and_title, effect, rank, weights)

    explanations = []
    for column, number in enumerate(items):
        score = float(scores[0, column])
        explanation = Explanation(
            *id_and_title(number),
            score,
            rank=int(ranks[0, column]),
            parts={name: float(values[column]) for name, values in parts.items()},
            clicks=tuple(effect_of(row, column) for row in range(len(clicks) - first)),
            unread=first,
            unknown=session.unknown,
            probability=None if repeat_chance is None else math.exp(score),
            repeat_chance=repeat_chance,
        )
        explanations.append(explanation)
    return explanations


def scores_and_ranks(
    model: Model, batch: SessionBatch, items: Tensor
) -> tuple[Tensor, Tensor]:
    """[B, I] each, on the CPU."""
    scores = model.scores(batch)
    ranks = [ranks_of(scores, item.expand(len(scores))) for item in items]
    return scores[:, items - 1].cpu(), torch.stack(ranks, dim=1).cpu()


def parts_of(
    model: Model, batch: SessionBatch, items: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parts of the items' products by name, and their attention to the clicks; most models
    have none."""
    vector_parts = model.vector_parts(batch)
    if not isinstance(model, SessionModel) or not vector_parts:
        return {}, {}
    vectors = model.item_vectors()[items - 1]  # [I, d]
    parts = {name: (vectors @ part[0]).cpu() for name, part in vector_parts.items()}
    attention = model.click_attention(batch)
    return parts, {name: weights[0].cpu() for name, weights in attention.items()}


def own_parts_of(
    model: Model, batch: SessionBatch, items: Tensor
) -> tuple[dict[str, Tensor], float | None]:
    """The parts that turn products z into log p, and the chance of a repeat; none without a term
    for own items.

    "normalisation" is log g_explore - log S, the same for all items; "clicked before" is what
    repeating and raising add to an item of the session, log p_i - (z_i + log g_explore - log S),
    and 0 for all other items.
    """
    if not isinstance(model, SessionModel) or not model.has_own_items:
        return {}, None
    sessions, table, own_items = model.batch_vectors(batch)
    assert own_items is not None
    products = sessions @ table[: model.items].T  # [1, n]
    log_normaliser = own_items.log_normaliser(products)
    normalisation = (own_items.explore - log_normaliser).expand(len(items))
    log_chances = own_items.log_chances_of_all(products)[0, items - 1]
    before = log_chances - products[0, items - 1] - normalisation
    is_in_session = (own_items.items == items[:, None]).any(1)
    parts = {
        REPEAT: torch.where(is_in_session, before, 0).cpu(),
        NORMALISATION: normalisation.cpu(),
    }
    return parts, float(own_items.repeat_chance[0])
