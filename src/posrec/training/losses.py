"""Losses of session vectors and item vectors, one number for each sample. Targets are item numbers 1..n.

Eq. (11) and (12), the cross entropy of a softmax over all items, is computed in three ways: at once, in chunks that
never store all scores, and over a sample of the items. Losses that compare pairs of items are in `ranking_losses.py`.
The CPU has code of its own, `cpu_softmax.py`, and so has a GPU for the softmax at once, `kernels/softmax.py`.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from posrec import kernels
from posrec.models.base import Encoded
from posrec.nn.items.item_table import TableRows
from posrec.nn.items.own_items import OwnItems
from posrec.training.cpu_softmax import amount_at, cpu_softmax, raised_in
from posrec.training.ranking_losses import RANKING_LOSSES, Negatives, comparisons, ranking_loss

# sessions [B, d], table [n or a few more, d], targets [B] -> [B]. A softmax takes the term for the session's own items
# as a fourth argument: they are raised or lowered in it.
Loss = Callable[..., Tensor]

FULL_UP_TO, CHUNKED_UP_TO = 200_000, 2_000_000  # items
CHUNK = 65_536
NEGATIVES = 8_192
LOSSES = ("auto", "full", "chunked", "sampled", *RANKING_LOSSES)


def full_softmax(items: int) -> Loss:
    """The table's first `items` rows are items; the rows after them get a score of minus infinity."""

    def loss(sessions: Tensor, table: Tensor, targets: Tensor, own: OwnItems | None = None) -> Tensor:
        raised = () if own is None else (own.columns, own.amounts.float())
        if served_by_cpu(sessions):
            return cpu_softmax(sessions, table, targets, items, own)
        if kernels.supports(sessions) and kernels.may_round():
            return kernels.cross_entropy(sessions, table, targets - 1, items, *raised)
        scores = (sessions @ table.T).float()
        if raised:
            scores = scores.scatter_add(1, *raised)
        if len(table) > items:
            row = torch.arange(len(table), device=table.device)
            scores = scores + torch.where(row < items, 0.0, -torch.inf)
        return functional.cross_entropy(scores, targets - 1, reduction="none")

    return loss


def chunked_softmax(items: int, chunk: int = CHUNK) -> Loss:
    """The same value as `full_softmax`; scores are computed `chunk` items at a time, and again in the backward pass."""

    def loss(sessions: Tensor, table: Tensor, targets: Tensor, own: OwnItems | None = None) -> Tensor:
        if served_by_cpu(sessions):
            return cpu_softmax(sessions, table, targets, items, own, chunk)
        of_target = (sessions * table[targets - 1]).sum(1).float()
        raised = None if own is None else (own.columns, own.amounts.float())
        if raised is not None:
            of_target = of_target + amount_at(targets - 1, *raised)
        return log_sum_in_chunks(sessions, table, items, chunk, raised) - of_target

    return loss


def log_sum_in_chunks(
    sessions: Tensor, table: Tensor, items: int, chunk: int, raised: tuple[Tensor, Tensor] | None
) -> Tensor:
    """log sum_i exp(s_b x_i) over the table's first `items` rows, [B]. With `raised`, columns and amounts [B, R], the
    scores in these columns are raised by these amounts."""

    def log_sum(sessions: Tensor, part: Tensor, *raised: Tensor) -> Tensor:
        scores = (sessions @ part.T).float()
        return (scores.scatter_add(1, *raised) if raised else scores).logsumexp(1)

    sums = [sessions.new_full((len(sessions),), -torch.inf, dtype=torch.float32)]
    for start in range(0, items, chunk):
        end = min(start + chunk, items)
        of_part = () if raised is None else raised_in(*raised, start, end)
        sums.append(checkpoint(log_sum, sessions, table[start:end], *of_part, use_reentrant=False))
    return torch.stack(sums).logsumexp(0)


def sampled_softmax(clicks: Tensor, negatives: int = NEGATIVES, rows: TableRows | None = None) -> Loss:
    """Softmax over items sampled in proportion to their clicks, with the logQ correction (Bengio and Senecal, 2008).

    `clicks [N]` are the training clicks: a random click is an item sampled by popularity. The score of a sampled item
    is lowered by log(expected number of draws), so that the sum over the sample is an unbiased estimate of the sum over
    all items.
    """
    table_rows = rows or TableRows(int(clicks.max()))
    counts = torch.bincount(clicks.long()).clamp(min=1)
    log_draws = (counts.double() * negatives / len(clicks)).log().float()  # [n + 1]

    def loss(sessions: Tensor, table: Tensor, targets: Tensor, own: OwnItems | None = None) -> Tensor:
        drawn = clicks[torch.randint(len(clicks), (negatives,), device=clicks.device)].long()
        drawn = table_rows.same_for_all(drawn)
        of_drawn = (sessions @ table_rows.at(table, drawn - 1).T).float() - log_draws[drawn]
        of_drawn = of_drawn.masked_fill(drawn == targets[:, None], -torch.inf)  # the target is not a negative
        of_target = (sessions * table_rows.at(table, targets - 1)).sum(1).float()  # it is not sampled: no correction
        if own is None:
            return torch.cat([of_target[:, None], of_drawn], 1).logsumexp(1) - of_target
        # The session's own items are in the sum as they are, and not sampled either.
        of_drawn = of_drawn.masked_fill((drawn[:, None] == own.items[:, None, :]).any(2), -torch.inf)
        own_products = (sessions[:, None] * table_rows.at(table, own.columns)).sum(2)
        of_own = torch.where(own.known, (own_products + own.raised).float(), -torch.inf)
        here = own.items == targets[:, None]
        of_target = of_target + torch.where(here, own.raised, 0).sum(1).float()
        of_others = of_target[:, None].masked_fill(here.any(1, keepdim=True), -torch.inf)  # it is among the own items
        return torch.cat([of_others, of_own, of_drawn], 1).logsumexp(1) - of_target

    return loss


def losses_of(loss: Loss, encoded: Encoded, targets: Tensor) -> Tensor:
    """The loss of each sample, [B]; -log p where the model has a term for the session's own items."""
    sessions, table, own = encoded
    if own is None:
        return loss(sessions, table, targets)
    return -own.log_chances_of(targets, -loss(sessions, table, targets, own))


def loss_for(items: int) -> str:
    """The loss that `loss=auto` chooses for a catalogue of this size."""
    return "full" if items <= FULL_UP_TO else "chunked" if items <= CHUNKED_UP_TO else "sampled"


def over_all_items(name: str, items: int) -> bool:
    """Whether the loss is a softmax over all items, however it is computed."""
    return (loss_for(items) if name == "auto" else name) in ("full", "chunked")


def choose_loss(
    name: str,
    items: int,
    clicks: Tensor,
    negatives: Negatives | None = None,
    score_l2: float = 0.0,
    rows: TableRows | None = None,
) -> Loss:
    """A loss by its name; "auto" chooses by catalogue size. `negatives` and `score_l2` are for ranking losses, `rows`
    are those of the item table that this process holds, by default all."""
    rows = rows or TableRows(items)
    if name not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, not {name!r}")
    if name in RANKING_LOSSES:
        return ranking_loss(comparisons(score_l2)[name], items, clicks, negatives or Negatives(), rows)
    softmaxes: dict[str, Callable[[], Loss]] = {
        "full": lambda: full_softmax(items),
        "chunked": lambda: chunked_softmax(items),
        "sampled": lambda: sampled_softmax(clicks, rows=rows),
    }
    return softmaxes[loss_for(items) if name == "auto" else name]()


def served_by_cpu(sessions: Tensor) -> bool:
    """Whether to use `cpu_softmax.py`, which is not for reduced precision."""
    return sessions.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
