"""A model exported as an ONNX file and run by ONNX Runtime: the same scores as torch, in less time on a CPU.

Inputs: `items [B, L]` int64, padded with 0 on the right, L at most the model's max_length; `lengths [B]` int64; and `k`
int64 [1], which is optional. Outputs: `session_vectors [B, d]`, `scores [B, n]` of items 1..n, and the k best items as
`top_items [B, k]` and `top_scores [B, k]`. The run's vocabulary maps item numbers to raw ids.

If the model has a term for the session's own items, its scores are log probabilities, and the file has five more
outputs, the fields of `OwnItems` (nn/own_items.py): `own_items`, `own_products`, `own_raised` and `own_repeat`
[B, L], and `own_explore [B]`. A search for items needs them beside the session vectors.
"""

import torch
from torch import Tensor

from posrec.nn.batch import SessionBatch
from posrec.nn.own_items import OwnItems
from posrec.recommend.onnx_network import OWN_OUTPUTS, OnnxNetwork


class OnnxModel(OnnxNetwork):
    """An OnnxNetwork for batches and tensors, as models of torch have them."""

    def scores(self, batch: SessionBatch) -> Tensor:
        return self.run(batch, "scores")[0]

    def session_vectors(self, batch: SessionBatch) -> Tensor:
        return self.run(batch, "session_vectors")[0]

    def sessions_and_own_items(self, batch: SessionBatch) -> tuple[Tensor, OwnItems | None]:
        """Session vectors [B, d], and the term for the session's own items if the model has one."""
        if not self.has_own_items:
            return self.session_vectors(batch), None
        sessions, *own = self.run(batch, "session_vectors", *OWN_OUTPUTS)
        return sessions, OwnItems(*own)

    def top(self, batch: SessionBatch, k: int) -> tuple[Tensor, Tensor]:
        """The scores and numbers of the best items, [B, k] each."""
        scores, items = self.run(batch, "top_scores", "top_items", k=k)
        return scores, items

    def run(self, batch: SessionBatch, *outputs: str, k: int | None = None) -> list[Tensor]:
        found = self.compute(batch.items.cpu().numpy(), batch.lengths.cpu().numpy(), *outputs, k=k)
        return [torch.from_numpy(value) for value in found]
