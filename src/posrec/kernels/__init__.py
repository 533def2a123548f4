"""Triton kernels for GPUs: the few places where one kernel of our own does what many small ones would.

Each has a plain counterpart in `layers` or `training` that says what it computes, runs on any device and is what the
kernel is tested against. Only this file is imported where there is no GPU.
"""

import torch
from torch import Tensor

LONGEST = 128  # clicks; a session's attention must fit on a processor


def serve(x: Tensor) -> bool:
    """Whether the kernels may take `x`: they are for single precision on a GPU."""
    return x.is_cuda and x.dtype == torch.float32 and not torch.is_autocast_enabled("cuda")


def precision() -> str:
    """How products are to be computed, as Triton calls it."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
