"""One session at a time: ONNX Runtime against eager torch, one thread, a catalogue of Diginetica's size.

    python benchmarks/onnx_latency.py

Speed does not depend on what was learned, so the weights are random. Figures are medians over sessions of different
lengths, of the time the thread computed: on an idle machine that is the latency, and a busy one does not blur it.
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from harness import in_turns, medians, options, random_run, write_result
from posrec.nn.batch import SessionBatch
from posrec.recommend.export.onnx_model import export_onnx, with_outputs
from posrec.recommend.rank.encoder import OnnxModel

ITEMS, K = 43_097, 20
WARM_UP = 10  # rounds


def random_batch(sessions: int) -> SessionBatch:
    lengths = torch.randint(1, 11, (sessions,)).tolist()
    return SessionBatch.of([torch.randint(1, ITEMS + 1, (length,)).tolist() for length in lengths])


def median_ms(ways: Mapping[str, Callable[[SessionBatch], object]], sessions: int, rounds: int) -> dict[str, float]:
    """Milliseconds a session, in batches of so many."""
    batches = [random_batch(sessions) for _ in range(WARM_UP + rounds)]
    by_turn = {name: lambda turn, work=work: work(batches[turn]) for name, work in ways.items()}
    taken = in_turns(by_turn, rounds, WARM_UP, time.thread_time)
    return {name: round(ms / sessions, 3) for name, ms in medians(taken).items()}


def main() -> None:
    given = options(__doc__, "results/onnx.json", rounds=200)
    torch.set_num_threads(1)
    run = random_run(ITEMS)
    model = run.model
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        file = Path(folder) / "model.onnx"
        export_onnx(run, file)
        content = file.read_bytes()
        scores = OnnxModel(with_outputs(content, ["scores"]), 1)
        best = OnnxModel(with_outputs(content, ["top_scores", "top_items"]), 1)
        ways: dict[str, Callable[[SessionBatch], object]] = {
            "torch, scores": model.scores,
            "torch, top 20": lambda batch: model.scores(batch).topk(K),
            "onnx, scores": scores.scores,
            "onnx, top 20": lambda batch: best.top(batch, K),
        }
        taken = {f"batch {sessions}": median_ms(ways, sessions, given.rounds) for sessions in (1, 32)}
    ratio = round(taken["batch 1"]["torch, scores"] / taken["batch 1"]["onnx, scores"], 2)
    write_result(given.out, {"seed": 0, "items": ITEMS, "milliseconds_a_session": taken, "torch_over_onnx": ratio})


if __name__ == "__main__":
    main()
