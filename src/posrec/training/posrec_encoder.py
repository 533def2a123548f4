"""PosRec's encoder by kernels of its own, `kernels/encoder.py`: a step has a sixth of the kernels of a compiled one."""

from dataclasses import dataclass
from typing import Any, TypeGuard, cast

import torch
import triton
from torch import Tensor

from posrec.encodings.schemes import LDPE
from posrec.kernels.encoder import (
    END_BLOCKS,
    END_GRADIENTS,
    POSITIONS,
    ROW_BLOCKS,
    ROW_GRADIENTS,
    encode_backward_kernel,
    encode_kernel,
)
from posrec.kernels.weights import ManyAdam, PackedWeights, Product, gradients, tiles
from posrec.models.base import SessionModel
from posrec.models.posrec import PosRec
from posrec.nn.batch import SessionBatch
from posrec.nn.transformer import TransformerLayer

WIDEST, LONGEST = 128, 32  # dimensions and clicks that a program has room for
WARPS = 8


def is_supported(model: SessionModel, longest: int) -> TypeGuard[PosRec]:
    """Whether the kernels compute this model's encoder, for sessions of at most `longest` clicks."""
    if type(model) is not PosRec or type(model.encoding) is not LDPE:
        return False
    config = model.config
    fits = 16 <= config.d <= WIDEST and longest <= LONGEST and config.max_length <= POSITIONS
    return fits and config.layers == 1 and config.dropout == 0


@dataclass(frozen=True)
class Kept:
    """What the forward pass leaves for the backward pass."""

    batch: SessionBatch
    rows: Tensor
    ends: Tensor
    deviations: Tensor


class PosRecEncoder:
    """The encoder of a `FusedStep`, for batches of `count` sessions. The gradients of its weights are in `flat`."""

    def __init__(self, model: PosRec, count: int, optimizer: torch.optim.Optimizer) -> None:
        self.model, config = model, model.config
        self.d, self.heads, self.parts = config.d, config.heads, config.feed_forward
        self.wide, self.scale = max(16, triton.next_power_of_2(config.d)), (config.d // config.heads) ** -0.5
        self.weights = list_weights(model)
        layer = cast(TransformerLayer, model.transformer[0])
        self.gains = (layer.after_attention.weight, layer.after_feed_forward.weight)
        self.table, self.encoding = model.embedding.weight, cast(LDPE, model.encoding).table
        device = self.table.device
        self.of_table = torch.zeros_like(self.table)  # zeros between two steps
        self.is_read = torch.zeros(len(self.table), dtype=torch.int8, device=device)  # whether the batch has the item
        trained = [*self.weights, self.encoding]
        self.ends = torch.tensor([2 * count], device=device)
        self.flat = torch.zeros(sum(one.numel() for one in trained), device=device)
        self.tiles = tiles(self.products(), device)
        self.adam = ManyAdam(trained, self.flat, optimizer)
        self.vectors = [one for one in self.weights if one.dim() == 1]
        self.packed = PackedWeights([one for one in self.weights if one.dim() == 2], self.d, self.wide)

    def products(self) -> list[Product]:
        """What `flat` consists of, in the order of `list_weights`, and the encoding's table."""
        d, parts, begins, begin = self.d, self.parts, [], 0
        for one in [*self.weights, self.encoding]:
            begins.append(begin)
            begin += one.numel()
        node, node_bias, message, message_bias, projection, projection_bias, out, out_bias, *rest = begins
        gain1, shift1, widen, widen_bias, narrow, narrow_bias, gain2, shift2, encoding = rest
        positions, half = len(self.encoding), d // 2
        first, last = ROW_GRADIENTS * d, ROW_GRADIENTS * d + POSITIONS  # the one-hot positions
        return [
            Product(0, 0, 5 * d, 0, d, node, d, node_bias),
            Product(0, 5 * d, 3 * d, d, 2 * d, message, 2 * d, message_bias),
            Product(0, 8 * d, 2 * d, 3 * d, d, projection + d * d, d, projection_bias + d),
            Product(1, 0, d, 0, d, projection, d, projection_bias),
            Product(1, d, d, d, d, out, d, out_bias),
            Product(1, END_GRADIENTS * d, parts * d, 2 * d, d, widen, d, widen_bias),
            Product(1, 2 * d, d, END_BLOCKS * d, parts * d, narrow, parts * d, narrow_bias),
            *(
                Product(1, block * d, d, 0, 0, 0, 0, place)
                for block, place in ((3, gain2), (4, shift2), (5, gain1), (6, shift1))
            ),
            Product(0, first, positions, 10 * d, half, encoding, d, -1),
            Product(0, last, positions, 10 * d + half, d - half, encoding + half, d, -1),
        ]

    def encode(self, batch: SessionBatch) -> Tensor:
        _, packing = self.model.graph_and_packing(batch)
        count, rows, d = len(batch.lengths), len(packing.slot_of_row), self.d
        new = self.table.new_empty
        self.kept = Kept(
            batch, new(rows, ROW_BLOCKS * d), new(2 * count, (END_BLOCKS + self.parts) * d), new(2 * count, 2)
        )
        sessions = new(count, d)
        self.packed.update()
        self.is_read.zero_()
        encode_kernel[(count,)](
            self.table, self.is_read, self.encoding, *self.sessions_of(batch), self.packed.forward, *self.vectors,
            self.kept.rows, self.kept.ends, self.kept.deviations, sessions, *self.numbers(batch), **self.sizes(batch),
            num_warps=WARPS,
        )  # fmt: skip
        return sessions

    def backward(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        kept, d = self.kept, self.d
        row_gradients = kept.rows.new_empty(len(kept.rows), ROW_GRADIENTS * d + 2 * POSITIONS)
        end_gradients = kept.rows.new_empty(len(kept.ends), (END_GRADIENTS + self.parts) * d)
        encode_backward_kernel[(len(gradient),)](
            gradient, self.of_table, *self.sessions_of(kept.batch), self.packed.backward, *self.gains, kept.rows,
            kept.ends, kept.deviations, row_gradients, end_gradients, *self.numbers(kept.batch),
            **self.sizes(kept.batch), OF_ROW=row_gradients.stride(0), OF_END=end_gradients.stride(0), num_warps=WARPS,
        )  # fmt: skip
        self.gradients = (row_gradients, end_gradients)
        return self.of_table, self.is_read

    def update(self, options: dict[str, Any], step: Tensor) -> None:
        kept = self.kept
        _, packing = self.model.graph_and_packing(kept.batch)
        counts = (packing.begins[-1:], self.ends)
        gradients(self.tiles, self.gradients, (kept.rows, kept.ends), counts, self.flat)
        self.adam.update(options, step)

    def sessions_of(self, batch: SessionBatch) -> tuple[Tensor, ...]:
        graph, packing = self.model.graph_and_packing(batch)
        assert graph.weights is not None
        of_graph = (graph.alias.contiguous(), graph.latest.contiguous(), graph.weights.contiguous())
        return batch.items.contiguous(), batch.lengths, *of_graph, packing.begins, packing.slot_of_row

    def numbers(self, batch: SessionBatch) -> tuple[float, ...]:
        config = self.model.config
        return (
            batch.items.shape[1], len(self.encoding), self.scale, config.lambda0, config.lambda1, config.lambda2
        )  # fmt: skip

    def sizes(self, batch: SessionBatch) -> dict[str, int]:
        return {
            "d": self.d, "D": self.wide, "L": max(16, triton.next_power_of_2(batch.items.shape[1])),
            "HEADS": self.heads, "F": self.parts, "POSITIONS": POSITIONS, "ROW": ROW_BLOCKS * self.d,
            "END": (END_BLOCKS + self.parts) * self.d,
        }  # fmt: skip


def list_weights(model: PosRec) -> list[Tensor]:
    """The weights and biases in the order in which the kernels take them."""
    layer = cast(TransformerLayer, model.transformer[0])
    modules = (
        model.graph.from_node, model.graph.from_message, layer.queries_keys_values, layer.out, layer.after_attention,
        layer.widen, layer.narrow, layer.after_feed_forward,
    )  # fmt: skip
    return [one for module in modules for one in (module.weight, module.bias)]
