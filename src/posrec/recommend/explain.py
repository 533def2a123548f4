"""Why an item has its score, for any model.

There are two views. Where the score is a sum of named parts (PosRec, Eq. (10) and (11)), each part
is the product of its vector with the item's vector, and the parts add up to the score. And for
every model, each click is left out in turn, and the session without it is scored again."""

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
    """The explanations of `items`, which are item numbers.

    Each click that the model reads is left out in turn. An earlier click of a longer session then
    moves in, unless the model reads windows that begin at multiples of its stride.
    """
    clicks = session.numbers
    window = (model.config.max_length, model.stride)
    batch = SessionBatch.of([clicks], *window).to(device)
    first = first_read(len(clicks), *window)
    wanted = torch.tensor(items, device=device)
    scores, ranks = scores_and_ranks(model, batch, wanted)  # [1, I]
    scores_without = ranks_without = None  # [C, I] for the C clicks that are read
    if len(clicks) > 1:
        begin = max(first - 1, 0) if model.stride == 1 else first
        shorter = [
            [*clicks[begin:place], *clicks[place + 1 :]]
            for place in range(first, len(clicks))
        ]
        scores_without, ranks_without = scores_and_ranks(
            model, SessionBatch.of(shorter).to(device), wanted
        )
    parts, attention = parts_of(model, batch, wanted)
    own_parts, repeat_chance = own_parts_of(model, batch, wanted)
    if parts:
        parts |= own_parts

    def effect_of(position: int, place: int) -> ClickEffect:
        effect = rank = None
        if scores_without is not None and ranks_without is not None:
            effect = float(scores[0, place] - scores_without[position, place])
            rank = int(ranks_without[position, place])
        weights = {name: float(values[position]) for name, values in attention.items()}
        return ClickEffect(
            *id_and_title(clicks[first + position]), effect, rank, weights
        )

    return [
        Explanation(
            *id_and_title(item),
            score=float(scores[0, place]),
            rank=int(ranks[0, place]),
            parts={name: float(values[place]) for name, values in parts.items()},
            clicks=tuple(
                effect_of(position, place) for position in range(len(clicks) - first)
            ),
            unread=first,
            unknown=session.unknown,
            probability=None if repeat_chance is None else math.exp(scores[0, place]),
            repeat_chance=repeat_chance,
        )
        for place, item in enumerate(items)
    ]


def scores_and_ranks(
    model: Model, batch: SessionBatch, items: Tensor
) -> tuple[Tensor, Tensor]:
    """[B, I] each, on the CPU."""
    scores = model.scores(batch)
    ranks = torch.stack(
        [ranks_of(scores, item.expand(scores.shape[0])) for item in items], dim=1
    )
    return scores[:, items - 1].cpu(), ranks.cpu()


def parts_of(
    model: Model, batch: SessionBatch, items: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The parts of the products of `items` by name, and each part's attention to the clicks; empty
    for most models."""
    named = model.vector_parts(batch)
    if not isinstance(model, SessionModel) or not named:
        return {}, {}
    vectors = model.item_vectors()[items - 1]  # [I, d]
    parts = {name: (vectors @ part[0]).cpu() for name, part in named.items()}
    return parts, {
        name: weights[0].cpu() for name, weights in model.click_attention(batch).items()
    }


def own_parts_of(
    model: Model, batch: SessionBatch, items: Tensor
) -> tuple[dict[str, Tensor], float | None]:
    """The parts that turn products z into log p, and the chance of a repeat; none without a term
    for own items.

    "normalisation" is log g_explore - log S, the same for all items; "clicked before" is what
    repeating and raising add to an item of the session, log p_i - (z_i + log g_explore - log S),
    and 0 for all other items."""
    if not isinstance(model, SessionModel) or not model.has_own_items:
        return {}, None
    sessions, table, own = model.batch_vectors(batch)
    assert own is not None
    products = sessions @ table[: model.items].T  # [1, n]
    normalisation = (own.explore - own.log_normaliser(products.logsumexp(1))).expand(
        len(items)
    )
    before = (
        own.log_chances_of_all(products)[0, items - 1]
        - products[0, items - 1]
        - normalisation
    )
    seen = (own.items == items[:, None]).any(1)
    parts = {
        REPEAT: torch.where(seen, before, 0).cpu(),
        NORMALISATION: normalisation.cpu(),
    }
    return parts, float(own.repeat_chance[0])
