"""How similar items are: the cosine of the angle between their vectors."""

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from posrec.models.base import SessionModel
from posrec.recommend.search import Floats


class Similarity:
    """Of the items of a model with item vectors. The vectors are read at the first use."""

    def __init__(self, model: SessionModel) -> None:
        self.model = model

    @cached_property
    @torch.inference_mode()
    def vectors(self) -> Tensor:
        """[n, d]"""
        return self.model.similarity_vectors()

    @cached_property
    @torch.inference_mode()
    def lengths(self) -> Tensor:
        """[n]; never 0, so that one can divide by it."""
        lengths: Tensor = self.vectors.norm(dim=1).clamp(min=torch.finfo(self.vectors.dtype).tiny ** 0.5)
        return lengths

    @torch.inference_mode()
    def cosines(self, number: int) -> Tensor:
        """[n] the cosine of every item and this one."""
        return (self.vectors @ self.vectors[number - 1]) / (self.lengths * self.lengths[number - 1])

    @torch.inference_mode()
    def vectors_of(self, numbers: Sequence[int]) -> Floats:
        """[P, d] the vectors of these items."""
        rows = torch.tensor(numbers, dtype=torch.int64, device=self.vectors.device) - 1
        found: Floats = self.vectors[rows].float().cpu().numpy()
        return found
