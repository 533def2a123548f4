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
backward pass from bfloat16, because gradients need its range. Sums are in single precision. The weights are packed
again after each step (`weights.py`): blocks of [d, d], in the precision in which they are read, filled up to [D, D].
Their order is: five of the nodes, three pairs of the messages, queries, keys and values, the attention's output, F of
the feed-forward's first layer and F of its second.
"""

import triton
import triton.language as tl

from posrec.kernels.session import (
    ENDS,
    as_ends,
    attention_of_head,
    load_block,
    load_edges,
    load_vector,
    load_weight,
    normalized,
    of_normalized,
    positions_of,
    product,
    row_at,
    session_of,
    sigmoid,
    store_block,
    tanh,
)

POSITIONS = 32  # the most positions that an encoding may have
ROW_BLOCKS, END_BLOCKS = 11, 6
ROW_GRADIENTS, END_GRADIENTS = 10, 7


@triton.jit
def encode_kernel(
    table, encoding, items, lengths, alias, latest, edges, begins, slot_of_row, weights, node_bias,
    message_bias, projection_bias, out_bias, gain1, shift1, widen_bias, narrow_bias, gain2, shift2, rows, ends,
    deviations, sessions, width, positions, scale, lambda0, lambda1, lambda2, d: tl.constexpr, D: tl.constexpr,
    L: tl.constexpr, HEADS: tl.constexpr, F: tl.constexpr, POSITIONS: tl.constexpr, ROW: tl.constexpr,
    END: tl.constexpr,
):  # fmt: skip
    # The next block of weights is loaded while the product with this one is computed.
    weight, ahead = load_weight(weights, 0, D), load_weight(weights, 1, D)
    session, place, row, there, slot, item, last = session_of(items, lengths, alias, begins, slot_of_row, width, L)
    column = tl.arange(0, D)
    x = load_block(table, item - 1, there & (item > 0), d, 0, d, D)
    store_block(rows, row, there, ROW, 0, x, d, D)
    # Eq. (7)
    sent = product(x, weight) + load_vector(node_bias, 0, d, D)
    incoming = product(load_edges(edges, session, 0, slot, there, width), sent.to(tl.float16))
    store_block(rows, row, there, ROW, 1, incoming, d, D)
    weight, ahead = ahead, load_weight(weights, 2, D)
    sent = product(x, weight) + load_vector(node_bias, 1, d, D)
    outgoing = product(load_edges(edges, session, 1, slot, there, width), sent.to(tl.float16))
    store_block(rows, row, there, ROW, 2, outgoing, d, D)
    # Eq. (8): what the gates read from x, and from the messages
    weight, ahead = ahead, load_weight(weights, 3, D)
    reset = product(x, weight) + load_vector(node_bias, 2, d, D) + load_vector(message_bias, 0, d, D)
    weight, ahead = ahead, load_weight(weights, 4, D)
    update = product(x, weight) + load_vector(node_bias, 3, d, D) + load_vector(message_bias, 1, d, D)
    weight, ahead = ahead, load_weight(weights, 5, D)
    of_node = product(x, weight) + load_vector(node_bias, 4, d, D)
    store_block(rows, row, there, ROW, 7, of_node, d, D)
    weight, ahead = ahead, load_weight(weights, 6, D)
    reset += product(incoming, weight)
    weight, ahead = ahead, load_weight(weights, 7, D)
    reset = sigmoid(reset + product(outgoing, weight))
    store_block(rows, row, there, ROW, 4, reset, d, D)
    weight, ahead = ahead, load_weight(weights, 8, D)
    update += product(incoming, weight)
    weight, ahead = ahead, load_weight(weights, 9, D)
    update = sigmoid(update + product(outgoing, weight))
    store_block(rows, row, there, ROW, 5, update, d, D)
    weight, ahead = ahead, load_weight(weights, 10, D)
    new = product(incoming, weight) + load_vector(message_bias, 2, d, D)
    weight, ahead = ahead, load_weight(weights, 12, D)
    new = tanh(new + product(outgoing, weight) + reset * of_node)
    store_block(rows, row, there, ROW, 6, new, d, D)
    updated = new + update * (x - new)
    # Eq. (6), and the Transformer, Eq. (9)
    from_first, from_last = positions_of(lengths, latest, session, slot, there, width, positions)
    position = tl.where(column[None, :] < d // 2, from_first[:, None], from_last[:, None])
    inside = there[:, None] & (column[None, :] < d)
    z = updated + tl.load(encoding + position * d + column[None, :], mask=inside, other=0.0)
    store_block(rows, row, there, ROW, 3, z, d, D)
    weight, ahead = ahead, load_weight(weights, 13, D)
    keys = product(z, weight) + load_vector(projection_bias, 1, d, D)
    store_block(rows, row, there, ROW, 8, keys, d, D)
    weight, ahead = ahead, load_weight(weights, 11, D)
    values = product(z, weight) + load_vector(projection_bias, 2, d, D)
    store_block(rows, row, there, ROW, 9, values, d, D)
    end, is_end = session * 2 + tl.arange(0, ENDS), tl.arange(0, ENDS) < 2
    z = as_ends(row_at(z, place, last), row_at(z, place, 0))
    store_block(ends, end, is_end, END, 0, z, d, D)
    weight, ahead = ahead, load_weight(weights, 14, D)
    queries = product(z, weight) + load_vector(projection_bias, 0, d, D)
    store_block(ends, end, is_end, END, 3, queries, d, D)
    attended = tl.zeros([ENDS, D], tl.float32)
    for head in tl.static_range(HEADS):
        _, in_head, shares = attention_of_head(queries, keys, head, there, scale, d, D, HEADS)
        attended += tl.where(in_head, product(shares, values.to(tl.float16)), 0.0)
    store_block(ends, end, is_end, END, 1, attended, d, D)
    weight, ahead = ahead, load_weight(weights, 15, D)
    attended = product(attended, weight) + load_vector(out_bias, 0, d, D)
    hat, inverse = normalized(z + attended, d, D)
    store_block(ends, end, is_end, END, 4, hat, d, D)
    tl.store(deviations + end * 2, inverse, mask=is_end)
    y = hat * load_vector(gain1, 0, d, D) + load_vector(shift1, 0, d, D)
    store_block(ends, end, is_end, END, 2, y, d, D)
    fed = y + load_vector(narrow_bias, 0, d, D)
    for part in tl.static_range(F):
        weight, ahead = ahead, load_weight(weights, 15 + F + part, D)
        hidden = tl.maximum(product(y, weight) + load_vector(widen_bias, part, d, D), 0.0)
        store_block(ends, end, is_end, END, 6 + part, hidden, d, D)
        weight, ahead = ahead, load_weight(weights, 15 + (part + 1) % F, D)
        fed += product(hidden, weight)
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
    of_sessions, of_table, items, lengths, alias, latest, edges, begins, slot_of_row, weights, gain1, gain2, rows, ends,
    deviations, row_gradients, end_gradients, width, positions, scale, lambda0, lambda1, lambda2, d: tl.constexpr,
    D: tl.constexpr, L: tl.constexpr, HEADS: tl.constexpr, F: tl.constexpr, POSITIONS: tl.constexpr,
    ROW: tl.constexpr, END: tl.constexpr, OF_ROW: tl.constexpr, OF_END: tl.constexpr,
):  # fmt: skip
    weight, ahead = load_weight(weights, 15 + F, D), load_weight(weights, 15, D)
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
        of_hidden = tl.where(hidden > 0, product(of_fed, weight), 0.0)
        weight, ahead = ahead, load_weight(weights, 15 + F + part + 1 if part + 1 < F else 14, D)
        store_block(end_gradients, end, is_end, OF_END, 7 + part, of_hidden, d, D)
        of_y += product(of_hidden, weight)
        weight, ahead = ahead, load_weight(weights, 15 + part + 1 if part + 1 < F else 11, D)
    # The first norm and the attention
    hat = load_block(ends, end, is_end, END, 4, d, D)
    store_block(end_gradients, end, is_end, OF_END, 5, of_y * hat, d, D)
    store_block(end_gradients, end, is_end, OF_END, 6, of_y, d, D)
    inverse = tl.load(deviations + end * 2, mask=is_end, other=0.0)
    of_ends = of_normalized(of_y * load_vector(gain1, 0, d, D), hat, inverse, d, D)
    store_block(end_gradients, end, is_end, OF_END, 1, of_ends, d, D)
    of_attended = product(of_ends, weight)
    weight, ahead = ahead, load_weight(weights, 12, D)
    queries = load_block(ends, end, is_end, END, 3, d, D)
    keys, values = load_block(rows, row, there, ROW, 8, d, D), load_block(rows, row, there, ROW, 9, d, D)
    of_queries = tl.zeros([ENDS, D], tl.float32)
    of_keys, of_values = tl.zeros([L, D], tl.float32), tl.zeros([L, D], tl.float32)
    for head in tl.static_range(HEADS):
        own, in_head, shares = attention_of_head(queries, keys, head, there, scale, d, D, HEADS)
        of_head = tl.where(in_head, of_attended, 0.0).to(tl.bfloat16)
        of_shares = product(of_head, tl.trans(values.to(tl.bfloat16)))
        of_logits = shares * (of_shares - tl.sum(of_shares * shares, 1)[:, None]) * scale
        of_queries += tl.where(in_head, product(of_logits, keys.to(tl.bfloat16)), 0.0)
        of_keys += product(tl.trans(of_logits), own.to(tl.bfloat16))
        of_values += product(tl.trans(shares), of_head)
    store_block(end_gradients, end, is_end, OF_END, 0, of_queries, d, D)
    store_block(row_gradients, row, there, OF_ROW, 8, of_keys, d, D)
    store_block(row_gradients, row, there, OF_ROW, 9, of_values, d, D)
    of_ends += product(of_queries, weight)
    weight, ahead = ahead, load_weight(weights, 13, D)
    of_z = product(of_keys, weight)
    weight, ahead = ahead, load_weight(weights, 2, D)
    of_z += product(of_values, weight)
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
    weight, ahead = ahead, load_weight(weights, 3, D)
    of_x += product(of_reset, weight)
    weight, ahead = ahead, load_weight(weights, 4, D)
    of_x += product(of_update, weight)
    weight, ahead = ahead, load_weight(weights, 5, D)
    of_x += product(of_new * reset, weight)
    of_reset, of_update, of_new = of_reset.to(tl.bfloat16), of_update.to(tl.bfloat16), of_new.to(tl.bfloat16)
    # Eq. (7), incoming and outgoing
    for direction in tl.static_range(2):
        weight, ahead = ahead, load_weight(weights, 7 + direction, D)
        received = product(of_reset, weight)
        weight, ahead = ahead, load_weight(weights, 9 + direction, D)
        received += product(of_update, weight)
        weight, ahead = ahead, load_weight(weights, direction, D)
        received += product(of_new, weight)
        turned = tl.trans(load_edges(edges, session, direction, slot, there, width))
        of_sent = product(turned, received.to(tl.bfloat16))
        store_block(row_gradients, row, there, OF_ROW, direction, of_sent, d, D)
        weight, ahead = ahead, load_weight(weights, 6, D)
        of_x += product(of_sent, weight)
    mask = there[:, None] & (item[:, None] > 0) & (column[None, :] < d)
    tl.atomic_add(of_table + (item[:, None] - 1) * d + column[None, :], of_x, mask=mask)
