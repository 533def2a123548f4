"""What turns sessions into vectors for a search: arrays in, arrays out, so that a run with an export needs no torch.

`OnnxNetwork` runs an ONNX file: that of `posrec export RUN --onnx FILE`, or the network.onnx of a run. onnx_model.py
describes its inputs and outputs. torch_model.py has the same of a model of torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from posrec.errors import InputError, imported
from posrec.nn.first_read import first_read
from posrec.recommend.rank.best_items import Columns, Floats, OwnItemArrays

LARGEST_ONNX_FILE = (1 << 31) - (1 << 20)  # bytes
INPUTS = ("items", "lengths", "k")
# The fields of OwnItems (nn/items/own_items.py), of models that have such a term.
OWN_OUTPUTS = ("own_items", "own_products", "own_raised", "own_repeat", "own_explore")


class SessionEncoder(Protocol):
    """It reads at most `config.max_length` clicks, the latest; of a longer session, from a multiple of `stride` on."""

    config: Any
    stride: int
    has_own_items: bool  # whether `encode` returns a term for the session's own items

    def encode(self, items: Columns, lengths: Columns) -> tuple[Floats, OwnItemArrays | None]:
        """items [B, L], padded with 0 on the right, lengths [B] -> session vectors [B, d] and the term."""


def padded(sessions: Sequence[Sequence[int]], max_length: int, stride: int = 1) -> tuple[Columns, Columns]:
    """The clicks of each session that a model reads: items [B, L] and lengths [B].

    >>> [part.tolist() for part in padded([[5, 3], [7, 8, 9, 4]], max_length=3)]
    [[[5, 3, 0], [8, 9, 4]], [2, 3]]
    """
    kept = [session[first_read(len(session), max_length, stride) :] for session in sessions]
    lengths = np.array([len(session) for session in kept], np.int64)
    items = np.zeros((len(kept), lengths.max()), np.int64)
    for row, session in enumerate(kept):
        items[row, : len(session)] = session
    return items, lengths


@dataclass(frozen=True)
class OnnxConfig:
    max_length: int


class OnnxNetwork:
    """A SessionEncoder. ONNX Runtime computes every output in every run; `outputs` limits the file to those that are
    needed."""

    def __init__(
        self, file: str | Path | bytes, threads: int | None = None, outputs: Sequence[str] | None = None
    ) -> None:
        """`file` is an ONNX file, or its content."""
        try:
            content = file if isinstance(file, bytes) else Path(file).read_bytes()
            self.session = open_session(content if outputs is None else with_outputs(content, outputs), threads)
            about = self.session.get_modelmeta().custom_metadata_map
            self.config, self.stride = OnnxConfig(int(about["max_length"])), int(about["stride"])
            self.has_own_items = {one.name for one in self.session.get_outputs()}.issuperset(OWN_OUTPUTS)
        except InputError:
            raise
        except Exception as error:  # the runtime's errors have no common class
            what = str(error).splitlines()[0]
            name = "an ONNX file" if isinstance(file, bytes) else file
            raise InputError(f"{name} can't be read ({what}); write it with posrec export --onnx") from None

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


def open_session(content: bytes, threads: int | None) -> Any:
    """ONNX Runtime's session of a file's content."""
    runtime = import_runtime()
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors only: it would warn that `k` has a default value
    if threads is not None:
        options.intra_op_num_threads = threads
        # Waiting threads would spin on cores that others need.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def with_outputs(content: bytes, outputs: Sequence[str]) -> bytes:
    """The content of an ONNX file, reduced to what these outputs need."""
    import onnx
    from onnx.utils import Extractor

    whole = onnx.load_from_string(content)
    inputs = [name for name in INPUTS if name != "k" or any(output.startswith("top") for output in outputs)]
    part = Extractor(whole).extract_model(inputs, list(outputs))
    onnx.helper.set_model_props(part, {one.key: one.value for one in whole.metadata_props})
    reduced: bytes = part.SerializeToString()
    return reduced


def import_runtime() -> Any:
    return imported("onnxruntime", "ONNX", "serve")
