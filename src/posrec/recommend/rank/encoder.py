"""Sessions as arrays for a model, and their vectors from an ONNX file; without torch."""

from collections.abc import Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from posrec.errors import InputError, first_line, imported
from posrec.nn.first_read import first_read
from posrec.recommend.rank.best_items import Columns, Floats, OwnItemArrays

if TYPE_CHECKING:
    from torch import Tensor

    from posrec.nn.batch import SessionBatch

LARGEST_ONNX_FILE = (1 << 31) - (1 << 20)  # bytes
# The fields of OwnItems (nn/items/own_items.py), of models that have such a term.
OWN_OUTPUTS = ("own_items", "own_raised", "own_repeat", "own_explore")

# What the network of a run reads in place of items, for a model with `click_vectors`.
READ_VECTORS = ("known_items", "click_vectors")

# Session vectors [B, d], and the term for own items of a model that has one.
Encoded = tuple[Floats, OwnItemArrays | None]


class Encoder(Protocol):
    """Computes session vectors; `OnnxModel` and `TorchEncoder` do."""

    max_length: int  # it reads this many of a session's latest clicks
    stride: int  # as of a Model
    has_own_items: bool

    def encode(self, items: Columns, lengths: Columns) -> Encoded:
        """items [B, L], lengths [B]."""


def padded(
    sessions: Sequence[Sequence[int]], max_length: int, stride: int = 1
) -> tuple[Columns, Columns]:
    """The clicks of each session that a model reads: items [B, L] and lengths [B].

    >>> items, lengths = padded([[5, 3], [7, 8, 9, 4]], max_length=3)
    >>> items.tolist(), lengths.tolist()
    ([[5, 3, 0], [8, 9, 4]], [2, 3])
    """
    windows = [
        session[first_read(len(session), max_length, stride) :] for session in sessions
    ]
    lengths = np.array([len(window) for window in windows], np.int64)
    items = np.zeros((len(windows), lengths.max()), np.int64)
    for row, window in enumerate(windows):
        items[row, : len(window)] = window
    return items, lengths


def drawn_sessions(
    clicks: npt.ArrayLike, lengths: npt.ArrayLike, draw: np.random.Generator
) -> list[list[int]]:
    """Sessions of these lengths; an item is drawn in proportion to its clicks plus one."""
    weights = np.asarray(clicks, np.float64) + 1
    ends = np.cumsum(lengths)
    numbers = draw.choice(len(weights), ends[-1], p=weights / weights.sum()) + 1
    return [session.tolist() for session in np.split(numbers, ends[:-1])]


def import_runtime() -> Any:
    return imported("onnxruntime", "ONNX", "serve")


def open_session(content: bytes, threads: int | None) -> Any:
    runtime = import_runtime()
    options = runtime.SessionOptions()
    # Errors only: it would warn that `k` has a default value.
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
        # Waiting threads would spin on cores that others need.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    providers = ["CPUExecutionProvider"]
    return runtime.InferenceSession(content, options, providers=providers)


class OnnxModel:
    """A model from an ONNX file, or its content: of `posrec export --onnx`, or a run's
    network.onnx, which can't score every item. If that reads vectors of clicks, they are rows of
    `table` [n, d]."""

    def __init__(
        self,
        file: str | Path | bytes,
        threads: int | None = None,
        table: Floats | None = None,
    ) -> None:
        self.table = table
        try:
            content = file if isinstance(file, bytes) else Path(file).read_bytes()
            self.session = open_session(content, threads)
            about = self.session.get_modelmeta().custom_metadata_map
            self.max_length = int(about["max_length"])
            self.stride = int(about["stride"])
            outputs = {output.name for output in self.session.get_outputs()}
            self.has_own_items = outputs.issuperset(OWN_OUTPUTS)
            names = {input.name for input in self.session.get_inputs()}
            self.reads_vectors = names.issuperset(READ_VECTORS)
        except InputError:
            raise
        except Exception as error:  # the runtime's errors have no common class
            name = "an ONNX file" if isinstance(file, bytes) else file
            raise InputError(
                f"{name} can't be read ({first_line(error)}); "
                "write it with posrec export --onnx"
            ) from None

    def encode(self, items: Columns, lengths: Columns) -> Encoded:
        outputs = ["session_vectors"]
        if self.has_own_items:
            outputs += OWN_OUTPUTS
        inputs = {**self.inputs(items), "lengths": lengths}
        vectors, *own_items = self.session.run(outputs, inputs)
        return vectors, OwnItemArrays(*own_items) if own_items else None

    def inputs(self, items: Columns) -> dict[str, Any]:
        if not self.reads_vectors:
            return {"items": items}
        assert self.table is not None
        # Padding has the vector of any item; nothing reads it.
        rows = np.maximum(items - 1, 0)
        return dict(zip(READ_VECTORS, (items, self.table[rows]), strict=True))

    def with_table(self, table: Floats) -> "OnnxModel":
        """The same network with another table."""
        model = copy(self)
        model.table = table
        return model

    def scores(self, batch: "SessionBatch") -> "Tensor":
        """[B, n]"""
        return self.run(batch, "scores")[0]

    def session_vectors(self, batch: "SessionBatch") -> "Tensor":
        """[B, d]"""
        return self.run(batch, "session_vectors")[0]

    def top(self, batch: "SessionBatch", k: int) -> tuple["Tensor", "Tensor"]:
        """The scores and numbers of the best items, [B, k] each."""
        scores, items = self.run(batch, "top_scores", "top_items", k=np.array([k]))
        return scores, items

    def run(
        self, batch: "SessionBatch", *outputs: str, **inputs: Columns
    ) -> list["Tensor"]:
        from torch import from_numpy

        inputs["items"] = batch.items.cpu().numpy()
        inputs["lengths"] = batch.lengths.cpu().numpy()
        return [from_numpy(value) for value in self.session.run(outputs, inputs)]
