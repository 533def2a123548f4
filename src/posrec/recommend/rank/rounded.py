"""Item vectors rounded to 8 bits: their products with session vectors take a quarter of the bytes to read, and a bound
says how far rounding can have moved them.

Cauchy-Schwarz bounds the error of a product: for v = v' + f and x = x' + e, where v' and x' are the rounded vectors,

    |v·x - v'·x'|  <=  |v| |e| + |f| |x'|

ONNX Runtime multiplies the rounded vectors in a graph of one node. Sessions are unsigned bytes with a zero point of
128: on x86-64 it multiplies signed sessions 10 to 20 times slower. Items are signed where the processor multiplies
unsigned with signed bytes (VNNI, AMX), which takes down to half the time for a batch of 16; on other processors that
product overflows, and items are unsigned too. So they are in large catalogues: for one session, reading the items from
memory takes the time, and signed ones take up more of it. One core does not
read as fast as memory can be read, so large catalogues are multiplied by several threads where cores are free.
"""

import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from posrec.errors import InputError, imported
from posrec.recommend.export.encoder import import_runtime, open_session
from posrec.recommend.rank.best_items import Floats

BLOCK = 32  # the number of items is filled up to a multiple of this, see search.py
LEVELS = 127
ZERO_POINT = 128  # the unsigned byte that stands for 0
ROUNDING = 1e-5  # of |v| |x|: the rounding error of 32-bit sums themselves
CACHED = 1 << 23  # bytes of all items; more do not stay in a processor's cache
MOST_THREADS = 4  # of one search; more than two were not measured
LARGEST = (1 << 31) - (1 << 20)  # bytes that fit into an ONNX file

Rounded = npt.NDArray[np.int32]


class RoundedItems:
    """`content` is that of an ONNX file from `rounded_items`."""

    def __init__(self, content: bytes, threads: int = 1) -> None:
        self.session = open_session(content, threads)
        about = self.session.get_modelmeta().custom_metadata_map
        self.items = int(about["items"])
        self.step, error, self.longest = (np.float32(about[name]) for name in ("step", "error", "longest"))
        self.error = error + np.float32(ROUNDING) * self.longest

    def scores(self, sessions: Floats) -> tuple[Rounded, Floats, Floats]:
        """The scores of the rounded vectors [B, n'], the size of their unit [B], and the bound on their error [B].

        n' is n, filled up with items of score 0 to a multiple of BLOCK.
        """
        steps = step_of(sessions, axis=1)
        rounded = np.rint(sessions / steps[:, None])
        slack = lengths(sessions) * self.error + lengths(sessions - rounded * steps[:, None]) * self.longest
        rounded += ZERO_POINT
        (scores,) = self.session.run(None, {"sessions": rounded.astype(np.uint8)})
        return scores, steps * self.step, slack


def rounded_items(table: Floats, signed: bool | None = None) -> bytes | None:
    """An ONNX file: 8-bit sessions [B, d] -> scores [B, n'] of the rounded item vectors. All items share one step, so
    that scores compare.

    `signed` is chosen by the processor and the number of items where it is None. The result is None where vectors can't
    be rounded (there are none, they are not finite, or too many for a file), or where ONNX Runtime is not installed.
    """
    if not table.size or table.size > LARGEST or not np.isfinite(table).all():
        return None
    step = step_of(table)
    rounded = np.rint(table / step)
    restored = rounded * step
    about = {
        "items": len(table),
        "step": float(step),
        "error": float(lengths(table - restored).max()),
        "longest": float(lengths(restored).max()),
    }
    filled = np.pad(rounded, ((0, -len(rounded) % BLOCK), (0, 0)))
    try:
        return product_graph(filled, prefers_signed(table.size) if signed is None else signed, about)
    except InputError:
        return None


def product_graph(rounded: Floats, signed: bool, about: dict[str, Any]) -> bytes:
    """The file for levels [n', d]; `about` becomes its metadata."""
    import_runtime()
    onnx = imported("onnx", "ONNX", "serve")
    helper, numpy_helper, kinds = onnx.helper, onnx.numpy_helper, onnx.TensorProto
    n, d = rounded.shape
    zero = np.array(0, np.int8) if signed else np.array(ZERO_POINT, np.uint8)
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["sessions", "items", "zero of sessions", "zero of items"], ["scores"])],
        "rounded",
        [helper.make_tensor_value_info("sessions", kinds.UINT8, ["B", d])],
        [helper.make_tensor_value_info("scores", kinds.INT32, ["B", n])],
        [
            numpy_helper.from_array(np.ascontiguousarray((rounded.T + zero).astype(zero.dtype)), "items"),
            numpy_helper.from_array(np.array(ZERO_POINT, np.uint8), "zero of sessions"),
            numpy_helper.from_array(zero, "zero of items"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(model, {name: str(value) for name, value in about.items()})
    content: bytes = model.SerializeToString()
    return content


def prefers_signed(size: int) -> bool:
    """Whether items of so many bytes are best signed."""
    return size <= CACHED and has_mixed_products()


def useful_threads(size: int, cores: int) -> int:
    """With how many threads to multiply items of so many bytes, where so many cores are free. A small catalogue takes
    a fraction of a millisecond, so that it leaves them to others."""
    return min(cores, MOST_THREADS) if size > CACHED else 1


def has_mixed_products() -> bool:
    """Whether the processor multiplies unsigned with signed bytes and adds up in 32 bits (VNNI of x86-64)."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return False
    with suppress(OSError):  # not Linux
        return "_vnni" in Path("/proc/cpuinfo").read_text()
    return False


def lengths(vectors: Floats) -> Floats:
    """[N, d] -> [N]; quicker than `np.linalg.norm`."""
    found: Floats = np.sqrt(np.einsum("nd,nd->n", vectors, vectors))
    return found


def step_of(values: Floats, axis: int | None = None) -> Floats:
    """The size of one of the 8-bit levels."""
    largest = np.abs(values).max(axis)
    return np.maximum(largest, np.finfo(np.float32).tiny * LEVELS) / np.float32(LEVELS)  # type: ignore[no-any-return]
