"""Messages along the edges of session graphs: the sums of Eq. (7), for both directions at once."""

import torch
from torch import Tensor

from posrec import kernels
from posrec.layers.packing import Packing
from posrec.layers.product import batched_product

if torch.cuda.is_available():
    from posrec.kernels.messages import messages as fused_messages


def messages(sent: Tensor, weights: Tensor, packing: Packing) -> Tensor:
    """sent [T, 2d]: what each node sends forward and backward; weights [B, 2, L, L] (row: who receives) -> [T, 2d]."""
    if kernels.serve(sent) and weights.shape[-1] <= kernels.LONGEST:
        received: Tensor = fused_messages(sent, weights, packing.begins, packing.slot_of_row)
        return received
    slots = packing.to_slots(sent)  # [B, L, 2d]
    senders = slots.view(*slots.shape[:2], 2, -1).transpose(1, 2)  # [B, 2, L, d]
    return packing.to_rows(batched_product(weights.to(sent.dtype), senders).transpose(1, 2).flatten(2))
