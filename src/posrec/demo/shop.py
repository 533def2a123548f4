"""The demo shop: its clicks come from a known process, so the best figures of any model are known.

P(next | session) can be computed exactly. Ranking by P gives the ceiling: E[Recall@K] is the sum of
the K largest P and E[MRR@K] the sum of P_(r) / r, averaged over the test samples.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from posrec.data.dataset import CEILING, PreparedDataset, SessionDataset, collate
from posrec.data.vocabulary import Vocabulary
from posrec.demo.catalogue import ITEMS, LINES, SHAPE, item_table
from posrec.errors import InputError
from posrec.io import changing, write_json, write_text
from posrec.nn.batch import SessionBatch
from posrec.progress import SilentProgress

Numbers = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float64]

SEED = 2021
SESSIONS = 40_000
LONGEST = 20
START = 1_767_225_600_000  # 2026-01-01
DAYS = 28
WANDER = 0.15
RETURN = 0.15
INTENTION = 0.40
FADING = 0.8
RELATED = np.array([0.5, 0.3, 0.2])  # the probabilities of a line's three related lines
CUTOFFS = (5, 10, 20)


@dataclass(frozen=True)
class Shop:
    """The fixed tables of the process; items are numbered as in the catalogue."""

    popularity: Weights  # [items]
    related: Numbers  # [lines, 3]
    companions: Numbers  # [items, 6] where the intention of a first item leads to
    companion_weights: Weights  # [6]

    def drift_to(self, last: Numbers, first: Numbers) -> Numbers:
        """[..., 3] the related lines of the last item, in its size and the first item's colour."""
        line, _, size = np.unravel_index(last, SHAPE)
        _, colour, _ = np.unravel_index(first, SHAPE)
        features = (self.related[line], colour[..., None], size[..., None])
        return np.ravel_multi_index(features, SHAPE)


def behaviours(clicks: int) -> dict[str, float]:
    """The probability of each behaviour after a number of clicks.

    intention: the first item's line in its other size, or its category in its colour and size.
    return: an item clicked before. wander: any item, by popularity. drift: a line related to the
    last item's, in the last item's size and the first item's colour, so it depends on both ends.
    """
    intention = INTENTION * FADING ** (clicks - 1)
    back = RETURN if clicks > 1 else 0.0
    return {
        "intention": intention,
        "return": back,
        "wander": WANDER,
        "drift": 1 - intention - back - WANDER,
    }


def return_weights(clicks: int) -> Weights:
    """[clicks - 1] the probability of each position but the last; the first is twice as likely."""
    weights = np.ones(clicks - 1)
    weights[0] = 2
    weights /= weights.sum()
    return weights


def open_shop() -> Shop:
    random = np.random.default_rng(SEED)
    popularity = 1 / (np.arange(ITEMS) + 20.0) ** 0.6
    random.shuffle(popularity)
    # Drawn from all categories, so that sessions drift through the shop.
    related = np.stack([random.choice(LINES, 3, replace=False) for _ in range(LINES)])
    line, colour, size = np.unravel_index(np.arange(ITEMS), SHAPE)
    other_size = np.ravel_multi_index((line, colour, 1 - size), SHAPE)
    category = line // 6  # of six lines
    sisters = [
        np.ravel_multi_index((category * 6 + (line + step) % 6, colour, size), SHAPE)
        for step in (1, 2, 3, 4, 5)
    ]
    companions = np.stack([other_size, *sisters], axis=1)
    weights = np.array([0.37, 0.25, 0.15, 0.1, 0.08, 0.05])
    weights /= weights.sum()
    return Shop(popularity / popularity.sum(), related, companions, weights)


def simulate(shop: Shop, sessions: int) -> tuple[Numbers, Numbers]:
    """Items [sessions, LONGEST], -1 after a session's end, and times in milliseconds."""
    random = np.random.default_rng(SEED + 1)
    lengths = np.minimum(1 + random.geometric(0.26, sessions), LONGEST)
    popular = np.cumsum(shop.popularity)

    def wander(count: int) -> Numbers:
        items: Numbers = np.searchsorted(popular, random.random(count) * popular[-1])
        return items

    items = np.full((sessions, LONGEST), -1)
    items[:, 0] = wander(sessions)
    for clicks in range(1, LONGEST):
        going = np.flatnonzero(lengths > clicks)
        first = items[going, 0]
        last = items[going, clicks - 1]
        count = len(going)
        chances = behaviours(clicks)
        weights = shop.companion_weights
        companion = random.choice(len(weights), count, p=weights)
        related = random.choice(len(RELATED), count, p=RELATED)
        position = np.zeros(count, int)
        if clicks > 1:
            position = random.choice(clicks - 1, count, p=return_weights(clicks))
        options = {
            "intention": shop.companions[first, companion],
            "return": items[going, position],
            "wander": wander(count),
            "drift": shop.drift_to(last, first)[np.arange(count), related],
        }
        behaviour = random.choice(len(chances), count, p=list(chances.values()))
        next_items = np.stack([options[name] for name in chances])
        items[going, clicks] = next_items[behaviour, np.arange(count)]
    begun = START + random.integers(0, DAYS * 86_400_000, sessions)
    pauses = random.exponential(40_000, items.shape).astype(np.int64) + 1000
    pauses[:, 0] = 0
    return items, begun[:, None] + np.cumsum(pauses, axis=1)


def next_click_chances(shop: Shop, batch: SessionBatch) -> Tensor:
    """P(next | session) [B, items] for a batch of catalogue numbers + 1 (0 is padding)."""
    chances = torch.empty(len(batch.lengths), ITEMS, dtype=torch.float64)
    for clicks in sorted(set(batch.lengths.tolist())):
        rows = (batch.lengths == clicks).nonzero()[:, 0]
        sessions = batch.items[rows, :clicks].numpy() - 1
        first = sessions[:, 0]
        probability = behaviours(clicks)
        wander = torch.from_numpy(shop.popularity * probability["wander"])
        row_chances = wander.repeat(len(rows), 1)
        targets = [
            (shop.companions[first], probability["intention"] * shop.companion_weights),
            (shop.drift_to(sessions[:, -1], first), probability["drift"] * RELATED),
        ]
        if clicks > 1:
            back = probability["return"] * return_weights(clicks)
            targets.append((sessions[:, :-1], back))
        for items, weights in targets:
            spread = torch.from_numpy(np.broadcast_to(weights, items.shape).copy())
            row_chances.scatter_add_(1, torch.from_numpy(items), spread)
        chances[rows] = row_chances
    return chances


def ceiling(shop: Shop, data: PreparedDataset) -> dict[str, Any]:
    """The expected Recall, MRR and NDCG of the best possible ranking of the test samples."""
    catalogue = Vocabulary([name for name, _, _ in item_table()])
    shop_numbers = torch.tensor(
        catalogue.indices(data.vocabulary.ids), dtype=torch.int32
    )
    items = shop_numbers[data.test.items.long() - 1]
    test = SessionDataset(items, data.test.offsets, data.test.times)
    rank = torch.arange(1, max(CUTOFFS) + 1, dtype=torch.float64)
    gains = {
        "recall": torch.ones_like(rank),
        "mrr": 1 / rank,
        "ndcg": 1 / torch.log2(rank + 1),
    }
    totals = torch.zeros(len(gains), len(rank), dtype=torch.float64)
    for start in range(0, len(test), 2048):
        samples = torch.arange(start, min(start + 2048, len(test)))
        chances = next_click_chances(shop, collate(test, samples, LONGEST))
        best = chances.topk(max(CUTOFFS)).values.sum(0)
        totals += torch.stack([gain * best for gain in gains.values()])
    means = totals.cumsum(1) / len(test)
    figures: dict[str, Any] = {"samples": len(test)}
    for row, name in enumerate(gains):
        for k in CUTOFFS:
            figures[f"{name}@{k}"] = float(means[row, k - 1])
    return figures


def write_log(shop: Shop, folder: Path, sessions: int = SESSIONS) -> tuple[Path, Path]:
    """Write `clicks.csv`, as a shop's web server might log it, and `items.csv`."""
    import polars as pl

    items, times = simulate(shop, sessions)
    session, click = np.nonzero(items >= 0)
    order = np.argsort(times[session, click], kind="stable")
    session = session[order]
    click = click[order]
    names = ["item_id", "title", "category"]
    catalogue = pl.DataFrame(item_table(), names, orient="row")
    log = pl.DataFrame(
        {
            "session_id": [f"s{number}" for number in session],
            "item_id": catalogue["item_id"].gather(items[session, click]),
            "timestamp": times[session, click],
        }
    )
    write_text(folder / "clicks.csv", log.write_csv())
    write_text(folder / "items.csv", catalogue.write_csv())
    return folder / "clicks.csv", folder / "items.csv"


def make_demo(folder: str | Path, sessions: int = SESSIONS) -> PreparedDataset:
    """Write the shop's log into `folder`; prepare it in `folder/data`, with the ceiling."""
    from posrec.data.prepare.pipeline import prepare

    folder = Path(folder)
    shop = open_shop()
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder with --out")
    is_empty = not folder.exists() or not any(folder.iterdir())
    if not is_empty and not (folder / "data" / CEILING).exists():
        raise InputError(
            f"{folder} exists and is not an earlier demo; name another folder with --out"
        )
    clicks, items = write_log(shop, folder, sessions)
    silent = SilentProgress()
    data = prepare(
        clicks, "csv", folder / "data", items=items, overwrite=True, progress=silent
    )
    with changing(data.path, CEILING):
        write_json(data.path / CEILING, ceiling(shop, data))
    return data
