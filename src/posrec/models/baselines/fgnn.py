"""FGNN (Qiu et al., "Rethinking the Item Order in Session-based Recommendation with Graph Neural
Networks", CIKM 2019).

In weighted graph attention (WGAT) every node attends to itself and to the nodes clicked right
before it. The readout, Set2Set with a GRU, attends to the nodes several times, each time with a
query that depends on the results so far; a linear map of its output is the session's vector. Shapes
are those of `models/posrec.py`, with K heads."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from posrec.config import setting
from posrec.models.base import ANCHORS, CLICKS_READ, ITEM_WIDTH, SessionModel
from posrec.nn.batch import SessionBatch
from posrec.nn.graph import SessionGraph, add_anchors
from posrec.nn.items.item_table import ItemTable
from posrec.nn.packing import Packing

SLOPE = 0.2  # of LeakyReLU below zero


@dataclass(frozen=True)
class FGNNConfig:
    d: int = setting(100, **ITEM_WIDTH)
    anchors: bool = setting(False, **ANCHORS, tune=(False, True))
    layers: int = setting(
        1,
        "layers of graph attention; the paper has 3 ([reason](models_baselines.md#fgnn))",
        at_least=0,
        tune=(1, 2, 3),
    )
    heads: int = setting(
        8, "heads of graph attention, each d wide", at_least=1, tune=(1, 2, 4, 8)
    )
    steps: int = setting(3, "steps of the readout", at_least=1)
    from_last: bool = setting(
        True,
        "the first query is the last click's node, not zeros ([reason](models_baselines.md#fgnn))",
    )
    max_length: int = setting(20, **CLICKS_READ)


class WeightedAttention(nn.Module):
    """WGAT, with the mean of K heads so that every layer is d wide; w_ij is how often node i was
    clicked right after node j. x [T, d], weights w [B, L, L] -> x' [T, d].

    e_ij = LeakyReLU(a^T [W x_i || W x_j || w_ij])   for all j with w_ij > 0
    x'_i = mean over heads of sum_j softmax_j(e_ij) W x_j
    """

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        # W of all heads side by side: W^k is columns k d .. (k + 1) d
        self.values = nn.Linear(heads * d, d)
        # a, for W x_i and W x_j, and for w_ij
        self.of_nodes = nn.Parameter(torch.empty(2, heads, d))
        self.of_weight = nn.Parameter(torch.empty(heads))

    def forward(self, x: Tensor, weights: Tensor, packing: Packing) -> Tensor:
        d = x.shape[1]
        # a^T (W x) = (a^T W) x and sum_j s_j (W x_j) = W sum_j s_j x_j, so no tensor of K d columns
        # is put into slots.
        matrices = self.values.weight.view(d, self.heads, d)
        logit_vectors = torch.einsum("pko,oki->pki", self.of_nodes, matrices)
        logits = packing.to_slots(x @ logit_vectors.flatten(0, 1).T)  # [B, L, 2K]
        receiver, sender = logits.transpose(1, 2).chunk(2, dim=1)  # [B, K, L] each
        edge = self.of_weight[:, None, None] * weights[:, None]  # [B, K, L, L]
        logits = receiver[..., None] + sender[:, :, None] + edge
        logits = functional.leaky_relu(logits, SLOPE)
        attention = logits.masked_fill((weights == 0)[:, None], -math.inf).softmax(-1)
        attended = attention.flatten(1, 2) @ packing.to_slots(x)  # [B, K L, d]
        attended = attended.view(weights.shape[0], self.heads, -1, d)
        attended = attended.transpose(1, 2).flatten(2)  # [B, L, K d]
        values: Tensor = self.values(packing.to_rows(attended) / self.heads)
        return values


class Readout(nn.Module):
    """Set2Set with a GRU: nodes [B, L, d], the first query q_0 [B, d] -> [B, 2d].

    q*_0 = q_0 || 0
    q_t = GRU(q*_{t-1}),  r_t = sum_i softmax_i(x_i^T q_t) x_i,  q*_t = q_t || r_t
    """

    def __init__(self, d: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.cell = nn.GRUCell(2 * d, d)

    def forward(self, nodes: Tensor, filled: Tensor, query: Tensor) -> Tensor:
        attended = torch.zeros_like(query)
        for _ in range(self.steps):
            query = self.cell(torch.cat([query, attended], dim=1), query)
            logits = (nodes * query[:, None]).sum(2)  # [B, L]
            attention = logits.masked_fill(~filled, -math.inf).softmax(1)
            attended = (attention[..., None] * nodes).sum(1)
        return torch.cat([query, attended], dim=1)


class FGNN(SessionModel):
    def __init__(self, items: int, config: FGNNConfig) -> None:
        super().__init__(items, config)
        d = config.d
        self.embedding = ItemTable(items, d)
        self.attention = nn.ModuleList(
            WeightedAttention(d, config.heads) for _ in range(config.layers)
        )
        self.readout = Readout(d, config.steps)
        self.out = nn.Linear(2 * d, d, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal with standard deviation 0.1, the GRU's matrices orthogonal, as in the paper."""
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.1)
        for matrix in (self.readout.cell.weight_ih, self.readout.cell.weight_hh):
            nn.init.orthogonal_(matrix)

    def build_graph(self, batch: SessionBatch) -> SessionGraph:
        return batch.build_graph(with_distances=self.config.anchors)

    def vectors(self, batch: SessionBatch) -> tuple[Tensor, Tensor]:
        graph, packing = self.graph_and_packing(batch)
        numbers = packing.to_rows(batch.items)
        nodes, table = self.embedding.look_up_and_table(numbers)  # [T, d]
        last = graph.last(batch.lengths)
        weights = self.weights(graph, batch.lengths).to(nodes.dtype)
        for number, layer in enumerate(self.attention):
            if number > 0:
                nodes = functional.relu(nodes)
            nodes = layer(nodes, weights, packing)
        query = nodes[packing.row_at(last)]  # [B, d]
        if not self.config.from_last:
            query = torch.zeros_like(query)
        read = self.readout(packing.to_slots(nodes), graph.nodes, query)
        return self.out(read), table

    def weights(self, graph: SessionGraph, lengths: Tensor) -> Tensor:
        """w [B, L, L], row: the node that attends. A node that does not follow itself has a loop of
        weight 1. A node has one neighbourhood here, with the anchors of both directions."""
        incoming = graph.edges.transpose(1, 2)
        if self.config.anchors:
            incoming = torch.maximum(*add_anchors(incoming, incoming, graph, lengths))
        loop = torch.eye(incoming.shape[1], device=incoming.device)
        return torch.where(incoming == 0, loop, incoming)
