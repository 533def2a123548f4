"""Triton kernels for GPUs, where one custom kernel replaces many small ones.

Each kernel has a plain counterpart in `nn` or `training` that runs on any device, and is tested against it. Without a
GPU only this file is imported.
"""

import torch
from torch import Tensor

LONGEST = 128  # clicks; the attention of a session must fit into a multiprocessor's memory


def serve(x: Tensor) -> bool:
    """Whether the kernels support `x`: they are for single precision on a GPU."""
    return x.is_cuda and x.dtype == torch.float32 and not torch.is_autocast_enabled("cuda")


def precision() -> str:
    """The precision of products, by Triton's name."""
    return "ieee" if torch.get_float32_matmul_precision() == "highest" else "tf32"
