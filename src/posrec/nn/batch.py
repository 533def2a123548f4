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
    items if they are known.

    Models compute positions from `lengths`, never from the width of the array, so padding changes
    no score.

    With `every_click`, which is for models that are causal, a model computes the vectors of all
    prefixes, one for each click, in the order of the packing's rows; `targets` and `when` are [T]
    then."""

    items: Tensor
    lengths: Tensor
    targets: Tensor | None = None
    graph: SessionGraph | None = (
        None  # if it is built already; training builds those of many batches at once
    )
    packing: Packing | None = (
        None  # of the graph's nodes, or of the clicks if there is no graph; likewise
    )
    capacity: int | None = (
        None  # an upper bound on the clicks of all sessions, where shapes must not depend on data
    )
    when: Tensor | None = (
        None  # [B] in training: the share of the training clicks that came before the target
    )
    every_click: bool = False
    longest: int | None = (
        None  # an upper bound on the clicks of a session, where L is not known (ONNX export)
    )

    @classmethod
    def of(
        cls,
        sessions: Sequence[Sequence[int]],
        max_length: int | None = None,
        stride: int = 1,
    ) -> "SessionBatch":
        """A batch of the given sessions, with the latest clicks of each (`first_read`).

        >>> SessionBatch.of([[5, 3], [7]]).items.tolist()
        [[5, 3], [7, 0]]
        """
        if not sessions or not all(sessions):
            raise ValueError(
                "a batch needs at least one session, and each session at least one click"
            )
        kept = [
            list(
                session
                if max_length is None
                else session[first_read(len(session), max_length, stride) :]
            )
            for session in sessions
        ]
        longest = max(map(len, kept))
        padded = [session + [PADDING] * (longest - len(session)) for session in kept]
        return cls(
            torch.tensor(padded), torch.tensor([len(session) for session in kept])
        )

    @property
    def mask(self) -> Tensor:
        """[B, L] True where there is a click."""
        return (
            torch.arange(self.items.shape[1], device=self.items.device)
            < self.lengths[:, None]
        )

    def build_graph(self, with_distances: bool = True) -> SessionGraph:
        """The session graphs of this batch. Distances take most of the time; only anchor edges need
        them."""
        return build_graph(self.items, self.lengths, with_distances, self.longest)

    def trimmed(self) -> "SessionBatch":
        """Without the columns after the longest session. Use it on a CPU only: on a GPU it has to
        wait for a value."""
        return replace(self, items=self.items[:, : int(self.lengths.max())])

    def rows(self, start: int, end: int) -> "SessionBatch":
        """The sessions start..end-1, as views."""
        targets, when = (
            None if part is None else part[start:end]
            for part in (self.targets, self.when)
        )
        graph = None if self.graph is None else self.graph.rows(start, end)
        items = self.items[start:end]
        lengths = self.lengths[start:end]
        return replace(
            self,
            items=items,
            lengths=lengths,
            targets=targets,
            graph=graph,
            packing=None,
            when=when,
        )

    def to(self, device: torch.device | str) -> "SessionBatch":
        targets = None if self.targets is None else self.targets.to(device)
        return SessionBatch(self.items.to(device), self.lengths.to(device), targets)


def at_last_click(states: Tensor, lengths: Tensor) -> Tensor:
    """[B, L, d] -> [B, d]: the vector at each session's last click."""
    last = (lengths - 1)[:, None, None].expand(-1, 1, states.shape[2])
    return states.gather(1, last)[:, 0]
