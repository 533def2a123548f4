"""An exact search for session vectors that is quicker than scoring every item in full.

It multiplies vectors that are rounded to 8 bits, a quarter of the bytes to read, and scores only
the best items again in full. How far rounding can move a score is bounded, so the search knows
whether an item that it skipped could be among the best; where one could, it scores that session in
full."""

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
    log_sum_of,
)
from posrec.recommend.rank.encoder import (
    LARGEST_ONNX_FILE,
    import_runtime,
    open_session,
)

BLOCK = 32  # items; their number is filled up to a multiple of it
LEVELS = 127
ZERO_POINT = 128  # the unsigned byte that stands for 0; x86-64 multiplies signed sessions 10 to 20 times slower
ROUNDING = 1e-5  # of |v| |x|: the rounding error of 32-bit sums themselves
CACHED = 1 << 23  # bytes of all items; more do not stay in a processor's cache
MOST_THREADS = 4  # of one search; more than two were not measured
MORE_BLOCKS = (
    44  # blocks that the search looks into beyond the number of items asked for
)
MOST_EQUAL = 4  # times as many blocks as that may hold candidates, because their scores are equal
LOWEST = np.iinfo(np.int32).min  # below every rounded score

Rounded = npt.NDArray[np.int32]


class ExactSearch(VectorSearch):
    """Over item vectors [n, d] on the CPU. `rounded` is the file of the same vectors in 8 bits, if
    there is one; `cores` may be used for one search.

    log Z is summed up from the rounded products, with those of the items scored again replaced by
    the exact ones. If R is the share of Z from the rounded ones, its error is at most
    log(1 + R (exp(slack) - 1)); docs/performance.md has what it is in practice.
    """

    kind = "exact"
    recall = 1.0

    def __init__(
        self, table: Floats, rounded: bytes | None = None, cores: int = 1
    ) -> None:
        self.table = table
        self.in_full = 0  # sessions that had to be scored in full
        content = rounded_items(table) if rounded is None else rounded
        # A small catalogue takes a fraction of a millisecond. A large one is read faster by several
        # cores than by one.
        threads = min(cores, MOST_THREADS) if table.size > CACHED else 1
        self.rounded = None if content is None else RoundedItems(content, threads)

    def search(
        self,
        sessions: Floats,
        wanted: Sequence[int],
        masks: Masks | None = None,
        with_log_sums: bool = False,
    ) -> list[tuple[Best, float]]:
        masks = masks or [None] * len(sessions)
        most = max(wanted) + MORE_BLOCKS
        if self.rounded is None or len(self.table) < 2 * most * BLOCK:
            return [
                self.search_in_full(*one, with_log_sums)
                for one in zip(sessions, wanted, masks, strict=True)
            ]
        scores, unit, slack = self.rounded.scores(sessions)
        bars, rows, columns = best_rounded(allowed(scores, masks), most)
        inside = columns < len(self.table)
        rows = rows[inside]
        columns = columns[inside]
        exact = np.einsum(
            "cd,cd->c", self.table.take(columns, 0), sessions.take(rows, 0)
        )
        ends = np.searchsorted(rows, np.arange(len(sessions) + 1))
        bounds = bars * unit + slack  # no item that was skipped has a higher score
        results: list[tuple[Best, float]] = []
        for row, (session, k, mask) in enumerate(
            zip(sessions, wanted, masks, strict=True)
        ):
            own = slice(ends[row], ends[row + 1])
            best = best_of(exact[own], k, columns[own])
            if not (
                len(best[0]) == k and bounds[row] < best[0][-1]
            ):  # so that NaN means "not certain"
                self.in_full += 1
                results.append(self.search_in_full(session, k, mask, with_log_sums))
                continue
            log_sum = 0.0
            if with_log_sums:
                every = scores[row, : len(self.table)].astype(np.float32)
                every *= unit[row]
                every[columns[own]] = exact[own]
                log_sum = log_sum_of(every)
            results.append((best, log_sum))
        return results

    def search_in_full(
        self, session: Floats, k: int, mask: Mask | None, with_log_sums: bool
    ) -> tuple[Best, float]:
        """As `search`, for one session vector [d], from the products of all items."""
        scores = self.table @ session
        best = (
            best_of(scores, k)
            if mask is None
            else best_of(scores[mask], k, np.flatnonzero(mask))
        )
        return best, log_sum_of(scores) if with_log_sums else 0.0


def best_rounded(scores: Rounded, most: int) -> tuple[Rounded, Columns, Columns]:
    """Of rounded scores [B, n'] the bars [B] that no item exceeds but those that may be among the
    best; and these items as rows, in order, and columns.

    A row has no items where too many would be needed: so many scores are equal, or so few allowed.
    """
    blocks = scores.reshape(
        len(scores), BLOCK, -1
    )  # a block is a column: quicker than neighbouring items
    highest = blocks.max(1)  # [B, n' / BLOCK]
    bars = np.partition(highest, -most, axis=1)[:, -most]
    above = highest >= bars[:, None]
    above[(bars == LOWEST) | (np.count_nonzero(above, axis=1) > MOST_EQUAL * most)] = (
        False
    )
    # `flatnonzero` and `divmod` take a third of the time of a `nonzero` with two axes.
    rows, block = np.divmod(np.flatnonzero(above), above.shape[1])
    chosen, place = np.divmod(
        np.flatnonzero(blocks[rows, :, block] >= bars[rows, None]), BLOCK
    )
    return bars, rows[chosen], place * above.shape[1] + block[chosen]


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
        rows.append(
            np.minimum(row, highest)
        )  # three times quicker than `np.where`, which branches
    return np.stack(rows)


class RoundedItems:
    """`content` is that of an ONNX file from `rounded_items`."""

    def __init__(self, content: bytes, threads: int = 1) -> None:
        self.session = open_session(content, threads)
        about = self.session.get_modelmeta().custom_metadata_map
        self.step, error, self.longest = (
            np.float32(about[name]) for name in ("step", "error", "longest")
        )
        self.error = error + np.float32(ROUNDING) * self.longest

    def scores(self, sessions: Floats) -> tuple[Rounded, Floats, Floats]:
        """The scores of the rounded vectors [B, n'], their unit [B], the bound on their error [B].

        n' is n, filled up with items of score 0 to a multiple of BLOCK. By Cauchy-Schwarz, for the
        rounded v' = v - f and x' = x - e,

            |v·x - v'·x'|  <=  |v| |e| + |f| |x'|
        """
        steps = step_of(sessions, axis=1)
        rounded = np.rint(sessions / steps[:, None])
        slack = (
            lengths(sessions) * self.error
            + lengths(sessions - rounded * steps[:, None]) * self.longest
        )
        rounded += ZERO_POINT
        (scores,) = self.session.run(None, {"sessions": rounded.astype(np.uint8)})
        return scores, steps * self.step, slack


def is_signed(items: int, d: int) -> bool:
    """Whether the rounded items of a table of this size are best signed on this processor.

    They are where it multiplies unsigned with signed bytes (VNNI); elsewhere that overflows.
    """
    if items * d > CACHED or platform.machine() not in ("x86_64", "AMD64"):
        return False
    with suppress(OSError):  # not Linux
        return "_vnni" in Path("/proc/cpuinfo").read_text()
    return False


def rounded_items(table: Floats) -> bytes | None:
    """An ONNX file: 8-bit sessions [B, d] -> scores [B, n'] of the items, rounded by one step.
    None where they can't be rounded (none, too many, not finite), or ONNX is not installed."""
    if not table.size or table.size > LARGEST_ONNX_FILE or not np.isfinite(table).all():
        return None
    try:
        import_runtime()
        onnx = imported("onnx", "ONNX", "serve")
    except InputError:
        return None
    step = step_of(table)
    rounded = np.rint(table / step)
    restored = rounded * step
    zero = (
        np.array(0, np.int8)
        if is_signed(*table.shape)
        else np.array(ZERO_POINT, np.uint8)
    )
    filled = np.pad(rounded, ((0, -len(rounded) % BLOCK), (0, 0))).T + zero  # [d, n']
    helper = onnx.helper
    numpy_helper = onnx.numpy_helper
    kinds = onnx.TensorProto
    graph = helper.make_graph(
        [
            helper.make_node(
                "MatMulInteger",
                ["sessions", "items", "zero of sessions", "zero of items"],
                ["scores"],
            )
        ],
        "rounded",
        [
            helper.make_tensor_value_info(
                "sessions", kinds.UINT8, ["B", filled.shape[0]]
            )
        ],
        [helper.make_tensor_value_info("scores", kinds.INT32, ["B", filled.shape[1]])],
        [
            numpy_helper.from_array(
                np.ascontiguousarray(filled.astype(zero.dtype)), "items"
            ),
            numpy_helper.from_array(np.array(ZERO_POINT, np.uint8), "zero of sessions"),
            numpy_helper.from_array(zero, "zero of items"),
        ],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9
    )
    about = {
        "step": step,
        "error": lengths(table - restored).max(),
        "longest": lengths(restored).max(),
    }
    helper.set_model_props(
        model, {name: str(float(value)) for name, value in about.items()}
    )
    content: bytes = model.SerializeToString()
    return content


def lengths(vectors: Floats) -> Floats:
    """[N, d] -> [N]; quicker than `np.linalg.norm`."""
    norms: Floats = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
    return norms


def step_of(values: Floats, axis: int | None = None) -> Floats:
    """The size of one of the 8-bit levels."""
    largest = np.abs(values).max(axis)
    return np.maximum(largest, np.finfo(np.float32).tiny * LEVELS) / np.float32(LEVELS)  # type: ignore[no-any-return]


def item_vectors_content(table: Floats, similar: Floats) -> bytes:
    """The content of items.safetensors; items are similar by the cosine of the vectors `similar`.
    `signed` or `unsigned` is an ONNX file of the rounded vectors, where they can be rounded."""
    from safetensors.numpy import save

    arrays: dict[str, npt.NDArray[Any]] = {"item_vectors": table}
    if rounded := rounded_items(table):
        arrays["signed" if is_signed(*table.shape) else "unsigned"] = np.frombuffer(
            rounded, np.uint8
        )
    if not np.array_equal(table, similar):
        arrays["similarity_vectors"] = similar
    return save(arrays)


def parse_item_vectors(
    content: bytes, path: Path, items: int
) -> tuple[Floats, Floats, bytes | None]:
    """The item vectors [n, d], those of similarity [n, d], and an ONNX file of the first in 8 bits;
    None where it has to be computed. `content` is that of the file `path`, which errors name."""
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
    # None, so that they are rounded again, where the file was made on another kind of processor.
    rounded = arrays.get("signed" if is_signed(*table.shape) else "unsigned")
    return (
        table,
        arrays.get("similarity_vectors", table),
        None if rounded is None else rounded.tobytes(),
    )
