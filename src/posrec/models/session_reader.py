"""The reader of posrec-plus: one pass over the clicks of sessions, which gives the intentions at every click.

Click j of a session is its j-th from the front, from 0 on; x_j is its item's vector.

    x'_j = GRU(x_j, x_{j-1})                                             `Message`, in place of Eq. (7)-(8)
    y_j  = x'_j + F[j] + C[c_j]          c_j: clicks on j's item so far, at most 5
    H_i  = Transformer, asked by y_i and reading y_j of j <= i           Eq. (9), its row of the last click
    G_i  = its attention, asked by the first click, y_0 + B[i]           Eq. (9), its row of the first click
    h_i  = x'_i + H_i + sigmoid(W H_i) G_i                               Eq. (10), whose last term is gated here

Everything at click i depends on the clicks up to i alone, so one pass over a session computes h_i of all its prefixes,
each as if it were read alone. F and B are the two parts of the positional encoding (`encodings/split.py`): where click
i reads click j (`nn/layers/causal_layer.py`) the two add up to the encoding of place j in a session of i + 1 clicks.

    T clicks in all, Q clicks i that are asked for, W distances, d dimensions.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from posrec.encodings.schemes import learned_table, look_up, make_encoding
from posrec.encodings.split import require_split, split
from posrec.nn.layers.causal_layer import CausalLayer, ReadClicks
from posrec.nn.layers.gated_graph import gru_update
from posrec.nn.packing import Packing
from posrec.nn.seen_clicks import Returns, SeenClicks

PARTS = ("last item", "latest intention", "initial intention")  # of Eq. (10)
MOST_CLICKS = 5  # on one item of a session; more count as so many


@dataclass(frozen=True)
class Clicks:
    """The clicks of a batch."""

    packing: Packing
    every: SeenClicks  # all clicks
    asked: SeenClicks  # those that are asked for
    returned: Returns  # of all clicks
    numbers: Tensor  # [T] item numbers, 0 for unknown items


@dataclass(frozen=True)
class Intentions:
    hidden: Tensor  # [T, d] H of every click
    parts: tuple[Tensor, Tensor, Tensor]  # [Q, d] the terms of Eq. (10), by the names of PARTS


class SessionReader(nn.Module):
    """x [T, d] -> Intentions. The weights are those of the paper's encoder where they have the same part in it."""

    def __init__(
        self, d: int, encoding: str, layers: int, heads: int, feed_forward: int, dropout: float, max_length: int,
        message: bool, initial: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.message = Message(d) if message else None
        self.encoding = make_encoding(encoding, d, max_length, **({"heads": heads} if encoding == "rpe" else {}))
        self.clicks = learned_table(MOST_CLICKS + 1, d)  # C
        self.transformer = nn.ModuleList(CausalLayer(d, heads, feed_forward * d, dropout) for _ in range(layers))
        self.gate = nn.Linear(d, d) if initial else None
        if not self.clicks.is_meta:
            require_split(self.encoding, encoding, max_length)

    def forward(self, x: Tensor, clicks: Clicks) -> Intentions:
        updated, state = self.placed(x, clicks)
        for layer in self.transformer:
            state = state.after(cast(CausalLayer, layer), clicks)
        latest = clicks.asked.at(state.hidden)
        initial = torch.zeros_like(latest) if self.gate is None else torch.sigmoid(self.gate(latest)) * state.initial
        return Intentions(state.hidden, (clicks.asked.at(updated), latest, initial))

    def placed(self, x: Tensor, clicks: Clicks) -> tuple[Tensor, "State"]:
        """x [T, d] -> x' [T, d], and what the Transformer's first layer reads and what asks."""
        every, asked, numbers = clicks.every, clicks.asked, clicks.numbers
        updated = x if self.message is None else self.message(x, every)
        parts = split(self.encoding, clicks.packing.longest)
        hidden = updated + look_up(parts.forward, every.place) + look_up(self.clicks, clicks.returned.clicks)
        initial = hidden[asked.first] + look_up(parts.backward, asked.place)
        same = same_item(numbers, numbers, every), same_item(numbers[asked.first], numbers, asked)
        return updated, State(hidden, initial, *same, parts.backward, parts.bias)

    def attention(self, x: Tensor, clicks: Clicks) -> dict[str, Tensor]:
        """The attention of the latest and the initial intention in the last layer, the mean over heads, by the place of
        the click that is read; [Q, L] each."""
        _, state = self.placed(x, clicks)
        found = {}
        for layer in self.transformer:
            layer = cast(CausalLayer, layer)
            asking = torch.stack([clicks.asked.at(state.hidden), state.initial], 1)
            same = torch.stack([clicks.asked.at(state.same), state.same_as_first], 1)
            weights = layer.attention(asking, same, state.read_by(layer), clicks.asked, clicks.packing).mean(2)
            found = dict(zip(PARTS[1:] if self.gate is not None else PARTS[1:2], weights.unbind(1), strict=False))
            state = state.after(layer, clicks)
        return found


@dataclass(frozen=True)
class State:
    """What the next layer reads, and what asks."""

    hidden: Tensor  # [T, d] of every click: it is read, and asks
    initial: Tensor  # [Q, d] of the first click, asking in place of each click that is asked for
    same: Tensor  # [T, W] 1 where a seen click has the item of the click that asks
    same_as_first: Tensor  # [Q, W] likewise for the first click
    backward: Tensor  # [W, d] B
    bias: Tensor | None  # [heads, W]

    def read_by(self, layer: CausalLayer) -> ReadClicks:
        return layer.project(self.hidden, self.backward, self.bias)

    def after(self, layer: CausalLayer, clicks: Clicks) -> "State":
        read, packing = self.read_by(layer), clicks.packing
        if clicks.asked.is_every:  # both ask at the same clicks, so they do at once
            asking, same = torch.stack([self.hidden, self.initial], 1), torch.stack([self.same, self.same_as_first], 1)
            hidden, initial = layer(asking, same, read, clicks.every, packing).unbind(1)
        else:
            hidden = layer(self.hidden[:, None], self.same[:, None], read, clicks.every, packing)[:, 0]
            initial = layer(self.initial[:, None], self.same_as_first[:, None], read, clicks.asked, packing)[:, 0]
        hidden = layer.fed_forward(hidden)
        return State(hidden, initial, self.same, self.same_as_first, self.backward, self.bias)


class Message(nn.Module):
    """x'_j = GRU(x_j, x_{j-1}): x [T, d] -> x' [T, d]. At the first click the message is 0.

    It is the message of the session graph, Eq. (7), along the edge into click j. W_in is part of the GRU's weights.
    """

    def __init__(self, d: int) -> None:
        super().__init__()
        self.of_click, self.of_message = nn.Linear(d, 3 * d), nn.Linear(d, 3 * d)

    def forward(self, x: Tensor, every: SeenClicks) -> Tensor:
        before = torch.where(every.place[:, None] > 0, x.roll(1, 0), 0)
        return gru_update(x, self.of_click(x), self.of_message(before))


def same_item(asking: Tensor, numbers: Tensor, clicks: SeenClicks) -> Tensor:
    """asking [Q] and numbers [T] of items -> [Q, W] 1 where the seen click is on the same item, else 0."""
    return (clicks.of(numbers) == asking[:, None]).float()
