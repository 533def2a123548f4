"""The gated graph layer against plain formulas."""

import torch
from torch import Tensor
from torch.autograd import gradcheck

from posrec.nn.layers.gated_graph import gru_update, messages
from posrec.nn.packing import Packing, pack

FILLED = torch.tensor([[True, True, False, True], [True, False, False, False], [True, True, True, False]])


def random_graphs() -> tuple[Packing, Tensor]:
    """A packing of three sessions, and weights [B, 2, L, L] of which half are zero, between filled slots alone."""
    weights = torch.rand(3, 2, 4, 4, dtype=torch.double)
    between_nodes = FILLED[:, None, :, None] & FILLED[:, None, None, :]
    return pack(FILLED), weights * (weights > 0.5) * between_nodes


def test_a_node_receives_the_weighted_sum_of_what_its_neighbours_send() -> None:
    torch.manual_seed(0)
    packing, weights = random_graphs()
    sent = torch.randn(7, 6, dtype=torch.double)
    received = messages(sent, weights, packing)
    for session, slot in FILLED.nonzero().tolist():
        for direction, part in ((0, slice(0, 3)), (1, slice(3, 6))):
            expected = torch.zeros(3, dtype=torch.double)
            for other in FILLED[session].nonzero()[:, 0].tolist():
                row = packing.row_of_slot[session, other]
                expected += weights[session, direction, slot, other] * sent[row, part]
            assert torch.allclose(received[packing.row_of_slot[session, slot], part], expected)


def test_the_update_is_that_of_a_gru() -> None:
    torch.manual_seed(0)
    x, gates, from_message = (torch.randn(5, width, dtype=torch.double, requires_grad=True) for width in (2, 6, 6))
    reset, update = torch.sigmoid(gates[:, :4] + from_message[:, :4]).chunk(2, dim=1)
    new = torch.tanh(from_message[:, 4:] + reset * gates[:, 4:])
    assert torch.allclose(gru_update(x, gates, from_message), (1 - update) * new + update * x)
    assert gradcheck(gru_update, (x, gates, from_message))
