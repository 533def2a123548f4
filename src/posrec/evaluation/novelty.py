"""Metrics by how often training saw the target, over all clicks of the test sessions.

A session is read as it is served: clicks on items that the model does not know are skipped, and a
session without a known click gets the items most clicked of late. An unknown target is a miss.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.evaluation.breakdown import groups_of, metrics_by_group, repeated_clicks
from posrec.evaluation.evaluate import Evaluation
from posrec.evaluation.metrics import ranks_of

KNOWN = 10  # training clicks of an item that is neither new nor rare
MANY_NEW = 0.02  # of the test clicks, on items that training did not see
NEARLY_ALL = 0.95  # of the targets, which are in their session already


def ranks_as_served(
    data: PreparedDataset,
    numbers: Tensor,
    recent: Tensor,
    test: SessionDataset,
    usual: Evaluation,
    rank: Callable[[SessionDataset], Evaluation],
) -> Tensor:
    """The ranks of all targets of the full test part.

    `numbers` [items + 1] are those of the model, 0 for an item that it does not know, and `recent`
    [n] has the clicks by which a session without a known click is answered. `usual` is the
    evaluation of the usual `test` part, in these numbers; `rank` evaluates other sessions.
    """
    part = data.full_test
    _, target = part.locate(torch.arange(len(part)))
    targets = part.items[target].long()
    sessions, follows_known = known_sessions(part, target, numbers)
    full_ranks = torch.zeros_like(targets)
    if len(sessions):
        # Without the clicks that the model does not know, most often the usual test part is left.
        is_usual = torch.equal(sessions.items, test.items)
        is_usual = is_usual and torch.equal(sessions.offsets, test.offsets)
        full_ranks[follows_known] = (usual if is_usual else rank(sessions)).ranks
    others, place = torch.unique(numbers[targets[~follows_known]], return_inverse=True)
    among_popular = [ranks_of(recent[None], one) for one in others.long().split(1)]
    full_ranks[~follows_known] = torch.cat(among_popular)[place]
    return full_ranks


def metrics_by_novelty(
    data: PreparedDataset, full_ranks: Tensor
) -> dict[str, dict[str, float]]:
    """The number of samples, R@20 and M@20 of known, rare and new targets, and of all."""
    clicks = data.train_clicks[targets_of(data.full_test)]
    new, rare, known = groups_of(clicks, (0, 1, KNOWN)).values()
    groups = {"known": known, "rare": rare, "new": new, "all": torch.ones_like(new)}
    metrics = metrics_by_group(full_ranks, groups)
    return {name: metrics.get(name, {"samples": 0}) for name in groups}


def targets_of(part: SessionDataset) -> Tensor:
    """[N] the item of each sample's target."""
    _, target = part.locate(torch.arange(len(part)))
    return part.items[target].long()


def known_sessions(
    part: SessionDataset, target: Tensor, numbers: Tensor
) -> tuple[SessionDataset, Tensor]:
    """The sessions without clicks on unknown items, in the model's numbers; and which samples,
    whose targets are the clicks `target` [N], are theirs: of a known click after a known one."""
    items = numbers[part.items[: part.clicks].long()]
    known = items > 0
    session = torch.repeat_interleave(torch.arange(part.sessions), part.lengths)
    known_before = known.cumsum(0) - known.long()
    follows_known = known_before > known_before[part.offsets[:-1]][session]
    is_sample = (known & follows_known)[target]
    clicks = torch.bincount(session[known], minlength=part.sessions)
    has_samples = clicks > 1
    kept = known & has_samples[session]
    offsets = torch.cat([part.offsets[:1], clicks[has_samples].cumsum(0)])
    targets = (kept.cumsum(0) - 1)[target[is_sample]]
    times = part.times[has_samples]
    return SessionDataset(items[kept], offsets, times, targets), is_sample


def notices(data: PreparedDataset, with_items: bool = False) -> Iterator[str]:
    """What has to be known to read the figures of a test part, ranked with an items file or not."""
    clicks = data.train_clicks[data.full_test.items.long()]
    share = float((clicks == 0).double().mean())
    if share > MANY_NEW and not with_items:
        yield (
            f"{share:.1%} of all test clicks are on items that training did not see; a model with "
            "--set attributes=auto can recommend them, if an items file (--items) lists them"
        )
    _, target = data.test.locate(torch.arange(len(data.test)))
    share = float(repeated_clicks(data.test)[target].double().mean())
    if share > NEARLY_ALL:
        yield (
            f"warning: {share:.1%} of the test targets are in their session already, so the "
            "figures say how well a model finds an item among those of the session; posrec "
            "evaluate --exclude seen ranks the others"
        )
