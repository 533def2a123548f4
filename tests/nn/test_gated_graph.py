"""The update of the gated graph layer against plain formulas; its messages are in the equations of the models."""

import torch
from torch.autograd import gradcheck

from posrec.nn.layers.gated_graph import gru_update


def test_the_update_is_that_of_a_gru() -> None:
    torch.manual_seed(0)
    x, gates, from_message = (torch.randn(5, width, dtype=torch.double, requires_grad=True) for width in (2, 6, 6))
    reset, update = torch.sigmoid(gates[:, :4] + from_message[:, :4]).chunk(2, dim=1)
    new = torch.tanh(from_message[:, 4:] + reset * gates[:, 4:])
    assert torch.allclose(gru_update(x, gates, from_message), (1 - update) * new + update * x)
    assert gradcheck(gru_update, (x, gates, from_message))
