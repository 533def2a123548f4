"""The k best items for session vectors, exactly, in less time than scoring every item in full.

Every item vector is rounded to 8 bits, the product of the rounded vectors is taken (a quarter of the bytes to read, a
third of the time), and only the best of them are scored again in full. How far rounding can have moved a score is
bounded (Cauchy-Schwarz): for v = v' + f and x = x' + e

    |v·x - v'·x'|  <=  |v| |e| + |f| |x'|

so it is known, not hoped, whether an item left aside could have been among the best; where one could, that session is
scored in full.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from posrec.errors import InputError
from posrec.serving.onnx_model import import_runtime
from posrec.serving.top import top

MORE = 44  # items scored again beyond those asked for
BLOCK = 32  # columns looked through together, for the sixty-odd best
LEVELS = 127
ROUNDING = 1e-5  # of |v| |x|: what 32-bit sums themselves may be off

Floats = npt.NDArray[np.float32]


class Search:
    """Over item vectors [n, d] on the CPU."""

    def __init__(self, vectors: Tensor, threads: int = 1) -> None:
        self.vectors = vectors.detach().float().contiguous()
        self.in_full = 0  # sessions that had to be scored in full
        self.product: Any = None
        table: Floats = self.vectors.numpy()
        if not np.isfinite(table).all() or not table.size:
            return
        self.step = step_of(table)
        rounded = np.rint(table / self.step).astype(np.int8)
        again = rounded * self.step
        self.error = float(np.linalg.norm(table - again, axis=1).max())
        self.longest = float(np.linalg.norm(again, axis=1).max())
        try:
            self.product = rounded_product(rounded, threads)
        except InputError:  # no ONNX Runtime here
            return

    def top(self, sessions: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Session vectors [B, d] -> scores and columns, [B, k] each, the best first."""
        n = self.vectors.shape[0]
        wanted = k + MORE
        if self.product is None or n // BLOCK < 2 * wanted:
            return top(sessions @ self.vectors.T, k)
        near, step, slack = self.nearly(sessions.numpy())
        about, columns = top(torch.from_numpy(near), wanted, BLOCK)  # [B, wanted]
        scores = torch.bmm(self.vectors[columns], sessions[:, :, None])[..., 0]  # [B, wanted]
        values, place = scores.topk(k)
        columns = columns.gather(1, place)
        # An item left aside has a rounded score of at most the last one kept, and a true one at most `slack` above.
        highest = about[:, -1] * torch.from_numpy(step) + torch.from_numpy(slack)
        unsure = ~(highest < values[:, -1])  # so written that NaN is unsure
        if unsure.any():
            self.in_full += int(unsure.sum())
            values[unsure], columns[unsure] = top(sessions[unsure] @ self.vectors.T, k)
        return values, columns

    def nearly(self, sessions: Floats) -> tuple[npt.NDArray[np.int32], Floats, Floats]:
        """The scores of the rounded vectors [B, n], what a unit of them is worth [B], how far they may be off [B]."""
        steps = step_of(sessions, axis=1)[:, None]
        rounded = np.rint(sessions / steps)
        length = np.linalg.norm(sessions, axis=1)
        error = np.linalg.norm(sessions - rounded * steps, axis=1)
        slack = length * self.error + error * self.longest + ROUNDING * length * self.longest
        (scores,) = self.product.run(None, {"sessions": rounded.astype(np.int8)})
        return scores, (steps[:, 0] * self.step).astype(np.float32), slack.astype(np.float32)

    def scores_of(self, session: Tensor, columns: Tensor) -> Tensor:
        """The scores [m] of some items for one session vector [d]."""
        return self.vectors[columns] @ session


def step_of(values: Floats, axis: int | None = None) -> Floats:
    """What one of the levels stands for."""
    largest = np.abs(values).max(axis)
    return np.maximum(largest, np.finfo(np.float32).tiny * LEVELS) / np.float32(LEVELS)  # type: ignore[no-any-return]


def rounded_product(rounded: npt.NDArray[np.int8], threads: int) -> Any:
    """A small ONNX graph: 8-bit sessions [B, d] -> scores [B, n]. Items share a step, so their scores compare."""
    runtime = import_runtime()
    from onnx import TensorProto, helper, numpy_helper

    n, d = rounded.shape
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["sessions", "items"], ["scores"])],
        "rounded",
        [helper.make_tensor_value_info("sessions", TensorProto.INT8, ["B", d])],
        [helper.make_tensor_value_info("scores", TensorProto.INT32, ["B", n])],
        [numpy_helper.from_array(np.ascontiguousarray(rounded.T), "items")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    return runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
