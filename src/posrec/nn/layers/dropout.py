"""Dropout that takes little time on a CPU."""

import torch
from torch import Tensor, nn


class Dropout(nn.Dropout):
    """nn.Dropout, whose draws take longer on a CPU than the product of a layer's input with its weights. Here one draw
    of 64 random bits decides for four numbers, by 16 bits each, so that `p` is rounded to 1/65536."""

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu" or torch.compiler.is_compiling() or not self.training or self.p in (0, 1):
            return super().forward(x)
        bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None).view(torch.int16)
        kept = bits[: x.numel()].view(x.shape) >= round(self.p * 65536) - 32768
        return x * kept.to(x.dtype).mul_(1 / (1 - self.p))
