"""An exact search for session vectors that is quicker than scoring every item in full.

It multiplies vectors that are rounded to 8 bits, a quarter of the bytes to read, and scores only
the best items again. The error of rounding is bounded, so the search knows whether an item that it
skipped could be among the best. If so, it scores that session in full.
"""

import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from posrec.errors import InputError, imported
from posrec.recommend.rank.best_items import (
    Best,
    Columns,
    Floats,
    Mask,
    Masks,
    VectorSearch,
    best_of,
    lengths_of,
    log_sum_of,
)
from posrec.recommend.rank.encoder import (
    LARGEST_ONNX_FILE,
    import_runtime,
    open_session,
)

BLOCK = 32  # items; their number is filled up to a multiple of it
LEVELS = 127
# The unsigned byte that stands for 0: x86-64 multiplies signed sessions 10 to 20 times slower.
ZERO_POINT = np.array(128, np.uint8)
ROUNDING = 1e-5  # of |v| |x|: the rounding error of 32-bit sums themselves
CACHED = 1 << 23  # numbers; larger tables do not stay in a processor's cache
MOST_THREADS = 4  # of one search; more than two were not measured
MORE_BLOCKS = 44  # looked into beyond the number of items asked for
MOST_EQUAL = 4  # times as many blocks may reach the threshold, by equal scores
LOWEST = np.iinfo(np.int32).min  # below every rounded score

Rounded = npt.NDArray[np.int32]


def step_of(values: Floats, axis: int | None = None) -> Floats:
    """The size of one of the 8-bit levels."""
    largest = np.abs(values).max(axis)
    smallest = np.finfo(np.float32).tiny * LEVELS
    return np.maximum(largest, smallest) / np.float32(LEVELS)  # type: ignore[no-any-return]


def is_signed(items: int, d: int) -> bool:
    """Whether rounded item vectors [items, d] are best signed on this processor.

    They are where it multiplies unsigned with signed bytes (VNNI); elsewhere that overflows.
    """
    if items * d > CACHED or platform.machine() not in ("x86_64", "AMD64"):
        return False
    with suppress(OSError):  # not Linux
        return "_vnni" in Path("/proc/cpuinfo").read_text()
    return False


def rounded_items(table: Floats) -> bytes | None:
    """An ONNX file that multiplies 8-bit sessions [B, d] with the rounded items: scores [B, n'].

    n' is n, filled up to a multiple of BLOCK. None if the items can't be rounded (none, too many,
    not finite), or ONNX is not installed.
    """
    if not table.size or table.size > LARGEST_ONNX_FILE or not np.isfinite(table).all():
        return None
    try:
        import_runtime()
        onnx = imported("onnx", "ONNX", "serve")
    except InputError:
        return None
    step = step_of(table)
    levels = np.rint(table / step)
    restored = levels * step
    zero = np.array(0, np.int8) if is_signed(*table.shape) else ZERO_POINT
    filled = np.pad(levels, ((0, -len(levels) % BLOCK), (0, 0))).T + zero  # [d, n']
    d, columns = filled.shape
    items = np.ascontiguousarray(filled.astype(zero.dtype))
    types = onnx.TensorProto
    value_info = onnx.helper.make_tensor_value_info
    inputs = ["sessions", "items", "zero of sessions", "zero of items"]
    from_array = onnx.numpy_helper.from_array
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMulInteger", inputs, ["scores"])],
        "rounded",
        [value_info("sessions", types.UINT8, ["B", d])],
        [value_info("scores", types.INT32, ["B", columns])],
        [
            from_array(items, "items"),
            from_array(ZERO_POINT, "zero of sessions"),
            from_array(zero, "zero of items"),
        ],
    )
    opset = onnx.helper.make_opsetid("", 18)
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=9)
    about = {
        "step": str(float(step)),
        "error": str(float(lengths_of(table - restored).max())),
        "longest": str(float(lengths_of(restored).max())),
    }
    onnx.helper.set_model_props(model, about)
    return bytes(model.SerializeToString())


class RoundedItems:
    """`content` is a file of `rounded_items`."""

    def __init__(self, content: bytes, threads: int) -> None:
        self.session = open_session(content, threads)
        about = self.session.get_modelmeta().custom_metadata_map
        self.step = np.float32(about["step"])
        self.longest = np.float32(about["longest"])
        self.error = np.float32(about["error"]) + np.float32(ROUNDING) * self.longest

    def scores(self, sessions: Floats) -> tuple[Rounded, Floats, Floats]:
        """The scores [B, n'] of the rounded vectors, their unit [B], a bound [B] on their error."""
        steps = step_of(sessions, axis=1)
        levels = np.rint(sessions / steps[:, None])
        # By Cauchy-Schwarz, for the rounded v' = v - f and x' = x - e of an item v and a session x,
        #     |v·x - v'·x'|  <=  |v'| |e| + |f| |x|
        session_errors = lengths_of(sessions - levels * steps[:, None])
        slack = lengths_of(sessions) * self.error + session_errors * self.longest
        levels += ZERO_POINT
        (scores,) = self.session.run(None, {"sessions": levels.astype(np.uint8)})
        return scores, steps * self.step, slack


def allowed(scores: Rounded, masks: Masks) -> Rounded:
    """Rounded scores [B, n'] with LOWEST for all items that the masks leave out."""
    if all(mask is None for mask in masks):
        return scores
    rows = []
    for row, mask in zip(scores, masks, strict=True):
        if mask is None:
            rows.append(row)
            continue
        highest = np.full(len(row), LOWEST, np.int32)
        highest[: len(mask)] -= mask  # LOWEST - 1 is the highest number
        # Three times quicker than `np.where`, which branches.
        rows.append(np.minimum(row, highest))
    return np.stack(rows)


def best_rounded(scores: Rounded, most: int) -> tuple[Rounded, Columns, Columns]:
    """The thresholds [B] of rounded scores [B, n'], which about `most` blocks reach; and the items
    that reach them, as sorted rows and columns.

    A row has no items if too many blocks reach its threshold, or too few items are allowed.
    """
    # Along this axis the maximum is found quicker than over blocks of neighbouring items.
    blocks = scores.reshape(len(scores), BLOCK, -1)
    highest = blocks.max(1)  # [B, n' / BLOCK]
    thresholds = np.partition(highest, -most, axis=1)[:, -most]
    reaches = highest >= thresholds[:, None]
    too_many = np.count_nonzero(reaches, axis=1) > MOST_EQUAL * most
    reaches[(thresholds == LOWEST) | too_many] = False
    # `flatnonzero` and `divmod` take a third of the time of a `nonzero` with two axes.
    number_of_blocks = reaches.shape[1]
    rows, block = np.divmod(np.flatnonzero(reaches), number_of_blocks)
    item_reaches = blocks[rows, :, block] >= thresholds[rows, None]
    chosen, slot = np.divmod(np.flatnonzero(item_reaches), BLOCK)
    return thresholds, rows[chosen], slot * number_of_blocks + block[chosen]


class ExactSearch(VectorSearch):
    """`rounded` is a file of `rounded_items`, if there is one already; `cores` may be used for one
    search."""

    kind = "exact"
    recall = 1.0

    def __init__(
        self, table: Floats, rounded: bytes | None = None, cores: int = 1
    ) -> None:
        self.table = table
        self.in_full = 0  # sessions that had to be scored in full
        content = rounded_items(table) if rounded is None else rounded
        # Several cores read a large catalogue faster; a small one takes less than a millisecond.
        threads = min(cores, MOST_THREADS) if table.size > CACHED else 1
        self.rounded = None if content is None else RoundedItems(content, threads)

    def search(
        self,
        sessions: Floats,
        counts: Sequence[int],
        masks: Masks | None = None,
        with_log_sums: bool = False,
    ) -> list[tuple[Best, float]]:
        masks = masks or [None] * len(sessions)
        most = max(counts) + MORE_BLOCKS
        if self.rounded is None or len(self.table) < 2 * most * BLOCK:
            return [
                self.search_in_full(session, k, mask, with_log_sums)
                for session, k, mask in zip(sessions, counts, masks, strict=True)
            ]
        scores, unit, slack = self.rounded.scores(sessions)
        thresholds, rows, columns = best_rounded(allowed(scores, masks), most)
        bounds = thresholds * unit + slack  # no skipped item has a higher score
        is_item = columns < len(self.table)  # the others fill up the last block
        rows = rows[is_item]
        columns = columns[is_item]
        vectors = self.table.take(columns, 0)
        exact = np.einsum("cd,cd->c", vectors, sessions.take(rows, 0))
        starts = np.searchsorted(rows, np.arange(len(sessions) + 1))
        results = []
        for row, (k, mask) in enumerate(zip(counts, masks, strict=True)):
            candidates = slice(starts[row], starts[row + 1])
            best = best_of(exact[candidates], k, columns[candidates])
            # A NaN means "not certain".
            is_certain = len(best.scores) == k and bounds[row] < best.scores[-1]
            if not is_certain:
                self.in_full += 1
                in_full = self.search_in_full(sessions[row], k, mask, with_log_sums)
                results.append(in_full)
                continue
            log_sum = 0.0
            if with_log_sums:
                # The rounded products, those of the candidates replaced by the exact ones. If R is
                # the share of Z from rounded products, the error of log Z is at most
                # log(1 + R (exp(slack) - 1)); docs/performance.md has what it is in practice.
                products = scores[row, : len(self.table)].astype(np.float32)
                products *= unit[row]
                products[columns[candidates]] = exact[candidates]
                log_sum = log_sum_of(products)
            results.append((best, log_sum))
        return results

    def search_in_full(
        self, session: Floats, k: int, mask: Mask | None, with_log_sums: bool
    ) -> tuple[Best, float]:
        """As `search`, for one session vector [d], from the products of all items."""
        scores = self.table @ session
        log_sum = log_sum_of(scores) if with_log_sums else 0.0
        if mask is None:
            return best_of(scores, k), log_sum
        return best_of(scores[mask], k, np.flatnonzero(mask)), log_sum


def rounded_name(table: Floats) -> str:
    return "signed" if is_signed(*table.shape) else "unsigned"


def item_vectors_content(table: Floats, similar: Floats) -> bytes:
    """The content of items.safetensors: the vectors by whose products items are found, also
    rounded, and by whose cosines they are similar."""
    from safetensors.numpy import save

    arrays: dict[str, npt.NDArray[Any]] = {"item_vectors": table}
    rounded = rounded_items(table)
    if rounded is not None:
        arrays[rounded_name(table)] = np.frombuffer(rounded, np.uint8)
    if not np.array_equal(table, similar):
        arrays["similarity_vectors"] = similar
    return save(arrays)


def parse_item_vectors(
    content: bytes, path: Path, items: int
) -> tuple[Floats, Floats, bytes | None]:
    """What `item_vectors_content` wrote to the file `path`: table, similar, and rounded items."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(content)
        table = arrays["item_vectors"]
        if len(table) != items:
            raise ValueError(f"it has {len(table)} items, and the run has {items}")
    except (SafetensorError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} can't be read ({error}); write it again with posrec export --overwrite"
        ) from None
    similar = arrays.get("similarity_vectors", table)
    # Absent if the file was made on another kind of processor: they are rounded again.
    rounded = arrays.get(rounded_name(table))
    return table, similar, None if rounded is None else rounded.tobytes()
