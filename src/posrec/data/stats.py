"""A prepared dataset in numbers, as `posrec stats` prints them."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from posrec.data.arrays import fingerprint
from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.errors import InputError

LENGTH_BINS = ("2", "3", "4", "5", "6-7", "8-10", "11-15", "16-20", "21-50", "51+")
BIN_STARTS = torch.tensor([2, 3, 4, 5, 6, 8, 11, 16, 21, 51])
TOP_SHARES = (0.01, 0.1, 0.2, 0.5)
PERCENTILES = (50, 90, 99)


def stats(data: PreparedDataset) -> dict[str, Any]:
    """What `posrec stats --json` prints, if the fingerprint is that of the content."""
    content = fingerprint(data.path, data.manifest["validation_start"])
    if content != data.fingerprint:
        raise InputError(
            f"{data.path} was changed after it was prepared: its content has fingerprint "
            f"{content}, its manifest says {data.fingerprint}; prepare it again"
        )
    splits = (data.train, data.test)
    lengths = torch.cat([split.lengths for split in splits])
    clicks_before = [split.clicks_before(torch.arange(len(split))) for split in splits]
    sample_lengths = torch.cat(clicks_before) + 1
    item_counts = {"items": len(data.vocabulary), "train_items": data.train_items}
    if data.recommendable_items > data.train_items:
        item_counts["recommendable_items"] = data.recommendable_items
    full_test = data.full_test.items[: data.full_test.clicks].long()
    new = full_test[data.train_clicks[full_test] == 0]
    return {
        "clicks": data.train.clicks + data.test.clicks,
        "train_samples": len(data.train),
        "test_samples": len(data.test),
        "train_sessions": data.train.sessions,
        "test_sessions": data.test.sessions,
        "validation_sessions": data.validation.sessions,
        **item_counts,
        "full_test_clicks": len(full_test),
        "new_item_clicks": len(new),
        "new_items": len(torch.unique(new)),
        # As the field counts it: the mean over samples, where a prefix of n clicks and its target
        # have length n + 1.
        "average_length": round(float(sample_lengths.double().mean()), 4),
        "average_session_length": round(float(lengths.double().mean()), 4),
        "longest": int(lengths.max()),
        "length_percentiles": percentiles(lengths),
        "length_histogram": length_histogram(lengths),
        "repeating_sessions": sum(map(repeating_sessions, splits)),
        "popularity": popularity(data.train, data.train_items),
        "clicks_by_day": clicks_by_day(data, lengths),
        "warnings": data.manifest.get("warnings", []),
        "fingerprint": content,
    }


def clicks_by_day(data: PreparedDataset, lengths: Tensor) -> dict[str, int]:
    """The clicks of sessions that began on each day (UTC); none if the log had no times."""
    if data.trained_until is None:
        return {}
    every = np.concatenate([data.train.days, data.test.days])
    days, session_day = np.unique(every, return_inverse=True)
    clicks = torch.bincount(torch.from_numpy(session_day).repeat_interleave(lengths))
    return dict(zip(map(str, days), clicks.tolist(), strict=True))


def percentiles(values: Tensor) -> dict[str, int]:
    ranked = np.percentile(values.numpy(), PERCENTILES, method="lower")
    return dict(zip(map(str, PERCENTILES), ranked.tolist(), strict=True))


def length_histogram(lengths: Tensor) -> dict[str, int]:
    bins = torch.bucketize(lengths, BIN_STARTS, right=True)
    counts = torch.bincount(bins, minlength=len(BIN_STARTS) + 1)[1:]
    return dict(zip(LENGTH_BINS, counts.tolist(), strict=True))


def repeating_sessions(sessions: SessionDataset) -> int:
    session = torch.repeat_interleave(torch.arange(sessions.sessions), sessions.lengths)
    items = sessions.items[sessions.offsets[0] : sessions.offsets[-1]].long()
    pairs = (session << 32 | items).sort().values
    repeated = pairs[1:] == pairs[:-1]
    return len(torch.unique_consecutive(pairs[1:][repeated] >> 32))


def popularity(train: SessionDataset, items: int) -> dict[str, Any]:
    counts = torch.bincount(train.items.long(), minlength=items + 1)[1 : items + 1]
    ordered = counts.sort(descending=True).values.double()
    total = ordered.sum()
    rank = torch.arange(1, items + 1, dtype=torch.float64)
    share_of_top = {}
    for share in TOP_SHARES:
        top = ordered[: max(1, round(share * items))]
        share_of_top[f"{share:.0%}"] = round(float(top.sum() / total), 4)
    cumulated = (ordered.flip(0) * (items + 1 - rank)).sum()
    gini = float((items + 1 - 2 * cumulated / total) / items)
    return {
        "share_of_top": share_of_top,
        "gini": round(gini, 4),
        "most_clicks": int(ordered[0]),
        "median_clicks": int(ordered[items // 2]),
        "fewest_clicks": int(ordered[-1]),
    }
