"""Full ranking of every test sample, in bounded memory; `metrics.ranks_of` computes the ranks."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posrec.data.dataset import SessionDataset, collate, padded
from posrec.data.passes import collate_passes, cut_into_batches, passes_over
from posrec.errors import RunFailed, plural
from posrec.evaluation.metrics import (
    CUTOFFS,
    RANKING,
    coverage,
    mean_popularity,
    rank_metrics,
    ranks_of,
    top as top_items,
)
from posrec.kernels.launch import only_compiled
from posrec.models.base import Model, SessionModel
from posrec.nn.batch import SessionBatch
from posrec.nn.packing import pack
from posrec.progress import Progress, SilentProgress

if TYPE_CHECKING:
    import polars as pl

# Floats that are computed at a time, whatever the size of the catalogue. On a CPU 32 MB, up to
# 128 MB for FEW_SESSIONS. On a GPU 1 GB, or less if little memory is free.
FLOATS_ON_CPU = 8_000_000
MOST_FLOATS_ON_CPU = 1 << 25
FLOATS_ON_GPU = 1 << 28
# Sessions at a time.
MOST_SESSIONS_ON_CPU = 2048
MOST_SESSIONS_ON_GPU = 8192
FEW_SESSIONS = 32
# What a model may store for each pair of clicks of a session: edges, distances, attention.
FLOATS_OF_A_PAIR = 8


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The metrics, and for every sample the rank of its target and the length of its session.

    Without samples, as for a dataset that has no test part, there are no metrics.
    """

    metrics: dict[str, float]
    ranks: Tensor  # [N]
    lengths: Tensor  # [N] clicks before the target
    top: Tensor | None = None  # [N, 20] the best items, or all where there are fewer
    # Beyond accuracy: lists.py.
    of_lists: dict[str, float] = field(default_factory=dict)
    # By how often training saw the target, over all clicks: novelty.py.
    by_novelty: dict[str, dict[str, float]] = field(default_factory=dict)
    full_ranks: Tensor | None = None  # of all clicks
    # By the day on which the session began: breakdown.py.
    by_day: dict[str, dict[str, float]] = field(default_factory=dict)
    dataset: str = ""  # the fingerprint of the dataset whose test part was ranked
    ranking: str = RANKING
    warnings: tuple[str, ...] = ()  # why the figures can't be compared with others

    def __repr__(self) -> str:
        shown = [
            f"{name} {100 * self.metrics[name]:.2f} %"
            for name in ("recall@20", "mrr@20")
            if name in self.metrics
        ]
        return f"Evaluation({', '.join([*shown, plural(len(self.ranks), 'sample')])})"

    def as_json(self) -> dict[str, Any]:
        """What metrics.json holds: the metrics, and what must be equal to compare them."""
        return {
            **self.metrics,
            **self.of_lists,
            "by_novelty": self.by_novelty,
            "by_day": self.by_day,
            "samples": len(self.ranks),
            "dataset": self.dataset,
            "ranking": self.ranking,
        }

    def to_frame(self) -> "pl.DataFrame":
        """One row with all metrics and the number of samples, without `by_novelty` and `by_day`."""
        import polars as pl

        row = self.as_json()
        del row["by_novelty"], row["by_day"]
        return pl.DataFrame([row])


def rows_at_once(numbers: int, device: torch.device) -> int:
    """How many sessions to rank at a time, if each takes this many floats."""
    if device.type == "cpu":
        floats = max(FLOATS_ON_CPU, min(FEW_SESSIONS * numbers, MOST_FLOATS_ON_CPU))
        most = MOST_SESSIONS_ON_CPU
    else:
        free, _ = torch.cuda.mem_get_info(device)
        floats = min(FLOATS_ON_GPU, free // 32)  # an eighth of the memory
        most = MOST_SESSIONS_ON_GPU
    return max(1, min(most, floats // numbers))


def rows_for(samples: SessionDataset, items: int, max_length: int) -> int:
    clicks = min(max_length, samples.longest)
    numbers = max(items, FLOATS_OF_A_PAIR * clicks**2)
    return rows_at_once(numbers, samples.items.device)


@torch.inference_mode()
def evaluate(
    model: Model | None,
    samples: SessionDataset,
    items: int,
    max_length: int,
    popularity: Tensor,
    progress: Progress | None = None,
    rank: "Ranker | None" = None,
    exclude: str | None = None,
) -> Evaluation:
    """Rank all `items` for every sample. `popularity [items + 1]` counts training clicks. `rank`
    ranks if there is no model. `exclude` leaves the "current" item of a session out, or all that
    are "seen" in it, as answers do; a target that is left out is a miss.
    """
    progress = progress or SilentProgress()
    device = samples.items.device
    rows = rows_for(samples, items, max_length)
    count = len(samples)
    k = min(max(CUTOFFS), items)
    if isinstance(model, SessionModel) and model.is_causal:
        ranked = by_passes(model, samples, rows, max_length, k, exclude)
    else:
        if model is not None:
            rank = plain_ranker(model, exclude)
        assert rank is not None
        ranked = by_prefixes(samples, rows, rank, max_length, k)
    ranks = torch.empty(count, dtype=torch.int64, device=device)
    top = torch.empty(count, k, dtype=torch.int64, device=device)
    done = 0
    for ids, ranks_of_ids, best in ranked:
        ranks[ids] = ranks_of_ids
        top[ids] = best
        done += len(ids)
        progress.update("Evaluating", done, count)
    metrics = rank_metrics(ranks)
    metrics["coverage@20"] = float(coverage(top, items))
    metrics["popularity@20"] = float(mean_popularity(top, popularity.to(device)))
    # All clicks, even where the model reads only the latest.
    lengths = samples.clicks_before(torch.arange(count, device=device))
    ranking = f"{RANKING}, without {exclude} items" if exclude else RANKING
    return Evaluation(metrics, ranks.cpu(), lengths.cpu(), top.cpu(), ranking=ranking)


@torch.inference_mode()
def compile_ahead(
    model: SessionModel, samples: SessionDataset, device: torch.device
) -> None:
    """On a GPU, begin to compile the kernels with which `evaluate` will rank `samples`."""
    if device.type != "cuda" or not len(samples):
        return
    was_training = model.training
    max_length = model.config.max_length
    samples = samples.to(device)
    rows = min(rows_for(samples, model.items, max_length), len(samples))
    model.eval()
    with only_compiled():
        # What is computed here is undefined, and may be NaN: it is not ranked.
        if model.is_causal:
            batch, _, _ = next(pass_batches(model, samples, rows, max_length))
        else:
            ids = torch.arange(rows, device=device)
            batch = collate(samples, ids, max_length)
        model.scores(batch)
    model.train(was_training)


# Numbers of samples [B], their ranks [B], the best items [B, k].
Ranked = Iterator[tuple[Tensor, Tensor, Tensor]]
# Samples, the numbers of some of them [B], max_length, k -> ranks [B] and the best items [B, k].
Ranker = Callable[[SessionDataset, Tensor, int, int], tuple[Tensor, Tensor]]


def by_prefixes(
    samples: SessionDataset, rows: int, rank: Ranker, max_length: int, k: int
) -> Ranked:
    """Rank `rows` samples at a time, each of them a prefix that is read on its own."""
    for start in range(0, len(samples), rows):
        end = min(start + rows, len(samples))
        ids = torch.arange(start, end, device=samples.items.device)
        yield ids, *rank(samples, ids, max_length, k)


def plain_ranker(model: Model, exclude: str | None) -> Ranker:
    def rank(
        samples: SessionDataset, ids: Tensor, max_length: int, k: int
    ) -> tuple[Tensor, Tensor]:
        batch = collate(samples, ids, max_length, model.stride)
        if ids.device.type == "cpu":
            batch = batch.trimmed()
        scores = without(exclude, model.scores(batch), samples, ids)
        assert batch.targets is not None
        return ranks_of(scores, batch.targets), best_items(scores, k)

    return rank


def without(
    exclude: str | None, scores: Tensor, samples: SessionDataset, ids: Tensor
) -> Tensor:
    """Scores [B, n] of samples, the lowest of all for what answers leave out."""
    if exclude is None or not len(ids):
        return scores
    session, target = samples.locate(ids)
    first = samples.offsets[session] if exclude == "seen" else target - 1
    clicks = target - first
    numbers = padded(samples, first, clicks, int(clicks.max()))
    items = scores.shape[1]
    left_out = scores.new_zeros(len(scores), items + 2, dtype=torch.bool)
    # Column 0 is for padding, the last one for unknown items.
    left_out.scatter_(1, numbers.clamp(max=items + 1), True)
    return scores.masked_fill(left_out[:, 1:-1], -math.inf)


def best_items(scores: Tensor, k: int) -> Tensor:
    """[B, k] item numbers; an error if a score is NaN, which `topk` takes for the highest."""
    values, columns = top_items(scores, k)
    if values.isnan().any():
        raise RunFailed(
            "the model gives scores that are not numbers (NaN), so its weights can't be used; "
            "train it again, for instance with a smaller learning_rate"
        )
    return columns + 1


def by_passes(
    model: SessionModel,
    samples: SessionDataset,
    rows: int,
    max_length: int,
    k: int,
    exclude: str | None = None,
) -> Ranked:
    """Read each session once, and rank its samples together."""
    for batch, ids, targets in pass_batches(model, samples, rows, max_length):
        scores = model.scores(batch)
        is_sample = ids >= 0
        if not is_sample.all():
            scores = scores[is_sample]
            ids = ids[is_sample]
            targets = targets[is_sample]
        scores = without(exclude, scores, samples, ids)
        yield ids, ranks_of(scores, targets), best_items(scores, k)


def pass_batches(
    model: SessionModel, samples: SessionDataset, rows: int, max_length: int
) -> Iterator[tuple[SessionBatch, Tensor, Tensor]]:
    """Batches of sessions of similar length with `rows` samples, or one session if it has more;
    and for each of their T clicks the number of the sample that ends there, or -1, and its target.
    """
    device = samples.items.device
    every = torch.arange(len(samples), device=device)
    _, target = samples.locate(every)
    sample_at = torch.full((len(samples.items) + 1,), -1, device=device)  # by target
    sample_at[target] = every
    last_click = len(samples.items) - 1
    passes = passes_over(samples, max_length, model.stride)
    order = passes.clicks.sort(stable=True).indices
    begin = 0
    longest = int(passes.clicks.max()) if len(passes) else 0
    for end in cut_into_batches(passes.clicks[order], rows).tolist():
        chosen = order[begin:end]
        begin = end
        start = passes.start[chosen]
        clicks = passes.clicks[chosen]
        # On a GPU all batches have one width, so that one set of kernels is compiled.
        width = int(clicks.max()) if device.type == "cpu" else longest
        batch = collate_passes(samples, start, clicks, width)
        packing = pack(batch.mask)
        session = packing.slot_of_row // packing.longest
        position = packing.slot_of_row % packing.longest
        target = start[session] + position + 1  # [T] the target of each row
        is_read = position >= passes.skipped[chosen][session]
        ids = torch.where(is_read, sample_at[target], -1)
        items = samples.items[target.clamp(max=last_click)].long()
        yield replace(batch, packing=packing), ids, items
