"""The product of one session, and of 16, with all items: signed and unsigned bytes in ONNX Runtime, and floats.

    OMP_NUM_THREADS=1 python benchmarks/rounded_product.py --out results/rounded_product.json

`recommend/rounded.py` uses unsigned sessions, and signed items where the processor multiplies both kinds. Figures are
medians of the time the thread computed, one thread.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from conditions import conditions
from posrec.recommend.encoder import open_session
from posrec.recommend.rounded import ZERO_POINT, product_graph
from report import write_report

KINDS = {"signed, signed": (False, False), "unsigned, signed": (True, False), "unsigned, unsigned": (True, True)}


def as_bytes(levels: Any, without_sign: bool) -> Any:
    return (levels + ZERO_POINT).astype(np.uint8) if without_sign else levels.astype(np.int8)


def product(levels: Any, sessions_unsigned: bool, items_unsigned: bool) -> Any:
    """A graph like that of `product_graph`, with bytes of either kind."""
    if sessions_unsigned:
        return open_session(product_graph(levels, not items_unsigned, {}), threads=1)
    n, d = levels.shape
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["sessions", "items"], ["scores"])], "rounded",
        [helper.make_tensor_value_info("sessions", TensorProto.INT8, ["B", d])],
        [helper.make_tensor_value_info("scores", TensorProto.INT32, ["B", n])],
        [numpy_helper.from_array(np.ascontiguousarray(levels.astype(np.int8).T), "items")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return open_session(model.SerializeToString(), threads=1)


def milliseconds(work: Callable[[], object], rounds: int) -> float:
    work()
    times = []
    for _ in range(rounds):
        began = time.thread_time()
        work()
        times.append(1000 * (time.thread_time() - began))
    return round(statistics.median(times), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--out", type=Path, default=Path("results/rounded_product.json"))
    arguments = parser.parse_args()
    draw, taken = np.random.default_rng(0), {}
    for items in (43_097, 1_000_000):
        levels = draw.integers(-127, 128, (items, arguments.d)).astype(np.float32)
        for sessions in (1, 16):
            asked = draw.integers(-127, 128, (sessions, arguments.d)).astype(np.float32)
            times = taken[f"{items:,} items, {sessions} sessions"] = {}
            for name, (of_session, of_items) in KINDS.items():
                run, feed = product(levels, of_session, of_items).run, {"sessions": as_bytes(asked, of_session)}
                assert np.array_equal(run(None, feed)[0][0], levels @ asked[0]), name
                times[name] = milliseconds(lambda run=run, feed=feed: run(None, feed), arguments.rounds)  # type: ignore[misc]
            times["floats"] = milliseconds(lambda levels=levels, asked=asked: asked @ levels.T, arguments.rounds)  # type: ignore[misc]
    report = {
        "command": "OMP_NUM_THREADS=1 python benchmarks/rounded_product.py " + " ".join(sys.argv[1:]),
        "seed": 0,
        "d": arguments.d,
        "milliseconds_by_bytes_of_session_and_items": taken,
        **conditions(),
    }
    write_report(arguments.out, report)


if __name__ == "__main__":
    main()
