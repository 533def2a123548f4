"""The repeat part of posrec-plus: how likely each of the items clicked so far is clicked again.

At click i, for each click j <= i that is the latest on its item, with f the place of the first click on the item and c
the number of clicks on it, both as they are at click j:

    u_ij = relu(W_x x_j + W_H H_j + W_h h_i + P_f[f] + P_b[i - j] + P_c[c] + bias)
    (rho_ij, delta_ij) = W_u u_ij + bias;    r_i = softmax of rho_ij over j
    g_i  = softmax(W_2 relu(W_1 [h_i || v_i] + bias) + bias)
    v_i  = clicks and items so far (log(1 + .) / 3), whether the item of i was clicked before, logsumexp(rho_i) / 5

    Q clicks i that are asked for, T clicks in all, W distances i - j, d dimensions.
"""

import torch
from torch import Tensor, nn

from posrec.encodings.schemes import learned_table, look_up
from posrec.models.session_reader import MOST_CLICKS, Clicks
from posrec.nn.items.own_items import NONE, OwnItems

MOST_RAISED = 10.0  # the largest |delta|


class RepeatPart(nn.Module):
    """rho, delta and the gate; see the top of the file."""

    def __init__(self, d: int, width: int, max_length: int) -> None:
        super().__init__()
        self.of_item, self.of_state, self.of_session = (
            nn.Linear(d, width, bias) for bias in (True, False, False)
        )  # fmt: skip
        self.forward_position, self.backward_position, self.clicks = (
            learned_table(rows, width) for rows in (max_length, max_length, MOST_CLICKS + 1)
        )
        self.out = nn.Linear(width, 2)
        self.gate = nn.Sequential(nn.Linear(d + 4, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, clicks: Clicks, x: Tensor, hidden: Tensor, h: Tensor) -> OwnItems:
        """x and H [T, d] of every click, h [Q, d] of those that are asked for."""
        asked, returned = clicks.asked, clicks.returned
        first = clicks.every.place - returned.since
        of_click = (
            self.of_item(x) + self.of_state(hidden) + look_up(self.forward_position, first)
            + look_up(self.clicks, returned.clicks)
        )  # fmt: skip
        at_distance = look_up(self.backward_position, torch.arange(asked.rows.shape[1], device=x.device))
        u = (asked.of(of_click) + self.of_session(h)[:, None] + at_distance).relu()  # [Q, W, width]
        rho, delta = self.two_numbers(u)  # [Q, W]
        is_latest = returned.latest_of_items(asked)
        items = torch.where(is_latest, asked.of(clicks.numbers), 0)
        rho = torch.where(items > 0, rho, NONE)
        counts = torch.stack([asked.place + 1, is_latest.sum(1)], 1).to(h.dtype).log1p() / 3
        again = (asked.at(returned.clicks) > 1)[:, None].to(h.dtype)
        strength = rho.logsumexp(1, keepdim=True)
        logits = self.gate(torch.cat([h, counts, again, strength.clamp(min=-20) / 5], 1))  # [Q, 2]
        nothing = torch.where((items > 0).any(1), 0.0, NONE)  # no item to repeat
        g = torch.stack([logits[:, 0] + nothing, logits[:, 1]], 1).log_softmax(1)
        repeat = g[:, :1] + rho - strength
        return OwnItems(items, None, delta.clamp(-MOST_RAISED, MOST_RAISED), repeat, g[:, 1])

    def two_numbers(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """W_u u + bias. On a GPU as sums, into which compiled code takes the computation of u, so that it is not stored
        and read again."""
        if not u.is_cuda:
            first, second = self.out(u).unbind(2)
            return first, second
        first, second = ((u * weight).sum(2) for weight in self.out.weight)
        return first + self.out.bias[0], second + self.out.bias[1]
