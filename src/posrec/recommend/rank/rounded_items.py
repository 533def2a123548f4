"""Item vectors rounded to 8 bits, and the ONNX graph that finds the items with the best products.

A product of bytes reads a quarter of what a product of floats reads. All that goes over every item
is in the graph, and what it gives back is small.
"""

import platform
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from posrec.errors import InputError, imported
from posrec.recommend.rank.best_items import Columns, Floats, Masks, lengths_of
from posrec.recommend.rank.encoder import (
    LARGEST_ONNX_FILE,
    import_runtime,
    open_session,
)

BLOCK = 32  # items; their number is filled up to a multiple of it
LEVELS = 127
SMALLEST = 2e-36  # the largest number of a vector, so that a step is a normal number
# The unsigned byte that stands for 0: x86-64 multiplies signed sessions 10 to 20 times slower.
ZERO_POINT = np.array(128, np.uint8)
ROUNDING = 1e-5  # of |v| |x|: the rounding error of 32-bit sums themselves
LOWEST = np.float32(-1e37)  # below every rounded score
# Is added to the scores of items that must not be found.
LEFT_OUT = np.float32(2 * LOWEST)
FEWEST_ITEMS = 3000  # fewer are scored in full
NOTHING_MASKED = np.zeros((1, 1), np.float32)

# The best of `table` for `sessions`. The products of rounded vectors are in units of the session's
# step. An item is among the K best ones only if its block is among the K blocks with the best
# items. By Cauchy-Schwarz, for the rounded v' = v - f and x' = x - e of an item v and a session x,
#     |v·x - v'·x'|  <=  |v'| |e| + |f| |x|        `slack`
GRAPH = """
<ir_version: 9, opset_import: ["": 18, "com.microsoft": 1, "posrec": 1]>
search (float[B, d] sessions, float[n, d] table, int64[1] K, bool are_masked, float[M, m] masked)
    => (float[B, K] scores, int64[B, K] columns, float[B, 1] bounds {log_sums_output})
{{
    last_axis = Constant <value_ints = [-1]> ()
    sizes = Abs (sessions)
    largest = ReduceMax (sizes, last_axis)
    not_zero = Max (largest, smallest)
    steps = Div (not_zero, most_levels)
    in_steps = Div (sessions, steps)
    levels = Round (in_steps)
    from_zero = Add (levels, zero_level)
    bytes = Cast <to = 2> (from_zero)
    rounded = com.microsoft.MatMulIntegerToFloat (
        bytes, items, one, item_step, zero_of_sessions, zero_of_items, filled)

    values, places, blocks = If (are_masked) <
        then_branch = some_items () => (float[B, K] v1, int64[B, K] p1, int64[B, K] b1)
        {{
            allowed = Add (rounded, masked)
            v1, p1, b1 = posrec.best (allowed, K, in_block)
        }},
        else_branch = all_items () => (float[B, K] v2, int64[B, K] p2, int64[B, K] b2)
        {{
            v2, p2, b2 = posrec.best (rounded, K, in_block)
        }}
    >
    place_of_block = Div (places, in_block)
    slot = Mod (places, in_block)
    block = GatherElements <axis = 1> (blocks, place_of_block)
    first = Mul (block, in_block)
    found = Add (first, slot)

    restored = Mul (levels, steps)
    session_errors = Sub (sessions, restored)
    error_lengths = ReduceL2 (session_errors, last_axis)
    lengths = ReduceL2 (sessions, last_axis)
    of_items = Mul (lengths, item_error)
    of_sessions = Mul (error_lengths, longest)
    slack = Add (of_items, of_sessions)
    in_units = Mul (values, steps)
    least = ReduceMin (in_units, last_axis)
    bounds = Add (least, slack)

    in_table = Min (found, last_item)
    vectors = Gather (table, in_table)
    as_columns = Unsqueeze (sessions, last_axis)
    products = MatMul (vectors, as_columns)
    exact = Squeeze (products, last_axis)
    is_allowed = Greater (values, lowest)
    candidates = Where (is_allowed, exact, nothing)
    scores, order = TopK (candidates, K)
    columns = GatherElements <axis = 1> (found, order)
    {log_sums}
}}
<domain: "posrec", opset_import: ["": 18]>
best (scores, K, in_block) => (values, places, blocks)
{{
    last_axis = Constant <value_ints = [-1]> ()
    same_and_all = Constant <value_ints = [0, -1]> ()
    by_block = Concat <axis = 0> (same_and_all, in_block)
    in_blocks = Reshape (scores, by_block)
    highest = ReduceMax <keepdims = 0> (in_blocks, last_axis)
    least, blocks = TopK <sorted = 0> (highest, K)
    numbers = Unsqueeze (blocks, last_axis)
    of_blocks = GatherND <batch_dims = 1> (in_blocks, numbers)
    candidates = Reshape (of_blocks, same_and_all)
    values, places = TopK <sorted = 0> (candidates, K)
}}
"""
# log Z, in which the best items have their exact scores in place of the rounded ones. If R is the
# share of Z from other items, its error is at most log(1 + R (exp(slack) - 1)); docs/performance.md
# has what it is in practice.
LOG_SUMS = """
    exponents = Mul (rounded, steps)
    exponentials = Exp (exponents)
    sums = ReduceSum (exponentials, last_axis)
    without = Where (is_allowed, in_units, nothing)
    rounded_terms = Exp (without)
    exact_terms = Exp (candidates)
    changes = Sub (exact_terms, rounded_terms)
    change = ReduceSum (changes, last_axis)
    corrected = Add (sums, change)
    log_sums = Log (corrected)
"""


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
    """The content of an ONNX file with GRAPH, for `RoundedItems`.

    None if there are too few items to gain by it, or too many, or they are not finite, or ONNX is
    not installed.
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
    from onnx import numpy_helper, parser

    largest = max(float(np.abs(table).max()), SMALLEST)
    step = np.float32(largest / LEVELS)
    levels = np.rint(table / step)
    restored = levels * step
    longest = lengths_of(restored).max()
    filled = -len(levels) % BLOCK
    zero = np.array(0, np.int8) if is_signed() else ZERO_POINT
    columns = np.pad(levels, ((0, filled), (0, 0))).T + zero  # [d, n']
    is_filled = np.arange(len(levels) + filled) >= len(levels)
    constants = {
        "items": np.ascontiguousarray(columns.astype(zero.dtype)),
        "item_step": step,
        "filled": LEFT_OUT * is_filled,
        "item_error": lengths_of(table - restored).max() + ROUNDING * longest,
        "longest": longest,
        "last_item": np.int64(len(levels) - 1),
        "in_block": np.array([BLOCK]),
        "zero_of_sessions": ZERO_POINT,
        "zero_of_items": zero,
        "zero_level": np.float32(ZERO_POINT),
        "most_levels": np.float32(LEVELS),
        "smallest": np.float32(SMALLEST),
        "lowest": LOWEST,
        "nothing": np.float32(-np.inf),
        "one": np.float32(1),
    }
    text = GRAPH.format(
        log_sums_output=", float[B, 1] log_sums" if with_log_sums else "",
        log_sums=LOG_SUMS if with_log_sums else "",
    )
    model = parser.parse_model(text)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name)
        for name, value in constants.items()
    )
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


class Rounded(NamedTuple):
    """What GRAPH finds for B sessions."""

    # [B, K] the best first; minus infinity where fewer items are allowed
    scores: Floats
    columns: Columns  # [B, K]
    bounds: Floats  # [B] no item that was not found has more
    log_sums: Floats | None  # [B] log Z, if the graph computes it


class RoundedItems:
    """`content` is a file of `rounded_items` for the vectors `table`."""

    def __init__(self, content: bytes, table: Floats, threads: int) -> None:
        self.session = open_session(content, threads)
        self.table = table

    def best(self, sessions: Floats, k: int, masks: Masks) -> Rounded:
        """The k best items for session vectors [B, d]; there must be as many blocks."""
        are_masked = any(mask is not None for mask in masks)
        inputs = {
            "sessions": sessions,
            "table": self.table,
            "K": np.array([k]),
            "are_masked": np.array(are_masked),
            "masked": masked_out(masks) if are_masked else NOTHING_MASKED,
        }
        scores, columns, bounds, *log_sums = self.session.run(None, inputs)
        return Rounded(
            scores, columns, bounds[:, 0], log_sums[0][:, 0] if log_sums else None
        )


def masked_out(masks: Masks) -> Floats:
    """What is added to scores so that items which the masks leave out are not found, [1 or B, n'];
    masks that are the same object share a row."""
    distinct = {id(mask): mask for mask in masks}
    n = max(len(mask) for mask in distinct.values() if mask is not None)
    added = np.zeros((len(distinct), n + -n % BLOCK), np.float32)
    for row, mask in zip(added, distinct.values(), strict=True):
        # Three times quicker than `np.where`, which branches.
        if mask is not None:
            row[:n] = mask
            row -= 1
            row *= -LEFT_OUT
    if len(distinct) == 1:
        return added
    rows = {key: row for row, key in enumerate(distinct)}
    return added[[rows[id(mask)] for mask in masks]]
