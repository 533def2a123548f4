"""An exact search for session vectors that is quicker than scoring every item in full.

It multiplies vectors that are rounded to 8 bits, a quarter of the bytes to read, and scores only
the best items again. The error of rounding is bounded, so the search knows whether an item that it
skipped could be among the best. If so, it scores that session in full.
"""

import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from posrec.errors import InputError, imported
from posrec.recommend.rank.best_items import (
    Columns,
    Floats,
    Found,
    Masks,
    TableSearch,
    best_allowed,
    best_of,
    lengths_of,
    log_sums_of,
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
FEWEST_ITEMS = 2 * MORE_BLOCKS * BLOCK  # fewer are scored in full
MOST_EQUAL = 4  # times as many blocks may reach the threshold, by equal scores
LOWEST = np.float32(-1e37)  # below every rounded score


def step_of(values: Floats, axis: int | None = None) -> Floats:
    """The size of one of the 8-bit levels."""
    largest = np.abs(values).max(axis)
    smallest = np.finfo(np.float32).tiny * LEVELS
    return np.maximum(largest, smallest) / np.float32(LEVELS)  # type: ignore[no-any-return]


def is_signed() -> bool:
    """Whether rounded item vectors are best signed on this processor.

    They are where it multiplies unsigned with signed bytes (VNNI); elsewhere that overflows.
    """
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    with suppress(OSError):  # not Linux
        return "_vnni" in Path("/proc/cpuinfo").read_text()
    return False


def rounded_items(table: Floats, with_log_sums: bool) -> bytes | None:
    """An ONNX file that multiplies 8-bit sessions [B, d] with the rounded items, in units of which
    [B, 1] is given: scores [B, n']. With log sums also log Z [B, 1] of these products.

    n' is n, filled up to a multiple of BLOCK with the last item. None if there are too few items to
    gain by it, or too many, or they are not finite, or ONNX is not installed.
    """
    if len(table) < FEWEST_ITEMS or table.size > LARGEST_ONNX_FILE:
        return None
    if not np.isfinite(table).all():
        return None
    try:
        import_runtime()
        onnx = imported("onnx", "ONNX", "serve")
    except InputError:
        return None
    step = step_of(table)
    levels = np.rint(table / step)
    restored = levels * step
    zero = np.array(0, np.int8) if is_signed() else ZERO_POINT
    fill = ((0, -len(levels) % BLOCK), (0, 0))
    filled = np.pad(levels, fill, mode="edge").T + zero  # [d, n']
    d, columns = filled.shape
    constants = {
        "items": np.ascontiguousarray(filled.astype(zero.dtype)),
        "zero of sessions": ZERO_POINT,
        "zero of items": zero,
    }
    value_info = onnx.helper.make_tensor_value_info
    floats = onnx.TensorProto.FLOAT
    sessions = value_info("sessions", onnx.TensorProto.UINT8, ["B", d])
    units = value_info("units", floats, ["B", 1])
    scores = value_info("scores", floats, ["B", columns])
    graph = onnx.helper.make_graph([], "rounded", [sessions, units], [scores])
    add_nodes(
        graph,
        ("MatMulInteger", ["sessions", *constants], "levels"),
        ("CastLike", ["levels", "units"], "products"),
        ("Mul", ["products", "units"], "scores"),
    )
    if with_log_sums:
        graph.output.append(value_info("log sums", floats, ["B", 1]))
        add_log_sums(graph, constants)
    from_array = onnx.numpy_helper.from_array
    graph.initializer.extend(
        from_array(array, name) for name, array in constants.items()
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


def add_log_sums(graph: Any, constants: dict[str, npt.NDArray[Any]]) -> None:
    """log Z = z_i - log(exp(z_i) / Z), of the last column i."""
    columns = constants["items"].shape[1]
    constants["last"] = np.array([columns - 1])
    constants["end"] = np.array([columns])
    constants["axis"] = np.array([1])
    add_nodes(
        graph,
        ("LogSoftmax", ["scores"], "log shares"),
        ("Slice", ["scores", "last", "end", "axis"], "last score"),
        ("Slice", ["log shares", "last", "end", "axis"], "last log share"),
        ("Sub", ["last score", "last log share"], "log sums"),
    )


def add_nodes(graph: Any, *nodes: tuple[str, list[str], str]) -> None:
    from onnx import helper

    for operation, inputs, output in nodes:
        graph.node.append(helper.make_node(operation, inputs, [output]))


class RoundedScores(NamedTuple):
    """Scores of the rounded vectors of B sessions."""

    scores: Floats  # [B, n']
    slack: Floats  # [B] a bound on their error
    log_sums: Floats | None  # [B] log Z, if the file computes it


class RoundedItems:
    """`content` is a file of `rounded_items`, for n items."""

    def __init__(self, content: bytes, threads: int, n: int) -> None:
        self.n = n
        self.session = open_session(content, threads)
        self.has_log_sums = len(self.session.get_outputs()) > 1
        about = self.session.get_modelmeta().custom_metadata_map
        self.step = np.float32(about["step"])
        self.longest = np.float32(about["longest"])
        self.error = np.float32(about["error"]) + np.float32(ROUNDING) * self.longest

    def scores(self, sessions: Floats) -> RoundedScores:
        steps = step_of(sessions, axis=1)
        levels = np.rint(sessions / steps[:, None])
        # By Cauchy-Schwarz, for the rounded v' = v - f and x' = x - e of an item v and a session x,
        #     |v·x - v'·x'|  <=  |v'| |e| + |f| |x|
        session_errors = lengths_of(sessions - levels * steps[:, None])
        slack = lengths_of(sessions) * self.error + session_errors * self.longest
        inputs = {
            "sessions": (levels + ZERO_POINT).astype(np.uint8),
            "units": (steps * self.step)[:, None],
        }
        if not self.has_log_sums:
            (scores,) = self.session.run(None, inputs)
            return RoundedScores(scores, slack, None)
        scores, log_sums = self.session.run(None, inputs)
        filled = scores.shape[1] - self.n
        # Without the columns that repeat the last item.
        share = np.exp(scores[:, -1] - log_sums[:, 0])
        return RoundedScores(scores, slack, log_sums[:, 0] + np.log1p(-filled * share))


def allowed(scores: Floats, masks: Masks) -> Floats:
    """Rounded scores [B, n'] that are below LOWEST for all items that the masks leave out."""
    if all(mask is None for mask in masks):
        return scores
    distinct = {id(mask): mask for mask in masks}  # most requests share one
    added = np.zeros((len(distinct), scores.shape[1]), np.float32)
    for row, mask in zip(added, distinct.values(), strict=True):
        # Three times quicker than `np.where`, which branches.
        if mask is not None:
            row[: len(mask)] = mask
            row -= 1
            row *= -2 * LOWEST
    if len(distinct) > 1:
        places = list(distinct)
        added = added[[places.index(id(mask)) for mask in masks]]
    return scores + added


def best_rounded(scores: Floats, most: int) -> tuple[Floats, Columns, Columns]:
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
    reaches[(thresholds < LOWEST) | too_many] = False
    # `flatnonzero` and `divmod` take a third of the time of a `nonzero` with two axes.
    number_of_blocks = reaches.shape[1]
    rows, block = np.divmod(np.flatnonzero(reaches), number_of_blocks)
    item_reaches = blocks[rows, :, block] >= thresholds[rows, None]
    chosen, slot = np.divmod(np.flatnonzero(item_reaches), BLOCK)
    return thresholds, rows[chosen], slot * number_of_blocks + block[chosen]


class ExactSearch(TableSearch):
    """`rounded` is a file of `rounded_items`, if there is one already; `cores` may be used for one
    search."""

    kind = "exact"

    def __init__(
        self,
        table: Floats,
        with_log_sums: bool = False,
        rounded: bytes | None = None,
        cores: int = 1,
    ) -> None:
        self.table = table
        self.with_log_sums = with_log_sums
        self.in_full = 0  # sessions that had to be scored in full
        content = rounded_items(table, with_log_sums) if rounded is None else rounded
        self.cores = cores
        # Several cores read a large catalogue faster; a small one takes less than a millisecond.
        threads = min(cores, MOST_THREADS) if table.size > CACHED else 1
        self.rounded = None
        if content is not None:
            self.rounded = RoundedItems(content, threads, len(table))

    def with_items(self, known: int, rows: Floats) -> "ExactSearch":
        table = np.concatenate([self.table[:known], rows])
        return ExactSearch(table, self.with_log_sums, cores=self.cores)

    def search(self, sessions: Floats, counts: Sequence[int], masks: Masks) -> Found:
        most = max(counts) + MORE_BLOCKS
        if self.rounded is None or len(self.table) < 2 * most * BLOCK:
            return self.search_in_full(sessions, counts, masks)
        scores = self.rounded.scores(sessions)
        thresholds, rows, columns = best_rounded(allowed(scores.scores, masks), most)
        bounds = thresholds + scores.slack  # no skipped item has more
        is_item = columns < len(self.table)  # the others fill up the last block
        rows = rows[is_item]
        columns = columns[is_item]
        vectors = self.table.take(columns, 0)
        exact = np.einsum("cd,cd->c", vectors, sessions.take(rows, 0))
        log_sums = scores.log_sums
        if log_sums is not None:
            # The exact products of the candidates in place of the rounded ones. If R is the share
            # of Z from rounded products, the error of log Z is at most
            # log(1 + R (exp(slack) - 1)); docs/performance.md has what it is in practice.
            in_sum = scores.scores[rows, columns]
            log_sum = log_sums[rows]
            change = np.exp(exact - log_sum) - np.exp(in_sum - log_sum)
            changes = np.bincount(rows, change, len(sessions)).astype(np.float32)
            log_sums = log_sums + np.log1p(changes)
        starts = np.searchsorted(rows, np.arange(len(sessions) + 1))
        found = []
        for row, (k, mask) in enumerate(zip(counts, masks, strict=True)):
            candidates = slice(starts[row], starts[row + 1])
            best = best_of(exact[candidates], k, columns[candidates])
            # A NaN means "not certain".
            is_certain = len(best.scores) == k and bounds[row] < best.scores[-1]
            if not is_certain:
                self.in_full += 1
                in_full = self.search_in_full(sessions[row : row + 1], [k], [mask])
                best = in_full.best[0]
                if log_sums is not None and in_full.log_sums is not None:
                    log_sums[row] = in_full.log_sums[0]
            found.append(best)
        return Found(found, log_sums)

    def search_in_full(
        self, sessions: Floats, counts: Sequence[int], masks: Masks
    ) -> Found:
        """As `search`, from the products of all items."""
        scores = sessions @ self.table.T
        log_sums = log_sums_of(scores) if self.with_log_sums else None
        rows = zip(scores, counts, masks, strict=True)
        return Found([best_allowed(*row) for row in rows], log_sums)


def rounded_name() -> str:
    return "signed" if is_signed() else "unsigned"


def item_vectors_content(table: Floats, similar: Floats, with_log_sums: bool) -> bytes:
    """The content of items.safetensors: the vectors by whose products items are found, also
    rounded, and by whose cosines they are similar."""
    from safetensors.numpy import save

    arrays: dict[str, npt.NDArray[Any]] = {"item_vectors": table}
    rounded = rounded_items(table, with_log_sums)
    if rounded is not None:
        arrays[rounded_name()] = np.frombuffer(rounded, np.uint8)
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
    rounded = arrays.get(rounded_name())
    return table, similar, None if rounded is None else rounded.tobytes()
