"""What the tests of counting models share: a model fitted on plain lists, and the order of what no
neighbour holds."""

from collections import Counter
from typing import Any

import torch
from hypothesis import strategies as st

from posrec.nn.batch import SessionBatch

ITEMS = 9
sessions = st.lists(st.integers(1, ITEMS), min_size=1, max_size=7)
logs = st.lists(sessions, min_size=1, max_size=12)


def fitted(build: Any, config: Any, log: list[list[int]], items: int = ITEMS) -> Any:
    """`log`: training sessions, oldest first."""
    model = build(items, config)
    offsets = torch.tensor([0, *map(len, log)]).cumsum(0)
    model.count(
        torch.tensor([item for session in log for item in session], dtype=torch.int32),
        offsets,
    )
    return model.eval()


def scores(model: Any, *sessions: list[int]) -> list[list[float]]:
    return model.scores(SessionBatch.of(list(sessions))).tolist()


def with_rest(
    found: dict[int, float], log: list[list[int]], items: int = ITEMS
) -> list[float]:
    """Scores of items 1..n: what was found, and below zero the others, the more clicked the higher."""
    clicks = Counter(item for session in log for item in session)
    counts = sorted({clicks[item] for item in range(1, items + 1)})
    rest = {
        item: counts.index(clicks[item]) / len(counts) - 1
        for item in range(1, items + 1)
    }
    return [found.get(item, rest[item]) for item in range(1, items + 1)]
