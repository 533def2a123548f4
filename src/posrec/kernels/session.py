"""What the two kernels of `encoder.py` have in common: the session of a program, and operations on its rows.

A block of rows is [L, D] or, for the two ends of a session, [ENDS, D]. Columns from d on, and rows that the session
does not have, are zeros where they are loaded and are not stored.
"""

import triton
import triton.language as tl

ENDS = tl.constexpr(16)  # rows of a block for the two ends: the fewest that the matrix units multiply


@triton.jit
def load_block(matrix, row, there, stride, block, d: tl.constexpr, D: tl.constexpr):
    """Block `block` of d columns of some rows, filled up with zeros to D."""
    column = tl.arange(0, D)
    mask = there[:, None] & (column[None, :] < d)
    return tl.load(matrix + row[:, None] * stride + block * d + column[None, :], mask=mask, other=0.0)


@triton.jit
def store_block(matrix, row, there, stride, block, values, d: tl.constexpr, D: tl.constexpr):
    column = tl.arange(0, D)
    mask = there[:, None] & (column[None, :] < d)
    tl.store(matrix + row[:, None] * stride + block * d + column[None, :], values, mask=mask)


@triton.jit
def load_weight(weights, number, D: tl.constexpr):
    """Block `number` of the packed weights, [D, D]."""
    place = tl.arange(0, D)
    return tl.load(weights + number * D * D + place[:, None] * D + place[None, :])


@triton.jit
def load_vector(vector, block, d: tl.constexpr, D: tl.constexpr):
    """[1, D]"""
    column = tl.arange(0, D)
    return tl.load(vector + block * d + column, mask=column < d, other=0.0)[None, :]


@triton.jit
def product(x, y):
    """x y, with x rounded as y is."""
    return tl.dot(x.to(y.dtype), y)


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp(-x))


@triton.jit
def tanh(x):
    return 2 * sigmoid(2 * x) - 1


@triton.jit
def row_at(block, place, at):
    """Row `at` of a block, [D]."""
    return tl.sum(tl.where(place[:, None] == at, block, 0.0), 0)


@triton.jit
def as_ends(last, first):
    """Two vectors [D] as the rows of a block [ENDS, D]."""
    end = tl.arange(0, ENDS)[:, None]
    return tl.where(end == 0, last[None, :], tl.where(end == 1, first[None, :], 0.0))


@triton.jit
def normalized(x, d: tl.constexpr, D: tl.constexpr):
    """A layer norm's result before gain and shift, and 1 / standard deviation."""
    inside = tl.arange(0, D)[None, :] < d
    centred = tl.where(inside, x - (tl.sum(x, 1) / d)[:, None], 0.0)
    inverse = 1 / tl.sqrt(tl.sum(centred * centred, 1) / d + 1e-5)
    return centred * inverse[:, None], inverse


@triton.jit
def of_normalized(gradient, hat, inverse, d: tl.constexpr, D: tl.constexpr):
    """The gradient of a layer norm's input."""
    inside = tl.arange(0, D)[None, :] < d
    mean, along = tl.sum(gradient, 1) / d, tl.sum(gradient * hat, 1) / d
    return tl.where(inside, (gradient - mean[:, None] - hat * along[:, None]) * inverse[:, None], 0.0)


@triton.jit
def attention_of_head(queries, keys, head, there, scale, d: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr):
    """The queries in the columns of one head, whether a column is one of them, and the attention weights."""
    column = tl.arange(0, D)[None, :]
    in_head = (column >= head * (d // HEADS)) & (column < (head + 1) * (d // HEADS))
    queries = tl.where(in_head, queries, 0.0)
    logits = tl.where(there[None, :], product(queries, tl.trans(keys.to(tl.float16))) * scale, -float("inf"))
    weights = tl.exp(logits - tl.max(logits, 1)[:, None])
    return queries, in_head, weights / tl.sum(weights, 1)[:, None]


@triton.jit
def load_edges(edges, session, direction, slot, there, width):
    """The message weights of one direction, [L, L]; row: receiver."""
    both = there[:, None] & there[None, :]
    where = ((session * 2 + direction) * width + slot[:, None]) * width + slot[None, :]
    return tl.load(edges + where, mask=both, other=0.0)


@triton.jit
def session_of(items, lengths, alias, begins, slot_of_row, width, L: tl.constexpr):
    """The session of this program: its rows, their slots and items, and the row of its last click."""
    session, place = tl.program_id(0), tl.arange(0, L)
    begin = tl.load(begins + session)
    there = place < tl.load(begins + session + 1) - begin
    slot = tl.load(slot_of_row + begin + place, mask=there, other=0) - session * width
    item = tl.load(items + session * width + slot, mask=there, other=0)
    last_slot = tl.load(alias + session * width + tl.load(lengths + session) - 1)
    last = tl.sum(tl.where(there & (slot == last_slot), place, 0), 0)
    return session, place, begin + place, there, slot, item, last


@triton.jit
def positions_of(lengths, latest, session, slot, there, width, positions):
    """Of each node: that of its first click from the session's beginning, and that of its latest from the end."""
    from_end = tl.load(lengths + session) - 1 - tl.load(latest + session * width + slot, mask=there, other=0)
    return tl.minimum(slot, positions - 1), tl.minimum(tl.maximum(from_end, 0), positions - 1)
