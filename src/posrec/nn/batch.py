"""SessionBatch: the sessions that a model reads together."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posrec.nn.first_read import first_read
from posrec.nn.graph import SessionGraph, build_graph
from posrec.nn.packing import Packing

PADDING = 0


@dataclass(frozen=True)
class SessionBatch:
    """`items [B, L]` int64, padded with 0 on the right; `lengths [B]`; `targets [B]`, the next
    items if they are known. Models compute positions from `lengths`, so padding changes no score.

    With `every_click`, a causal model computes the vectors of all prefixes, one for each click, in
    the order of the packing's rows; `targets` and `when` are [T] then."""

    items: Tensor
    lengths: Tensor
    targets: Tensor | None = None
    # Training builds the graphs and packings of many batches at once. A packing is that of the
    # graph's nodes, or of the clicks if there is no graph.
    graph: SessionGraph | None = None
    packing: Packing | None = None
    # An upper bound on the clicks of all sessions, if shapes must not depend on the data.
    capacity: int | None = None
    # [B] in training: the share of the training clicks that came before the target.
    when: Tensor | None = None
    every_click: bool = False
    # An upper bound on the clicks of a session, if L is not known (ONNX export).
    longest: int | None = None
    # [B, L, d] what a model's `click_vectors` gives, in whose place it reads these; all items are
    # known then.
    vectors: Tensor | None = None

    @classmethod
    def of(
        cls,
        sessions: Sequence[Sequence[int]],
        max_length: int | None = None,
        stride: int = 1,
    ) -> "SessionBatch":
        """A batch of these sessions, with the latest clicks of each (`first_read`).

        >>> SessionBatch.of([[5, 3], [7]]).items.tolist()
        [[5, 3], [7, 0]]
        """
        if not sessions or not all(sessions):
            raise ValueError(
                "a batch needs at least one session, and each session at least one click"
            )
        if max_length is not None:
            sessions = [
                session[first_read(len(session), max_length, stride) :]
                for session in sessions
            ]
        lengths = [len(session) for session in sessions]
        longest = max(lengths)
        padded = [
            [*session, *[PADDING] * (longest - len(session))] for session in sessions
        ]
        return cls(torch.tensor(padded), torch.tensor(lengths))

    @property
    def mask(self) -> Tensor:
        """[B, L] True where there is a click."""
        position = torch.arange(self.items.shape[1], device=self.items.device)
        return position < self.lengths[:, None]

    def build_graph(self, with_distances: bool = True) -> SessionGraph:
        """Distances take most of the time; only anchor edges need them."""
        return build_graph(self.items, self.lengths, with_distances, self.longest)

    def trimmed(self) -> "SessionBatch":
        """Without the columns after the longest session. On a GPU it would wait for a value."""
        return replace(self, items=self.items[:, : int(self.lengths.max())])

    def rows(self, start: int, end: int) -> "SessionBatch":
        """The sessions start..end-1, as views."""
        return replace(
            self,
            items=self.items[start:end],
            lengths=self.lengths[start:end],
            targets=None if self.targets is None else self.targets[start:end],
            graph=None if self.graph is None else self.graph.rows(start, end),
            packing=None,
            when=None if self.when is None else self.when[start:end],
        )

    def to(self, device: torch.device | str) -> "SessionBatch":
        targets = None if self.targets is None else self.targets.to(device)
        return SessionBatch(self.items.to(device), self.lengths.to(device), targets)


def at_last_click(states: Tensor, lengths: Tensor) -> Tensor:
    """[B, L, d] -> [B, d]: the vector at each session's last click."""
    last = (lengths - 1)[:, None, None].expand(-1, 1, states.shape[2])
    return states.gather(1, last)[:, 0]
