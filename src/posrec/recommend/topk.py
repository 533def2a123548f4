"""The k best of many scores, exactly."""

import torch
from torch import Tensor

BLOCK = 128


def top(scores: Tensor, k: int, block: int = BLOCK) -> tuple[Tensor, Tensor]:
    """`scores.topk(k)` of scores [B, n]: values and columns, [B, k] each, the best first.

    On a CPU torch sorts through every row, which costs more than computing it did. The k best stand in the k blocks of
    columns with the highest maxima, so those are found first, and only they are sorted through. For a larger k smaller
    blocks are quicker.
    """
    blocks = scores.shape[1] // block
    if scores.device.type != "cpu" or blocks < 2 * k:
        values, columns = scores.topk(k)
        return values, columns
    whole = blocks * block
    best = scores[:, :whole].view(-1, blocks, block).amax(2).topk(k, sorted=False).indices  # [B, k] blocks
    inside = (best[..., None] * block + torch.arange(block)).flatten(1)  # [B, k * block] columns
    rest = torch.arange(whole, scores.shape[1]).expand(scores.shape[0], -1)
    columns = torch.cat([inside, rest], dim=1)
    values, place = scores.gather(1, columns).topk(k)
    return values, columns.gather(1, place)
