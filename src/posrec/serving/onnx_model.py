"""A model as an ONNX file, run by ONNX Runtime: the same scores as torch, in less time on a CPU.

Inputs: `items [B, L]` int64, padded with 0 on the right, L at most the model's max_length; `lengths [B]` int64; and `k`
int64 [1], which may be left out. Outputs: `session_vectors [B, d]`, `scores [B, n]` of items 1..n, and the k best as
`top_items [B, k]` and `top_scores [B, k]`. Raw ids are in the run's vocabulary.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posrec.data.batch import SessionBatch
from posrec.errors import InputError

INPUTS = ("items", "lengths", "k")
OUTPUTS = ("session_vectors", "scores", "top_scores", "top_items")


@dataclass(frozen=True)
class OnnxConfig:
    max_length: int


class OnnxModel:
    """Scores by ONNX Runtime; of the outputs only what is asked for is computed."""

    def __init__(self, path: str | Path, threads: int | None = None) -> None:
        runtime = import_runtime()
        options = runtime.SessionOptions()
        options.log_severity_level = 3  # errors; it warns of `k`, which is meant to have a value that may be replaced
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            self.session: Any = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            about = self.session.get_modelmeta().custom_metadata_map
            self.config = OnnxConfig(int(about["max_length"]))
        except Exception as error:  # the runtime's errors have no common class
            what = str(error).splitlines()[0]
            raise InputError(f"{path} can't be read ({what}); make it with posrec export --onnx") from None
        self.only_what_is_asked = runtime.RunOptions()
        self.only_what_is_asked.only_execute_path_to_fetches = True

    def scores(self, batch: SessionBatch) -> Tensor:
        return self.run(batch, "scores")[0]

    def session_vectors(self, batch: SessionBatch) -> Tensor:
        return self.run(batch, "session_vectors")[0]

    def top(self, batch: SessionBatch, k: int) -> tuple[Tensor, Tensor]:
        """The scores and numbers of the best items, [B, k] each."""
        scores, items = self.run(batch, "top_scores", "top_items", k=k)
        return scores, items

    def run(self, batch: SessionBatch, *outputs: str, k: int | None = None) -> list[Tensor]:
        feed = {"items": batch.items.cpu().numpy(), "lengths": batch.lengths.cpu().numpy()}
        if k is not None:
            feed["k"] = torch.tensor([k]).numpy()
        return [torch.from_numpy(value) for value in self.session.run(outputs, feed, self.only_what_is_asked)]


def import_runtime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise InputError("ONNX needs packages that are not installed: pip install 'posrec[serve]'") from None
    return onnxruntime
