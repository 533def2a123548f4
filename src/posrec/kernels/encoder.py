"""PosRec's encoder, from the item table to the session vectors h: one kernel forward and one backward.

All that a session's vector depends on is in the session and in the weights, so a program computes one session and keeps
it on the chip; the weights come from the cache that all programs share. The equations are those of `nn/gated_graph.py`
(Eq. (7), (8)), `nn/transformer.py` (Eq. (9)) and `models/posrec.py` (Eq. (10)). After the attention only two ends of a
session are computed, its last node and its first.

The gradient of a weight is a sum over all sessions, dW = dy^T x. The forward kernel stores every x, the backward kernel
every dy, and `weights.py` computes all sums. Both store blocks of d columns side by side:

    rows           x, messages in and out, z = x' + encoding, reset, update and new of the GRU, the new gate's share of
    [T, 11 d]      x, keys, values, and dz from the backward pass
    ends           rows 2 b (last) and 2 b + 1 (first): z, attended, y after the first norm, queries, both norms before
    [2 B, ..]      gain and shift, and F blocks of the feed-forward's hidden layer
    row_gradients  of the five products of x, the three of the messages, of keys and values; then each node's two
    [T, ..]        positions as one-hot vectors, whose product with dz is the encoding's gradient
    end_gradients  of queries, the attention's output, the feed-forward's output, gain and shift of the second norm and
    [2 B, ..]      the first, and the F blocks of the hidden layer

Products of the forward pass are computed from factors in half precision, which has the ten bits of TF32; those of the
backward pass from bfloat16, because gradients need its range. Sums are in single precision.
"""

import triton
import triton.language as tl

ENDS = tl.constexpr(16)  # rows of a block for the two ends: the fewest that the matrix units multiply
POSITIONS = 32  # the most positions that an encoding may have
ROW_BLOCKS, END_BLOCKS = 11, 6
ROW_GRADIENTS, END_GRADIENTS = 10, 7


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
def load_weight(weight, stride, row, column, d: tl.constexpr, D: tl.constexpr):
    """The block [d, d] in row and column `row` and `column` of blocks, as [D, D]."""
    place = tl.arange(0, D)
    return load_block(weight + row * d * stride, place, place < d, stride, column, d, D)


@triton.jit
def load_vector(vector, block, d: tl.constexpr, D: tl.constexpr):
    """[1, D]"""
    column = tl.arange(0, D)
    return tl.load(vector + block * d + column, mask=column < d, other=0.0)[None, :]


@triton.jit
def forward(x, weight):
    """x W^T"""
    return tl.dot(x.to(tl.float16), tl.trans(weight.to(tl.float16)))


@triton.jit
def backward(gradient, weight):
    """dy W"""
    return tl.dot(gradient.to(tl.bfloat16), weight.to(tl.bfloat16))


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
    logits = tl.where(there[None, :], forward(queries, keys) * scale, -float("inf"))
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


@triton.jit
def encode_kernel(
    table, encoding, items, lengths, alias, latest, edges, begins, slot_of_row, node, node_bias, message, message_bias,
    projection, projection_bias, out, out_bias, gain1, shift1, widen, widen_bias, narrow, narrow_bias, gain2, shift2,
    rows, ends, deviations, sessions, width, positions, scale, lambda0, lambda1, lambda2, d: tl.constexpr,
    D: tl.constexpr, L: tl.constexpr, HEADS: tl.constexpr, F: tl.constexpr, POSITIONS: tl.constexpr,
    ROW: tl.constexpr, END: tl.constexpr,
):  # fmt: skip
    session, place, row, there, slot, item, last = session_of(items, lengths, alias, begins, slot_of_row, width, L)
    column = tl.arange(0, D)
    x = load_block(table, item - 1, there & (item > 0), d, 0, d, D)
    store_block(rows, row, there, ROW, 0, x, d, D)
    # Eq. (7)
    sent = forward(x, load_weight(node, d, 0, 0, d, D)) + load_vector(node_bias, 0, d, D)
    incoming = tl.dot(load_edges(edges, session, 0, slot, there, width).to(tl.float16), sent.to(tl.float16))
    store_block(rows, row, there, ROW, 1, incoming, d, D)
    sent = forward(x, load_weight(node, d, 1, 0, d, D)) + load_vector(node_bias, 1, d, D)
    outgoing = tl.dot(load_edges(edges, session, 1, slot, there, width).to(tl.float16), sent.to(tl.float16))
    store_block(rows, row, there, ROW, 2, outgoing, d, D)
    # Eq. (8)
    reset = forward(x, load_weight(node, d, 2, 0, d, D)) + load_vector(node_bias, 2, d, D)
    reset += forward(incoming, load_weight(message, 2 * d, 0, 0, d, D)) + load_vector(message_bias, 0, d, D)
    reset = sigmoid(reset + forward(outgoing, load_weight(message, 2 * d, 0, 1, d, D)))
    store_block(rows, row, there, ROW, 4, reset, d, D)
    update = forward(x, load_weight(node, d, 3, 0, d, D)) + load_vector(node_bias, 3, d, D)
    update += forward(incoming, load_weight(message, 2 * d, 1, 0, d, D)) + load_vector(message_bias, 1, d, D)
    update = sigmoid(update + forward(outgoing, load_weight(message, 2 * d, 1, 1, d, D)))
    store_block(rows, row, there, ROW, 5, update, d, D)
    of_node = forward(x, load_weight(node, d, 4, 0, d, D)) + load_vector(node_bias, 4, d, D)
    store_block(rows, row, there, ROW, 7, of_node, d, D)
    new = forward(incoming, load_weight(message, 2 * d, 2, 0, d, D)) + load_vector(message_bias, 2, d, D)
    new = tanh(new + forward(outgoing, load_weight(message, 2 * d, 2, 1, d, D)) + reset * of_node)
    store_block(rows, row, there, ROW, 6, new, d, D)
    updated = new + update * (x - new)
    # Eq. (6), and the Transformer, Eq. (9)
    from_first, from_last = positions_of(lengths, latest, session, slot, there, width, positions)
    position = tl.where(column[None, :] < d // 2, from_first[:, None], from_last[:, None])
    inside = there[:, None] & (column[None, :] < d)
    z = updated + tl.load(encoding + position * d + column[None, :], mask=inside, other=0.0)
    store_block(rows, row, there, ROW, 3, z, d, D)
    keys = forward(z, load_weight(projection, d, 1, 0, d, D)) + load_vector(projection_bias, 1, d, D)
    store_block(rows, row, there, ROW, 8, keys, d, D)
    values = forward(z, load_weight(projection, d, 2, 0, d, D)) + load_vector(projection_bias, 2, d, D)
    store_block(rows, row, there, ROW, 9, values, d, D)
    end, is_end = session * 2 + tl.arange(0, ENDS), tl.arange(0, ENDS) < 2
    z = as_ends(row_at(z, place, last), row_at(z, place, 0))
    store_block(ends, end, is_end, END, 0, z, d, D)
    queries = forward(z, load_weight(projection, d, 0, 0, d, D)) + load_vector(projection_bias, 0, d, D)
    store_block(ends, end, is_end, END, 3, queries, d, D)
    attended = tl.zeros([ENDS, D], tl.float32)
    for head in tl.static_range(HEADS):
        _, in_head, weights = attention_of_head(queries, keys, head, there, scale, d, D, HEADS)
        attended += tl.where(in_head, tl.dot(weights.to(tl.float16), values.to(tl.float16)), 0.0)
    store_block(ends, end, is_end, END, 1, attended, d, D)
    attended = forward(attended, load_weight(out, d, 0, 0, d, D)) + load_vector(out_bias, 0, d, D)
    hat, inverse = normalized(z + attended, d, D)
    store_block(ends, end, is_end, END, 4, hat, d, D)
    tl.store(deviations + end * 2, inverse, mask=is_end)
    y = hat * load_vector(gain1, 0, d, D) + load_vector(shift1, 0, d, D)
    store_block(ends, end, is_end, END, 2, y, d, D)
    fed = y + load_vector(narrow_bias, 0, d, D)
    for part in tl.static_range(F):
        hidden = forward(y, load_weight(widen, d, part, 0, d, D)) + load_vector(widen_bias, part, d, D)
        hidden = tl.maximum(hidden, 0.0)
        store_block(ends, end, is_end, END, 6 + part, hidden, d, D)
        fed += forward(hidden, load_weight(narrow, F * d, 0, part, d, D))
    hat, inverse = normalized(fed, d, D)
    store_block(ends, end, is_end, END, 5, hat, d, D)
    tl.store(deviations + end * 2 + 1, inverse, mask=is_end)
    read = hat * load_vector(gain2, 0, d, D) + load_vector(shift2, 0, d, D)
    # Eq. (10)
    both = tl.arange(0, ENDS)
    h = lambda0 * row_at(updated, place, last) + lambda1 * row_at(read, both, 0) + lambda2 * row_at(read, both, 1)
    tl.store(sessions + session * d + column, h, mask=column < d)


@triton.jit
def encode_backward_kernel(
    of_sessions, of_table, items, lengths, alias, latest, edges, begins, slot_of_row, node, message, projection, out,
    gain1, widen, narrow, gain2, rows, ends, deviations, row_gradients, end_gradients, width, positions, scale,
    lambda0, lambda1, lambda2, d: tl.constexpr, D: tl.constexpr, L: tl.constexpr, HEADS: tl.constexpr,
    F: tl.constexpr, POSITIONS: tl.constexpr, ROW: tl.constexpr, END: tl.constexpr, OF_ROW: tl.constexpr,
    OF_END: tl.constexpr,
):  # fmt: skip
    session, place, row, there, slot, item, last = session_of(items, lengths, alias, begins, slot_of_row, width, L)
    column = tl.arange(0, D)
    end, is_end = session * 2 + tl.arange(0, ENDS), tl.arange(0, ENDS) < 2
    h = tl.load(of_sessions + session * d + column, mask=column < d, other=0.0)
    # Eq. (9): the second norm and the feed-forward
    of_read, hat = as_ends(lambda1 * h, lambda2 * h), load_block(ends, end, is_end, END, 5, d, D)
    store_block(end_gradients, end, is_end, OF_END, 3, of_read * hat, d, D)
    store_block(end_gradients, end, is_end, OF_END, 4, of_read, d, D)
    inverse = tl.load(deviations + end * 2 + 1, mask=is_end, other=0.0)
    of_fed = of_normalized(of_read * load_vector(gain2, 0, d, D), hat, inverse, d, D)
    store_block(end_gradients, end, is_end, OF_END, 2, of_fed, d, D)
    of_y = of_fed
    for part in tl.static_range(F):
        hidden = load_block(ends, end, is_end, END, 6 + part, d, D)
        of_hidden = tl.where(hidden > 0, backward(of_fed, load_weight(narrow, F * d, 0, part, d, D)), 0.0)
        store_block(end_gradients, end, is_end, OF_END, 7 + part, of_hidden, d, D)
        of_y += backward(of_hidden, load_weight(widen, d, part, 0, d, D))
    # The first norm and the attention
    hat = load_block(ends, end, is_end, END, 4, d, D)
    store_block(end_gradients, end, is_end, OF_END, 5, of_y * hat, d, D)
    store_block(end_gradients, end, is_end, OF_END, 6, of_y, d, D)
    inverse = tl.load(deviations + end * 2, mask=is_end, other=0.0)
    of_ends = of_normalized(of_y * load_vector(gain1, 0, d, D), hat, inverse, d, D)
    store_block(end_gradients, end, is_end, OF_END, 1, of_ends, d, D)
    of_attended = backward(of_ends, load_weight(out, d, 0, 0, d, D))
    queries = load_block(ends, end, is_end, END, 3, d, D)
    keys, values = load_block(rows, row, there, ROW, 8, d, D), load_block(rows, row, there, ROW, 9, d, D)
    of_queries = tl.zeros([ENDS, D], tl.float32)
    of_keys, of_values = tl.zeros([L, D], tl.float32), tl.zeros([L, D], tl.float32)
    for head in tl.static_range(HEADS):
        own, in_head, weights = attention_of_head(queries, keys, head, there, scale, d, D, HEADS)
        of_head = tl.where(in_head, of_attended, 0.0)
        of_weights = backward(of_head, tl.trans(values))
        of_logits = weights * (of_weights - tl.sum(of_weights * weights, 1)[:, None]) * scale
        of_queries += tl.where(in_head, backward(of_logits, keys), 0.0)
        of_keys += backward(tl.trans(of_logits), own)
        of_values += backward(tl.trans(weights), of_head)
    store_block(end_gradients, end, is_end, OF_END, 0, of_queries, d, D)
    store_block(row_gradients, row, there, OF_ROW, 8, of_keys, d, D)
    store_block(row_gradients, row, there, OF_ROW, 9, of_values, d, D)
    of_ends += backward(of_queries, load_weight(projection, d, 0, 0, d, D))
    of_z = backward(of_keys, load_weight(projection, d, 1, 0, d, D))
    of_z += backward(of_values, load_weight(projection, d, 2, 0, d, D))
    both = tl.arange(0, ENDS)
    of_z += tl.where(place[:, None] == last, row_at(of_ends, both, 0)[None, :], 0.0)
    of_z += tl.where(place[:, None] == 0, row_at(of_ends, both, 1)[None, :], 0.0)
    store_block(rows, row, there, ROW, 10, of_z, d, D)
    from_first, from_last = positions_of(lengths, latest, session, slot, there, width, positions)
    position = tl.arange(0, POSITIONS)[None, :]
    where = row_gradients + row[:, None] * OF_ROW + 10 * d + position
    tl.store(where, (from_first[:, None] == position).to(tl.float32), mask=there[:, None] & (position >= 0))
    tl.store(where + POSITIONS, (from_last[:, None] == position).to(tl.float32), mask=there[:, None] & (position >= 0))
    # Eq. (8)
    of_updated = of_z + tl.where(place[:, None] == last, lambda0 * h[None, :], 0.0)
    x, new = load_block(rows, row, there, ROW, 0, d, D), load_block(rows, row, there, ROW, 6, d, D)
    reset, update = load_block(rows, row, there, ROW, 4, d, D), load_block(rows, row, there, ROW, 5, d, D)
    of_x = of_updated * update
    of_new = of_updated * (1 - update) * (1 - new * new)
    of_update = of_updated * (x - new) * update * (1 - update)
    of_reset = of_new * load_block(rows, row, there, ROW, 7, d, D) * reset * (1 - reset)
    store_block(row_gradients, row, there, OF_ROW, 2, of_reset, d, D)
    store_block(row_gradients, row, there, OF_ROW, 3, of_update, d, D)
    store_block(row_gradients, row, there, OF_ROW, 4, of_new * reset, d, D)
    store_block(row_gradients, row, there, OF_ROW, 5, of_reset, d, D)
    store_block(row_gradients, row, there, OF_ROW, 6, of_update, d, D)
    store_block(row_gradients, row, there, OF_ROW, 7, of_new, d, D)
    of_x += backward(of_reset, load_weight(node, d, 2, 0, d, D))
    of_x += backward(of_update, load_weight(node, d, 3, 0, d, D))
    of_x += backward(of_new * reset, load_weight(node, d, 4, 0, d, D))
    # Eq. (7), incoming and outgoing
    for direction in tl.static_range(2):
        received = backward(of_reset, load_weight(message, 2 * d, 0, direction, d, D))
        received += backward(of_update, load_weight(message, 2 * d, 1, direction, d, D))
        received += backward(of_new, load_weight(message, 2 * d, 2, direction, d, D))
        of_sent = backward(tl.trans(load_edges(edges, session, direction, slot, there, width)), received)
        store_block(row_gradients, row, there, OF_ROW, direction, of_sent, d, D)
        of_x += backward(of_sent, load_weight(node, d, direction, 0, d, D))
    mask = there[:, None] & (item[:, None] > 0) & (column[None, :] < d)
    tl.atomic_add(of_table + (item[:, None] - 1) * d + column[None, :], of_x, mask=mask)
