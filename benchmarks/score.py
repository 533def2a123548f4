"""Sessions a second through `posrec score`, with a catalogue of Diginetica's size, beside the least that it must do.

    python benchmarks/score.py --data prepared/diginetica

The sessions are the dataset's test samples. Speed does not depend on what was learned, so the weights are random. The
least: the product of session vectors with item vectors, and torch's top 20 of it; no model, no files.
"""

import json
import statistics
import tempfile
import time
from pathlib import Path

import torch

from harness import options, peak_mb, random_run, test_samples, write_result
from posrec.data.dataset import load
from posrec.progress import SilentProgress
from posrec.recommend.files.score import score_file
from posrec.recommend.recommender import Recommender

K, BATCH = 20, 256


def least(items: int, d: int, sessions: int) -> float:
    """Seconds."""
    table, vectors = torch.randn(items, d), torch.randn(BATCH, d)
    began = time.perf_counter()
    for _ in range(sessions // BATCH):
        (vectors @ table.T).topk(K)
    return time.perf_counter() - began


def main() -> None:
    given = options(__doc__, "results/score.json", data=Path("prepared/diginetica"), sessions=10_240, rounds=5)
    data = load(given.data)
    run = random_run(data.train_items, vocabulary=data.vocabulary)
    recommender, rates, ratios = Recommender(run, "cpu"), {".jsonl": [], ".parquet": []}, []
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        source = Path(folder) / "sessions.jsonl"
        samples = test_samples(data)[: given.sessions]
        source.write_text("".join(json.dumps({"session": clicks[:-1]}) + "\n" for clicks in samples))
        for _ in range(given.rounds):
            for ending in rates:
                out = Path(folder) / f"answers{ending}"
                totals = score_file(recommender, source, out, K, overwrite=True, progress=SilentProgress())
                rates[ending].append(totals.sessions / totals.seconds)
            bare = len(samples) / least(data.train_items, run.model.config.d, len(samples))
            ratios.append(bare / rates[".jsonl"][-1])
    report = {
        "seed": 0,
        "dataset": data.fingerprint,
        "items": data.train_items,
        "sessions": len(samples),
        "k": K,
        "sessions_per_second": {ending: round(statistics.median(values)) for ending, values in rates.items()},
        "times_the_least": round(statistics.median(ratios), 2),
        "peak_memory_mb": round(peak_mb()),
    }
    write_result(given.out, report)


if __name__ == "__main__":
    main()
