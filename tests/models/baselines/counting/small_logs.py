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


def flat(log: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """The items and the offsets of sessions."""
    items = [item for session in log for item in session]
    offsets = torch.tensor([0, *map(len, log)]).cumsum(0)
    return torch.tensor(items, dtype=torch.int32), offsets


def fitted(build: Any, config: Any, log: list[list[int]], items: int = ITEMS) -> Any:
    """`log`: training sessions, oldest first."""
    model = build(items, config)
    model.count(*flat(log))
    return model.eval()


def scores(model: Any, *sessions: list[int]) -> list[list[float]]:
    return model.scores(SessionBatch.of(list(sessions))).tolist()


def with_rest(near: dict[int, float], log: list[list[int]]) -> list[float]:
    """Scores of all items: those of `near`, and the others below 0, by their clicks."""
    clicks = Counter(item for session in log for item in session)
    counts = sorted({clicks[item] for item in range(1, ITEMS + 1)})
    scores = []
    for item in range(1, ITEMS + 1):
        rest = counts.index(clicks[item]) / len(counts) - 1
        scores.append(near.get(item, rest))
    return scores
