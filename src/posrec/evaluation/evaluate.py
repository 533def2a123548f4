"""Full ranking of every test sample, in bounded memory; `metrics.ranks_of` computes the ranks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posrec.data.dataset import SessionDataset, collate
from posrec.data.passes import collate_passes, cut_into_batches, passes_over
from posrec.errors import plural
from posrec.evaluation.metrics import (
    CUTOFFS,
    RANKING,
    coverage,
    mean_popularity,
    rank_metrics,
    ranks_of,
)
from posrec.evaluation.metrics import top as top_items
from posrec.kernels.launch import only_compiled
from posrec.models.base import Model, SessionModel
from posrec.nn.packing import pack
from posrec.progress import Progress, SilentProgress

if TYPE_CHECKING:
    import polars as pl

# Floats that are computed at a time, whatever the size of the catalogue. On a CPU 32 MB; up to 128
# MB for FEW_SESSIONS. On a GPU 1 GB, or less if little memory is free.
FLOATS_ON_CPU = 8_000_000
MOST_FLOATS_ON_CPU = 1 << 25
FLOATS_ON_GPU = 1 << 28
# sessions at a time
MOST_SESSIONS_ON_CPU = 2048
MOST_SESSIONS_ON_GPU = 8192
FEW_SESSIONS = 32
FLOATS_OF_A_PAIR = 8  # numbers that a model may store for each pair of clicks of a session: edges, distances, attention


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The metrics, and for every sample the rank of its target and the length of its session.

    Without samples, as for a dataset that has no test part, there are no metrics.
    """

    metrics: dict[str, float]
    ranks: Tensor  # [N]
    lengths: Tensor  # [N] clicks before the target
    top: Tensor | None = None  # [N, 20] the best items, or all where there are fewer
    of_lists: dict[str, float] = field(
        default_factory=dict
    )  # metrics beyond accuracy; see lists.py
    dataset: str = ""  # the fingerprint of the dataset whose test part was ranked

    def __repr__(self) -> str:
        shown = [
            f"{name} {100 * self.metrics[name]:.2f} %"
            for name in ("recall@20", "mrr@20")
            if name in self.metrics
        ]
        return f"Evaluation({', '.join([*shown, plural(len(self.ranks), 'sample')])})"

    def as_json(self) -> dict[str, Any]:
        """What metrics.json holds: the metrics, and what figures have to have in common to be
        compared."""
        measured_on = {
            "samples": len(self.ranks),
            "dataset": self.dataset,
            "ranking": RANKING,
        }
        return {**self.metrics, **self.of_lists, **measured_on}

    def to_frame(self) -> "pl.DataFrame":
        """One row with all metrics and the number of samples."""
        import polars as pl

        return pl.DataFrame([self.as_json()])


def rows_at_once(numbers: int, device: torch.device) -> int:
    """How many sessions to rank at a time, if each takes so many floats."""
    if device.type == "cpu":
        floats = max(FLOATS_ON_CPU, min(FEW_SESSIONS * numbers, MOST_FLOATS_ON_CPU))
        most = MOST_SESSIONS_ON_CPU
    else:
        free, _ = torch.cuda.mem_get_info(device)
        # an eighth of the memory
        floats = min(FLOATS_ON_GPU, free // 32)
        most = MOST_SESSIONS_ON_GPU
    return max(1, min(most, floats // numbers))


def rows_for(samples: SessionDataset, items: int, max_length: int) -> int:
    """How many of `samples` to rank at a time."""
    return rows_at_once(
        max(items, FLOATS_OF_A_PAIR * min(max_length, samples.longest) ** 2),
        samples.items.device,
    )


@torch.inference_mode()
def evaluate(
    model: Model | None,
    samples: SessionDataset,
    items: int,
    max_length: int,
    popularity: Tensor,
    progress: Progress | None = None,
    rank: "Ranker | None" = None,
) -> Evaluation:
    """Rank all `items` for every sample. `popularity [items + 1]` counts training clicks. `rank`
    ranks where there is no model."""
    progress = progress or SilentProgress()
    device = samples.items.device
    rows = rows_for(samples, items, max_length)
    ranks = torch.empty(len(samples), dtype=torch.int64, device=device)
    top = torch.empty(
        len(samples), min(max(CUTOFFS), items), dtype=torch.int64, device=device
    )
    if rank is not None:
        ranked = by_prefixes(samples, rows, rank, max_length, top.shape[1])
    elif isinstance(model, SessionModel) and model.is_causal:
        ranked = by_passes(model, samples, rows, max_length, top.shape[1])
    else:
        assert model is not None
        ranked = by_prefixes(
            samples, rows, plain_ranker(model), max_length, top.shape[1]
        )
    done = 0
    count = len(samples)
    for ids, of_ids, best in ranked:
        ranks[ids], top[ids] = of_ids, best
        done += len(ids)
        progress.update("Evaluating", done, count)
    metrics = rank_metrics(ranks)
    metrics[f"coverage@{max(CUTOFFS)}"] = float(coverage(top, items))
    metrics[f"popularity@{max(CUTOFFS)}"] = float(
        mean_popularity(top, popularity.to(device))
    )
    all_samples = torch.arange(len(samples), device=device)
    lengths = samples.clicks_before(
        all_samples
    )  # all clicks, even where the model reads only the latest
    return Evaluation(metrics, ranks.cpu(), lengths.cpu(), top.cpu())


@torch.inference_mode()
def compile_ahead(
    model: SessionModel, samples: SessionDataset, device: torch.device
) -> None:
    """Where `model` is on a GPU, begin to compile the kernels with which `evaluate` will rank
    `samples` there."""
    if device.type != "cuda" or not len(samples):
        return
    was_training = model.training
    max_length = model.config.max_length
    samples = samples.to(device)
    ids = torch.arange(
        min(rows_for(samples, model.items, max_length), len(samples)), device=device
    )
    model.eval()
    with only_compiled():
        if model.is_causal:
            next(by_passes(model, samples, len(ids), max_length, 1))
        else:
            model.scores(collate(samples, ids, max_length))
    model.train(was_training)


Ranked = Iterator[
    tuple[Tensor, Tensor, Tensor]
]  # numbers of samples [B], their ranks [B], the best items [B, k]


# samples, the numbers of some of them [B], max_length and k -> their ranks [B] and the best items
# [B, k]
Ranker = Callable[[SessionDataset, Tensor, int, int], tuple[Tensor, Tensor]]


def by_prefixes(
    samples: SessionDataset, rows: int, rank: Ranker, max_length: int, k: int
) -> Ranked:
    """Rank so many samples at a time, each of them a prefix that is read on its own."""
    for start in range(0, len(samples), rows):
        ids = torch.arange(
            start, min(start + rows, len(samples)), device=samples.items.device
        )
        yield ids, *rank(samples, ids, max_length, k)


def plain_ranker(model: Model) -> Ranker:
    def rank(
        samples: SessionDataset, ids: Tensor, max_length: int, k: int
    ) -> tuple[Tensor, Tensor]:
        batch = collate(samples, ids, max_length, model.stride)
        if ids.device.type == "cpu":
            batch = batch.trimmed()
        scores = model.scores(batch)
        assert batch.targets is not None
        return ranks_of(scores, batch.targets), top_items(scores, k)[1] + 1

    return rank


def by_passes(
    model: SessionModel, samples: SessionDataset, rows: int, max_length: int, k: int
) -> Ranked:
    """Read each session once, sessions of like length together, and rank so many of its samples at
    a time, or those of one session if it has more."""
    device = samples.items.device
    _, target = samples.locate(torch.arange(len(samples), device=device))
    sample_at = torch.full(
        (len(samples.items) + 1,), -1, device=device
    )  # by the index of the target
    sample_at[target] = torch.arange(len(samples), device=device)
    passes = passes_over(samples, max_length, model.stride)
    order = passes.clicks.sort(stable=True).indices
    begin = 0
    longest = int(passes.clicks.max()) if len(passes) else 0
    for end in cut_into_batches(passes.clicks[order], rows).tolist():
        some = order[begin:end]
        begin = end
        start = passes.start[some]
        clicks = passes.clicks[some]
        width = (
            int(clicks.max()) if device.type == "cpu" else longest
        )  # on a GPU one width has one set of kernels
        batch = collate_passes(samples, start, clicks, width)
        packing = pack(batch.mask)
        session = packing.slot_of_row // packing.longest
        place = packing.slot_of_row % packing.longest
        click = start[session] + place + 1  # [T] the target of each row
        ids = torch.where(place >= passes.skipped[some][session], sample_at[click], -1)
        wanted = (ids >= 0).nonzero()[:, 0]
        scores = model.scores(replace(batch, packing=packing))
        scores = scores if len(wanted) == len(ids) else scores[wanted]
        yield (
            ids[wanted],
            ranks_of(scores, samples.items[click[wanted]].long()),
            top_items(scores, k)[1] + 1,
        )
