"""What a run keeps for a training that starts from it (`training/start.py`), besides its weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from posrec.io.tensors import save_tensors

if TYPE_CHECKING:
    from torch import Tensor

CONTINUATION = "continuation.safetensors"


@dataclass(frozen=True)
class Continuation:
    """What a later training needs besides the weights."""

    # Adam's second moments by the name of the weight: their mean over each row, [rows]; of a vector or a number all.
    moments: "Mapping[str, Tensor]"
    trained_until: int  # when the training session began that began last

    def about(self) -> dict[str, int]:
        """What the file holds besides the moments."""
        return {"trained_until": self.trained_until}

    def save(self, run: Path) -> None:
        save_tensors(run / CONTINUATION, dict(self.moments), self.about())
