"""An ONNX file of `posrec export --onnx`, or its part in the server's cache, run by ONNX Runtime on arrays.

onnx_model.py describes the inputs and outputs of the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from posrec.errors import InputError, imported
from posrec.recommend.best_items import Columns, Floats
from posrec.recommend.own_terms import OwnItemArrays

INPUTS = ("items", "lengths", "k")
# The fields of OwnItems (nn/own_items.py), of models that have such a term.
OWN_OUTPUTS = ("own_items", "own_products", "own_raised", "own_repeat", "own_explore")


@dataclass(frozen=True)
class OnnxConfig:
    max_length: int


class OnnxNetwork:
    """A SessionEncoder. ONNX Runtime computes every output in every run; `outputs` limits the file to those that are
    needed."""

    def __init__(self, path: str | Path, threads: int | None = None, outputs: Sequence[str] | None = None) -> None:
        try:
            content = Path(path).read_bytes() if outputs is None else with_outputs(Path(path), outputs)
            self.session = open_session(content, threads)
            about = self.session.get_modelmeta().custom_metadata_map
            self.config, self.stride = OnnxConfig(int(about["max_length"])), int(about["stride"])
            self.has_own_items = {one.name for one in self.session.get_outputs()}.issuperset(OWN_OUTPUTS)
        except InputError:
            raise
        except Exception as error:  # the runtime's errors have no common class
            what = str(error).splitlines()[0]
            raise InputError(f"{path} can't be read ({what}); write it with posrec export --onnx") from None

    def encode(self, items: Columns, lengths: Columns) -> tuple[Floats, OwnItemArrays | None]:
        """Session vectors [B, d], and the term for the session's own items if the model has one."""
        if not self.has_own_items:
            return self.compute(items, lengths, "session_vectors")[0], None
        vectors, *own = self.compute(items, lengths, "session_vectors", *OWN_OUTPUTS)
        return vectors, OwnItemArrays(*own)

    def compute(self, items: Columns, lengths: Columns, *outputs: str, k: int | None = None) -> list[Any]:
        feed = {"items": items, "lengths": lengths}
        if k is not None:
            feed["k"] = np.array([k])
        found: list[Any] = self.session.run(outputs, feed)
        return found


def open_session(content: bytes | str, threads: int | None) -> Any:
    """ONNX Runtime's session of a file's content, or of the file with this name."""
    runtime = import_runtime()
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors only: it would warn that `k` has a default value
    if threads is not None:
        options.intra_op_num_threads = threads
        # Waiting threads would spin on cores that others need.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


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
    return imported("onnxruntime", "ONNX", "serve")
