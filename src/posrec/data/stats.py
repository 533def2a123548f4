"""A prepared dataset in numbers, as `posrec stats` prints them."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from posrec.data.arrays import fingerprint
from posrec.data.dataset import PreparedDataset, SessionDataset
from posrec.errors import InputError

LENGTH_BINS = (
    2,
    3,
    4,
    5,
    6,
    8,
    11,
    16,
    21,
    51,
)  # the first length of each bin; the last bin is open
TOP_SHARES = (0.01, 0.1, 0.2, 0.5)
DAY = 86_400_000  # milliseconds
PERCENTILES = (0.5, 0.9, 0.99)


def stats(data: PreparedDataset) -> dict[str, Any]:
    """What `posrec stats --json` prints. The fingerprint is computed again and compared."""
    content = fingerprint(data.path, data.manifest["validation_start"])
    if content != data.fingerprint:
        raise InputError(
            f"{data.path} was changed after it was prepared: its content has fingerprint {content}, its manifest says "
            f"{data.fingerprint}; prepare it again"
        )
    lengths = torch.cat([data.train.lengths, data.test.lengths])
    samples = len(data.train) + len(data.test)
    clicks_of_samples = sample_clicks(data.train) + sample_clicks(data.test)
    return {
        "clicks": data.train.clicks + data.test.clicks,
        "train_samples": len(data.train),
        "test_samples": len(data.test),
        "train_sessions": data.train.sessions,
        "test_sessions": data.test.sessions,
        "validation_sessions": data.validation.sessions,
        "items": len(data.vocabulary),
        "train_items": data.train_items,
        **(
            {"recommendable_items": found}
            if (found := data.recommendable_items) > data.train_items
            else {}
        ),
        # As the field counts it: the mean over samples, where a prefix of n clicks and its target
        # have length n + 1.
        "average_length": round(clicks_of_samples / samples, 4) if samples else 0.0,
        "average_session_length": round(float(lengths.double().mean()), 4),
        "longest": int(lengths.max()),
        "length_percentiles": percentiles(lengths),
        "length_histogram": length_histogram(lengths),
        "repeating_sessions": repeating_sessions(data.train)
        + repeating_sessions(data.test),
        "popularity": popularity(data.train, data.train_items),
        "clicks_by_day": clicks_by_day(data),
        "warnings": data.manifest.get("warnings", []),
        "fingerprint": content,
    }


def clicks_by_day(data: PreparedDataset) -> dict[str, int]:
    """The clicks of the sessions that began on each day (UTC); empty if the log had no times."""
    if data.trained_until is None:
        return {}
    times, lengths = (
        torch.cat([getattr(part, name) for part in (data.train, data.test)])
        for name in ("times", "lengths")
    )
    days, places = torch.unique(
        times.div(DAY, rounding_mode="floor"), return_inverse=True
    )
    clicks = torch.zeros_like(days).scatter_add_(0, places, lengths)
    return dict(
        zip(
            map(str, days.numpy().astype("datetime64[D]")), clicks.tolist(), strict=True
        )
    )


def sample_clicks(part: SessionDataset) -> int:
    """Clicks over all samples: a session of n clicks gives sequences of 2, 3, ..., n."""
    if part.targets is not None:
        return int((part.clicks_before(torch.arange(len(part))) + 1).sum())
    return int((part.lengths * (part.lengths + 1) // 2 - 1).sum())


def percentiles(values: Tensor) -> dict[str, int]:
    ordered = values.sort().values
    return {
        f"{share:.0%}".rstrip("%"): int(ordered[int(share * (len(ordered) - 1))])
        for share in PERCENTILES
    }


def length_histogram(lengths: Tensor) -> dict[str, int]:
    """Sessions by length, in bins that widen."""
    edges = [*LENGTH_BINS, None]
    histogram: dict[str, int] = {}
    for first, after in pairwise(edges):
        assert first is not None
        name = (
            f"{first}+"
            if after is None
            else str(first)
            if after == first + 1
            else f"{first}-{after - 1}"
        )
        histogram[name] = int(
            ((lengths >= first) & (lengths < (after or lengths.max() + 1))).sum()
        )
    return histogram


def repeating_sessions(sessions: SessionDataset) -> int:
    """The number of sessions that contain some item more than once."""
    session = torch.repeat_interleave(torch.arange(sessions.sessions), sessions.lengths)
    items = sessions.items[sessions.offsets[0] : sessions.offsets[-1]].long()
    pairs = (session << 32 | items).sort().values
    repeated = pairs[1:] == pairs[:-1]
    return len(torch.unique_consecutive(pairs[1:][repeated] >> 32))


def popularity(train: SessionDataset, items: int) -> dict[str, Any]:
    """The share of training clicks of the most popular items, and the Gini coefficient."""
    counts = torch.bincount(train.items.long(), minlength=items + 1)[1 : items + 1]
    ordered = counts.sort(descending=True).values.double()
    total = ordered.sum()
    rank = torch.arange(1, items + 1, dtype=torch.float64)
    top = {
        f"{share:.0%}": round(
            float(ordered[: max(1, round(share * items))].sum() / total), 4
        )
        for share in TOP_SHARES
    }
    gini = float(
        (items + 1 - 2 * (ordered.flip(0) * (items + 1 - rank)).sum() / total) / items
    )
    return {
        "share_of_top": top,
        "gini": round(gini, 4),
        "most_clicks": int(ordered[0]),
        "median_clicks": int(ordered[items // 2]),
        "fewest_clicks": int(ordered[-1]),
    }
