"""The best items for session vectors, exactly, in less time than scoring every item in full.

Every item vector is rounded to 8 bits, the product of the rounded vectors is taken (a quarter of the bytes to read, a
third of the time), and only the best of them are scored again in full. How far rounding can have moved a score is
bounded (Cauchy-Schwarz): for v = v' + f and x = x' + e

    |v·x - v'·x'|  <=  |v| |e| + |f| |x'|

so it is known, not hoped, whether an item left aside could have been among the best; where one could, that session is
scored in full.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from posrec.errors import InputError
from posrec.recommend.onnx_model import import_runtime

MORE = 44  # blocks looked into beyond the number of items asked for
BLOCK = 32  # items whose best rounded score is taken first
LEVELS = 127
ROUNDING = 1e-5  # of |v| |x|: what 32-bit sums themselves may be off

Floats = npt.NDArray[np.float32]
Columns = npt.NDArray[np.int64]
Best = tuple[Floats, Columns]  # scores and columns, the best first


class ExactSearch:
    """Over item vectors [n, d] on the CPU; column i is item i + 1."""

    kind = "exact"

    def __init__(self, table: Floats, threads: int = 1) -> None:
        self.table = table
        self.in_full = 0  # sessions that had to be scored in full
        self.product: Any = None
        if not np.isfinite(self.table).all() or not self.table.size:
            return
        self.step = step_of(self.table)
        rounded = np.rint(self.table / self.step).astype(np.int8)
        again = rounded * self.step
        self.error = float(np.linalg.norm(self.table - again, axis=1).max())
        self.longest = float(np.linalg.norm(again, axis=1).max())
        try:
            self.product = rounded_product(np.pad(rounded, ((0, -len(rounded) % BLOCK), (0, 0))), threads)
        except InputError:  # no ONNX Runtime here
            return

    def best(self, sessions: Floats, wanted: Sequence[int]) -> list[Best]:
        """Session vectors [B, d], and how many items of each -> the best of each, the best first."""
        most = max(wanted) + MORE
        if self.product is None or len(self.table) < 2 * most * BLOCK:
            return [best_of_all(self.table @ session, k) for session, k in zip(sessions, wanted, strict=True)]
        near, unit, slack = self.nearly(sessions)
        blocks = near.reshape(len(near), BLOCK, -1)  # a block is a column of this: quicker than neighbours would be
        highest = blocks.max(1)
        found = []
        for row, (session, k) in enumerate(zip(sessions, wanted, strict=True)):
            bar = np.partition(highest[row], -(k + MORE))[-(k + MORE)]  # no item left aside is rated higher
            (chosen,) = (highest[row] >= bar).nonzero()
            place, block = (blocks[row].take(chosen, 1) >= bar).nonzero()
            columns = place * highest.shape[1] + chosen[block]
            scores, columns = best_of_some(self.table, session, columns[columns < len(self.table)], k)
            if not bar * unit[row] + slack[row] < scores[-1]:  # so written that NaN is unsure
                self.in_full += 1
                scores, columns = best_of_all(self.table @ session, k)
            found.append((scores, columns))
        return found

    def nearly(self, sessions: Floats) -> tuple[npt.NDArray[np.int32], Floats, Floats]:
        """The scores of the rounded vectors [B, n'], what a unit of them is worth [B], how far they may be off [B]."""
        steps = step_of(sessions, axis=1)[:, None]
        rounded = np.rint(sessions / steps)
        length = np.linalg.norm(sessions, axis=1)
        error = np.linalg.norm(sessions - rounded * steps, axis=1)
        slack = length * self.error + error * self.longest + ROUNDING * length * self.longest
        (scores,) = self.product.run(None, {"sessions": rounded.astype(np.int8)})
        return scores, steps[:, 0] * self.step, slack


def ordered(scores: Floats, columns: Columns, k: int) -> Best:
    """The k best, or all where there are fewer."""
    if len(scores) > 8 * k:
        best = np.argpartition(scores, -k)[-k:]
        scores, columns = scores[best], columns[best]
    order = np.argsort(-scores)[:k]
    return scores[order], columns[order]


def best_of_all(scores: Floats, k: int) -> Best:
    """Of the scores [n] of all items."""
    return ordered(scores, np.arange(len(scores)), k)


def best_of_some(table: Floats, session: Floats, columns: Columns, k: int) -> Best:
    """Of these items alone, for one session vector [d]."""
    return ordered(table.take(columns, 0) @ session, columns, k)


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
