"""A model exported as an ONNX file and run by ONNX Runtime: the same scores as torch, in less time on a CPU.

Inputs: `items [B, L]` int64, padded with 0 on the right, L at most the model's max_length; `lengths [B]` int64; and `k`
int64 [1], which is optional. Outputs: `session_vectors [B, d]`, `scores [B, n]` of items 1..n, and the k best items as
`top_items [B, k]` and `top_scores [B, k]`. The run's vocabulary maps item numbers to raw ids.

If the model has a term for the session's own items, its scores are log probabilities, and the file has five more
outputs, the fields of `OwnItems` (nn/own_items.py): `own_items`, `own_products`, `own_raised` and `own_repeat`
[B, L], and `own_explore [B]`. A search for items needs them beside the session vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posrec.errors import InputError, not_installed
from posrec.nn.batch import SessionBatch
from posrec.nn.own_items import OwnItems

INPUTS = ("items", "lengths", "k")
OWN_OUTPUTS = tuple(f"own_{field.name}" for field in fields(OwnItems))  # of models that have such a term


@dataclass(frozen=True)
class OnnxConfig:
    max_length: int


class OnnxModel:
    """ONNX Runtime computes every output in every run; `outputs` limits the model to those that are needed."""

    def __init__(self, path: str | Path, threads: int | None = None, outputs: Sequence[str] | None = None) -> None:
        runtime = import_runtime()
        options = runtime.SessionOptions()
        options.log_severity_level = 3  # errors only: it would warn that `k` has a default value
        if threads is not None:
            options.intra_op_num_threads = threads
        try:
            content = Path(path).read_bytes() if outputs is None else with_outputs(Path(path), outputs)
            self.session: Any = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            about = self.session.get_modelmeta().custom_metadata_map
            self.config = OnnxConfig(int(about["max_length"]))
            self.has_own_items = {one.name for one in self.session.get_outputs()}.issuperset(OWN_OUTPUTS)
        except Exception as error:  # the runtime's errors have no common class
            what = str(error).splitlines()[0]
            raise InputError(f"{path} can't be read ({what}); write it with posrec export --onnx") from None

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
