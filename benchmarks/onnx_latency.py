"""One session at a time: ONNX Runtime against eager torch, one thread, a catalogue of Diginetica's size.

    python benchmarks/onnx_latency.py --out results/onnx.json

Speed does not depend on what was learned, so the weights are random. Figures are medians over sessions of different
lengths, of the time the thread computed: on an idle machine that is the latency, and a busy one does not blur it.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from conditions import conditions
from posrec.data.vocabulary import Vocabulary
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.nn.batch import SessionBatch
from posrec.recommend.onnx_model import OnnxModel, export_onnx
from posrec.run import Run
from report import write_report

ITEMS, K = 43_097, 20


def milliseconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return 1000 * (time.thread_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/onnx.json"))
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = PosRec(ITEMS, PosRecConfig()).eval()
    run = Run(Path("random"), model, Vocabulary([]), {"model": "posrec", "items": ITEMS})
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        began = time.perf_counter()
        difference = export_onnx(run, Path(folder) / "model.onnx")
        export_seconds = time.perf_counter() - began
        vectors, scores, best = (
            OnnxModel(Path(folder) / "model.onnx", 1, outputs)
            for outputs in (["session_vectors"], ["scores"], ["top_scores", "top_items"])
        )
        size = (Path(folder) / "model.onnx").stat().st_size
        taken: dict[str, dict[str, list[float]]] = {}
        for sessions in (1, 32):
            ways: dict[str, Callable[[SessionBatch], object]] = {
                "torch, scores": model.scores,
                "torch, top 20": lambda batch: model.scores(batch).topk(K),
                "onnx, session vectors": vectors.session_vectors,
                "onnx, scores": scores.scores,
                "onnx, top 20": lambda batch: best.top(batch, K),
            }
            times = taken[f"batch {sessions}"] = {name: [] for name in ways}
            for turn in range(arguments.rounds + 10):
                lengths = torch.randint(1, 11, (sessions,)).tolist()
                batch = SessionBatch.of([torch.randint(1, ITEMS + 1, (length,)).tolist() for length in lengths])
                for name, work in ways.items():
                    spent = milliseconds(lambda work=work, batch=batch: work(batch))  # type: ignore[misc]
                    if turn >= 10:
                        times[name].append(spent / sessions)
    medians = {
        size: {name: round(statistics.median(t), 3) for name, t in times.items()} for size, times in taken.items()
    }
    one = medians["batch 1"]
    report = {
        "command": "python benchmarks/onnx_latency.py",
        "seed": 0,
        "items": ITEMS,
        "milliseconds_a_session": medians,
        "torch_over_onnx": round(one["torch, scores"] / one["onnx, scores"], 2),
        "largest_difference": difference,
        "export_seconds": round(export_seconds, 1),
        "file_mb": round(size / 1e6, 1),
        **conditions(),
    }
    write_report(arguments.out, report)


if __name__ == "__main__":
    main()
