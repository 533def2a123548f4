"""SessionEncoder: what turns sessions into vectors for a search. Arrays in, arrays out, so that serving an exported
model needs no torch; a model of torch is adapted in torch_encoder.py."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from posrec.nn.first_read import first_read
from posrec.recommend.best_items import Columns, Floats
from posrec.recommend.own_terms import OwnItemArrays


class SessionEncoder(Protocol):
    """It reads at most `config.max_length` clicks, the latest; of a longer session, from a multiple of `stride` on."""

    config: Any
    stride: int
    has_own_items: bool  # whether `encode` returns a term for the session's own items

    def encode(self, items: Columns, lengths: Columns) -> tuple[Floats, OwnItemArrays | None]:
        """items [B, L], padded with 0 on the right, lengths [B] -> session vectors [B, d] and the term."""


def padded(sessions: Sequence[Sequence[int]], max_length: int, stride: int = 1) -> tuple[Columns, Columns]:
    """The clicks of each session that a model reads: items [B, L] and lengths [B].

    >>> [part.tolist() for part in padded([[5, 3], [7, 8, 9, 4]], max_length=3)]
    [[[5, 3, 0], [8, 9, 4]], [2, 3]]
    """
    kept = [session[first_read(len(session), max_length, stride) :] for session in sessions]
    lengths = np.array([len(session) for session in kept], np.int64)
    items = np.zeros((len(kept), lengths.max()), np.int64)
    for row, session in enumerate(kept):
        items[row, : len(session)] = session
    return items, lengths
