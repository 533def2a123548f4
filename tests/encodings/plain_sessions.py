"""Batches of plain sessions, for encodings to encode."""

import torch


def session(*lengths: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A batch of plain sessions, right-padded: forward, backward, length."""
    length = torch.tensor(lengths)
    forward = torch.arange(max(lengths)).expand(len(lengths), -1)
    return forward, length.unsqueeze(1) - 1 - forward, length
