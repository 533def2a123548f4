"""A model exported as an ONNX file and run by ONNX Runtime: the same scores as torch, in less time on a CPU.

Inputs: `items [B, L]` int64, padded with 0 on the right, L at most the model's max_length; `lengths [B]` int64; and `k`
int64 [1], which is optional. Outputs: `session_vectors [B, d]`, `scores [B, n]` of items 1..n, and the k best items as
`top_items [B, k]` and `top_scores [B, k]`. The run's vocabulary maps item numbers to raw ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posrec.errors import InputError, not_installed
from posrec.nn.batch import SessionBatch

INPUTS = ("items", "lengths", "k")
OUTPUTS = ("session_vectors", "scores", "top_scores", "top_items")


@dataclass(frozen=True)
class OnnxConfig:
    max_length: int


class OnnxModel:
    """ONNX Runtime computes every output in every run; `outputs` limits the model to those that are needed."""

    def __init__(self, path: str | Path, threads: int | None = None, outputs: Sequence[str] = OUTPUTS) -> None:
        runtime = import_runtime()
        options = runtime.SessionOptions()
        options.log_severity_level = 3  # errors only: it would warn that `k` has a default value
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            content = Path(path).read_bytes() if set(outputs) == set(OUTPUTS) else with_outputs(Path(path), outputs)
            self.session: Any = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            about = self.session.get_modelmeta().custom_metadata_map
            self.config = OnnxConfig(int(about["max_length"]))
        except Exception as error:  # the runtime's errors have no common class
            what = str(error).splitlines()[0]
            raise InputError(f"{path} can't be read ({what}); write it with posrec export --onnx") from None

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
        return [torch.from_numpy(value) for value in self.session.run(outputs, feed)]


def with_outputs(path: Path, outputs: Sequence[str]) -> bytes:
    """The file's content, reduced to what these outputs need."""
    import onnx
    from onnx.utils import Extractor

    whole = onnx.load(path)
    inputs = [name for name in INPUTS if name != "k" or any(output.startswith("top") for output in outputs)]
    part = Extractor(whole).extract_model(inputs, list(outputs))
    onnx.helper.set_model_props(part, {one.key: one.value for one in whole.metadata_props})
    content: bytes = part.SerializeToString()
    return content


def import_runtime() -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise not_installed("ONNX", "serve") from None
    return onnxruntime
