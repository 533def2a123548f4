"""The best of many scores, and an exact search for session vectors that is quicker than scoring every item in full.

`ExactSearch` rounds every item vector to 8 bits, takes the product of the rounded vectors (a quarter of the bytes to
read, a third of the time), and scores only the best of them again in full. How far rounding can move a score is bounded
(Cauchy-Schwarz): for v = v' + f and x = x' + e

    |v·x - v'·x'|  <=  |v| |e| + |f| |x'|

so the search knows whether an item that it skipped could be among the best. Where one could, it scores that session in
full. The best items are always exact.

A model with a term for the session's own items (`nn/own_items.py`) also needs log Z, the log-sum-exp of the products of
all items. It is summed up from the same rounded products, with those of the items that were scored again replaced by
the exact ones. With `slack` the bound above, and R the share of Z that comes from the rounded products, its error is at
most log(1 + R (exp(slack) - 1)). Errors of many items cancel out, so it is much smaller in practice: at most 0.0012
and 0.0002 on average, over 200 random sessions and 100,000 random item vectors of width 200, scored by cosine with a
scale of 13, where R is 99 % and the bound 0.27. docs/performance.md has the error for items in clusters.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from posrec.errors import InputError
from posrec.recommend.onnx_model import import_runtime

TOP_BLOCK = 128  # columns whose highest score `top` takes first
MORE = 44  # blocks that the exact search looks into beyond the number of items asked for
BLOCK = 32  # items whose best rounded score the exact search takes first
LEVELS = 127
ZERO_POINT = 128  # the unsigned byte that stands for 0
LOWEST = np.iinfo(np.int32).min  # below every rounded score
ROUNDING = 1e-5  # of |v| |x|: the rounding error of 32-bit sums themselves

Floats = npt.NDArray[np.float32]
Columns = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Masks = Sequence[Mask | None]
Best = tuple[Floats, Columns]  # scores and columns, the best first


def top(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`scores.topk(k)` of scores [B, n]: values and columns, [B, k] each, the best first.

    On a CPU, torch's topk goes through every row, which takes longer than computing the row did. The k best are in the
    k blocks of columns with the highest maxima, so those blocks are found first, and topk goes through them alone.
    """
    block = TOP_BLOCK
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


class ExactSearch:
    """Over item vectors [n, d] on the CPU; column i is item i + 1."""

    kind, recall = "exact", 1.0

    def __init__(self, table: Floats) -> None:
        self.table = table
        self.in_full = 0  # sessions that had to be scored in full
        self.product: Any = None
        if not np.isfinite(self.table).all() or not self.table.size:
            return
        self.step = step_of(self.table)
        rounded = np.rint(self.table / self.step)
        restored = rounded * self.step
        self.error = float(np.linalg.norm(self.table - restored, axis=1).max())
        self.longest = float(np.linalg.norm(restored, axis=1).max())
        try:
            self.product = rounded_product(np.pad(rounded, ((0, -len(rounded) % BLOCK), (0, 0))))
        except InputError:  # ONNX Runtime is not installed: every session is scored in full
            return

    def best(self, sessions: Floats, wanted: Sequence[int], masks: Masks | None = None) -> list[Best]:
        """The best items for session vectors [B, d], `wanted[i]` of them for session i, the best first.

        `masks[i]` says which items session i may get, None for all. There are fewer than wanted where it has fewer.
        """
        return [best for best, _ in self.found(sessions, wanted, masks, with_log_sum=False)]

    def best_and_log_sums(
        self, sessions: Floats, wanted: Sequence[int], masks: Masks | None = None
    ) -> list[tuple[Best, float]]:
        """As `best`, with each session's log Z, which is over all items."""
        return list(self.found(sessions, wanted, masks, with_log_sum=True))

    def found(
        self, sessions: Floats, wanted: Sequence[int], masks: Masks | None, with_log_sum: bool
    ) -> Iterator[tuple[Best, float]]:
        """The best items of each session, and its log Z, which is 0 where it is not wanted."""
        masks = masks or [None] * len(sessions)
        most = max(wanted) + MORE
        if self.product is None or len(self.table) < 2 * most * BLOCK:
            for session, k, mask in zip(sessions, wanted, masks, strict=True):
                yield self.found_in_full(session, k, mask, with_log_sum)
            return
        rounded, unit, slack = self.rounded_scores(sessions)
        blocks = rounded.reshape(len(rounded), BLOCK, -1)  # a block is a column: quicker than neighbouring items
        for row, (session, k, mask) in enumerate(zip(sessions, wanted, masks, strict=True)):
            own = blocks[row] if mask is None else masked(rounded[row], mask).reshape(BLOCK, -1)
            highest = own.max(0)
            bar = np.partition(highest, -(k + MORE))[-(k + MORE)]  # no skipped item has a higher rounded score
            (chosen,) = (highest >= bar).nonzero()
            place, block = (own.take(chosen, 1) >= bar).nonzero()
            columns = place * len(highest) + chosen[block]
            columns = columns[columns < len(self.table)]
            if mask is not None and bar == LOWEST:  # so few items may be recommended that none was skipped
                columns = mask.nonzero()[0]
            scores = products(self.table, session, columns)
            best = ordered(scores, columns, k)
            if bar != LOWEST and not bar * unit[row] + slack[row] < best[0][-1]:  # so that NaN means "not certain"
                self.in_full += 1
                yield self.found_in_full(session, k, mask, with_log_sum)
                continue
            log_sum = 0.0
            if with_log_sum:
                every = rounded[row, : len(self.table)].astype(np.float32)
                every *= unit[row]
                every[columns] = scores
                log_sum = log_sum_of(every)
            yield best, log_sum

    def found_in_full(self, session: Floats, k: int, mask: Mask | None, with_log_sum: bool) -> tuple[Best, float]:
        """As `found`, for one session vector [d], from the products of all items."""
        scores = self.table @ session
        columns = None if mask is None else np.flatnonzero(mask)
        best = best_of_all(scores, k) if columns is None else ordered(scores[columns], columns, k)
        return best, log_sum_of(scores) if with_log_sum else 0.0

    def rounded_scores(self, sessions: Floats) -> tuple[npt.NDArray[np.int32], Floats, Floats]:
        """The scores of the rounded vectors [B, n'], the size of their unit [B], and the bound on their error [B]."""
        steps = step_of(sessions, axis=1)[:, None]
        rounded = np.rint(sessions / steps)
        length = np.linalg.norm(sessions, axis=1)
        error = np.linalg.norm(sessions - rounded * steps, axis=1)
        slack = length * self.error + error * self.longest + ROUNDING * length * self.longest
        (scores,) = self.product.run(None, {"sessions": unsigned(rounded)})
        return scores, steps[:, 0] * self.step, slack


def ordered(scores: Floats, columns: Columns, k: int) -> Best:
    """The k best, or all where there are fewer."""
    if len(scores) > 8 * k:
        best = np.argpartition(scores, -k)[-k:]
        scores, columns = scores[best], columns[best]
    order = np.argsort(-scores)[:k]
    return scores[order], columns[order]


def best_of_all(scores: Floats, k: int) -> Best:
    """The k best of the scores [n] of all items."""
    return ordered(scores, np.arange(len(scores)), k)


def masked(rounded: npt.NDArray[np.int32], mask: Mask) -> npt.NDArray[np.int32]:
    """Rounded scores [n'] with LOWEST for all items that the mask [n] leaves out.

    LOWEST is the sign bit alone. Setting it by bits is three times quicker than `np.where`, which branches.
    """
    sign = np.full(len(rounded), LOWEST, np.int32)  # LOWEST where an item is left out, otherwise 0
    np.left_shift(~mask, 31, out=sign[: len(mask)], dtype=np.int32)
    kept = sign >> 31
    np.invert(kept, out=kept)
    kept &= rounded
    kept |= sign
    return kept


def best_of_some(table: Floats, session: Floats, columns: Columns, k: int) -> Best:
    """The k best of these items alone, for one session vector [d]."""
    return ordered(products(table, session, columns), columns, k)


def products(table: Floats, session: Floats, columns: Columns) -> Floats:
    """The products of one session vector [d] with these items' vectors."""
    return table.take(columns, 0) @ session


def log_sum_of(scores: Floats) -> float:
    """log sum exp(scores). torch is quicker than numpy, above all on ARM."""
    return float(torch.from_numpy(scores).logsumexp(0))


def step_of(values: Floats, axis: int | None = None) -> Floats:
    """The size of one of the 8-bit levels."""
    largest = np.abs(values).max(axis)
    return np.maximum(largest, np.finfo(np.float32).tiny * LEVELS) / np.float32(LEVELS)  # type: ignore[no-any-return]


def unsigned(levels: Floats) -> npt.NDArray[np.uint8]:
    """Levels from -127 to 127 as unsigned bytes with a zero point of 128."""
    return (levels + ZERO_POINT).astype(np.uint8)


def rounded_product(rounded: Floats) -> Any:
    """A small ONNX graph: 8-bit sessions [B, d] -> scores [B, n]. All items share one step, so scores compare.

    Both are unsigned: on x86-64 ONNX Runtime multiplies signed sessions 10 to 20 times slower, and unsigned sessions
    with signed items overflow on processors without VNNI.
    """
    runtime = import_runtime()
    from onnx import TensorProto, helper, numpy_helper

    n, d = rounded.shape
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["sessions", "items", "zero", "zero"], ["scores"])],
        "rounded",
        [helper.make_tensor_value_info("sessions", TensorProto.UINT8, ["B", d])],
        [helper.make_tensor_value_info("scores", TensorProto.INT32, ["B", n])],
        [
            numpy_helper.from_array(np.ascontiguousarray(unsigned(rounded).T), "items"),
            numpy_helper.from_array(np.array(ZERO_POINT, np.uint8), "zero"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
