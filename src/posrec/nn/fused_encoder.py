"""PosRec's encoder in a training step on a GPU, by kernels of its own (`kernels/encoder.py`).

A step has about fifteen kernels instead of sixty, and takes 0.14 ms instead of 0.25 where batches are small.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posrec.kernels import block_of
from posrec.kernels.encoder import (
    END_BLOCKS,
    END_GRADIENTS,
    POSITIONS,
    ROW_BLOCKS,
    ROW_GRADIENTS,
    encode_backward_kernel,
    encode_kernel,
)
from posrec.kernels.launch import launch
from posrec.kernels.weights import ManyAdam, PackedWeights, Product, gradients, tiles
from posrec.nn.batch import SessionBatch
from posrec.nn.gated_graph import GatedGraph
from posrec.nn.transformer import TransformerLayer

WARPS = 8


@dataclass(frozen=True)
class Kept:
    """What the forward pass leaves for the backward pass."""

    batch: SessionBatch
    rows: Tensor
    ends: Tensor
    deviations: Tensor


class FusedEncoder:
    """Session vectors from the table, a gated graph layer, the encoding `ldpe`, one Transformer layer and the weights
    lambda of Eq. (10), for batches of `count` sessions with their graphs and packing.

    The gradients of all weights are in `flat`.
    """

    sparse = True

    def __init__(
        self, table: nn.Parameter, graph: GatedGraph, encoding: nn.Parameter, layer: TransformerLayer,
        lambdas: tuple[float, float, float], count: int, optimizer: torch.optim.Optimizer,
    ) -> None:  # fmt: skip
        self.table, self.encoding, self.lambdas = table, encoding, lambdas
        d, device = table.shape[1], table.device
        self.d, self.heads, self.parts = d, layer.heads, layer.widen.out_features // d
        self.wide, self.scale = block_of(d), (d // layer.heads) ** -0.5
        norms = (layer.after_attention, layer.after_feed_forward)
        modules: list[nn.Linear | nn.LayerNorm] = [
            graph.from_node, graph.from_message, layer.queries_keys_values, layer.out, norms[0], layer.widen,
            layer.narrow, norms[1],
        ]  # fmt: skip
        self.weights: list[Tensor] = [one for module in modules for one in (module.weight, module.bias)]
        self.vectors = [one for one in self.weights if one.dim() == 1]
        self.packed = PackedWeights([one for one in self.weights if one.dim() == 2], d, self.wide)
        self.gains = [norm.weight for norm in norms]
        trained = [*self.weights, encoding]
        self.flat = torch.zeros(sum(one.numel() for one in trained), device=device)
        self.tiles, self.adam = tiles(self.products(), device), ManyAdam(trained, self.flat, optimizer)
        self.of_table = torch.zeros_like(table)  # zeros between two steps
        self.number_of_ends = torch.tensor([2 * count], device=device)

    def products(self) -> list[Product]:
        """What `flat` consists of: the gradients in the order of `weights`, and the encoding's."""
        d, parts, begins, begin = self.d, self.parts, [], 0
        for one in [*self.weights, self.encoding]:
            begins.append(begin)
            begin += one.numel()
        node, node_bias, message, message_bias, projection, projection_bias, out, out_bias, *rest = begins
        gain1, shift1, widen, widen_bias, narrow, narrow_bias, gain2, shift2, encoding = rest
        positions, half = len(self.encoding), d // 2
        first, last = ROW_GRADIENTS * d, ROW_GRADIENTS * d + POSITIONS  # the one-hot positions
        sums = ((3, gain2), (4, shift2), (5, gain1), (6, shift1))
        return [
            Product(0, 0, 5 * d, 0, d, node, d, node_bias),
            Product(0, 5 * d, 3 * d, d, 2 * d, message, 2 * d, message_bias),
            Product(0, 8 * d, 2 * d, 3 * d, d, projection + d * d, d, projection_bias + d),
            Product(1, 0, d, 0, d, projection, d, projection_bias),
            Product(1, d, d, d, d, out, d, out_bias),
            Product(1, END_GRADIENTS * d, parts * d, 2 * d, d, widen, d, widen_bias),
            Product(1, 2 * d, d, END_BLOCKS * d, parts * d, narrow, parts * d, narrow_bias),
            *(Product(1, block * d, d, 0, 0, 0, 0, place) for block, place in sums),
            Product(0, first, positions, 10 * d, half, encoding, d, -1),
            Product(0, last, positions, 10 * d + half, d - half, encoding + half, d, -1),
        ]

    def begin(self) -> None:
        self.packed.update()

    def encode(self, batch: SessionBatch) -> Tensor:
        assert batch.packing is not None
        count, rows, d, new = len(batch.lengths), len(batch.packing.slot_of_row), self.d, self.table.new_empty
        self.kept = Kept(
            batch, new(rows, ROW_BLOCKS * d), new(2 * count, (END_BLOCKS + self.parts) * d), new(2 * count, 2)
        )
        sessions = new(count, d)
        launch(encode_kernel, count)(
            self.table, self.encoding, *sessions_of(batch), self.packed.forward,
            *self.vectors, self.kept.rows, self.kept.ends, self.kept.deviations, sessions, *self.numbers(batch),
            **self.sizes(batch), num_warps=WARPS,
        )  # fmt: skip
        return sessions

    def backward(self, gradient: Tensor) -> Tensor:
        kept, d = self.kept, self.d
        row_gradients = kept.rows.new_empty(len(kept.rows), ROW_GRADIENTS * d + 2 * POSITIONS)
        end_gradients = kept.rows.new_empty(len(kept.ends), (END_GRADIENTS + self.parts) * d)
        launch(encode_backward_kernel, len(gradient))(
            gradient, self.of_table, *sessions_of(kept.batch), self.packed.backward, *self.gains, kept.rows,
            kept.ends, kept.deviations, row_gradients, end_gradients, *self.numbers(kept.batch),
            **self.sizes(kept.batch), OF_ROW=row_gradients.stride(0), OF_END=end_gradients.stride(0), num_warps=WARPS,
        )  # fmt: skip
        self.gradients = (row_gradients, end_gradients)
        return self.of_table

    def update(self, options: dict[str, Any], step: Tensor) -> None:
        kept = self.kept
        assert kept.batch.packing is not None
        counts = (kept.batch.packing.begins[-1:], self.number_of_ends)
        gradients(self.tiles, self.gradients, (kept.rows, kept.ends), counts, self.flat)
        self.adam.update(options, step)
        self.packed.update()

    def numbers(self, batch: SessionBatch) -> tuple[float, ...]:
        return batch.items.shape[1], len(self.encoding), self.scale, *self.lambdas

    def sizes(self, batch: SessionBatch) -> dict[str, int]:
        return {
            "d": self.d, "D": self.wide, "L": block_of(batch.items.shape[1]),
            "HEADS": self.heads, "F": self.parts, "POSITIONS": POSITIONS, "ROW": ROW_BLOCKS * self.d,
            "END": (END_BLOCKS + self.parts) * self.d,
        }  # fmt: skip


def sessions_of(batch: SessionBatch) -> tuple[Tensor, ...]:
    """What the kernels read of the sessions."""
    graph, packing = batch.graph, batch.packing
    assert graph is not None
    assert packing is not None
    assert graph.weights is not None
    of_graph = (graph.alias.contiguous(), graph.latest.contiguous(), graph.weights.contiguous())
    return batch.items.contiguous(), batch.lengths, *of_graph, packing.begins, packing.slot_of_row
