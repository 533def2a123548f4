"""Triton kernels for GPUs, where one custom kernel replaces many small ones.

Each kernel has a plain counterpart in `nn` or `training` that runs on any device, and is tested
against it. Whether a kernel is used is decided by the functions of `limits.py`."""

import torch

from posrec.kernels.limits import attention_fits, may_round, precision, supports

__all__ = ["attention_fits", "may_round", "precision", "supports"]

if torch.cuda.is_available():
    from posrec.kernels.attention import attention
    from posrec.kernels.smoothing import smooth
    from posrec.kernels.softmax import cross_entropy

    __all__ += ["attention", "cross_entropy", "smooth"]
