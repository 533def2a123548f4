"""Sessions a second through `posrec score`, with a catalogue of Diginetica's size, beside the least that it must do.

    python benchmarks/score.py --data prepared/diginetica --out results/score.json

The sessions are the dataset's test samples. Speed does not depend on what was learned, so the weights are random. The
least: the product of session vectors with item vectors, and torch's top 20 of it; no model, no files.
"""

import json
import resource
import statistics
import tempfile
import time
from pathlib import Path

import torch

from harness import parser_for, write_result
from posrec.data.dataset import PreparedDataset, load
from posrec.models.posrec import PosRec, PosRecConfig
from posrec.progress import SilentProgress
from posrec.recommend.files.score import score_file
from posrec.recommend.recommender import Recommender
from posrec.runs.run import Run

K, BATCH = 20, 256


def write_sessions(path: Path, data: PreparedDataset, count: int) -> None:
    """Prefixes of test sessions, one a line."""
    written = 0
    with path.open("w") as file:
        for number in range(data.test.sessions):
            items = [data.vocabulary.item(item) for item in data.test.session(number).tolist()]
            for end in range(1, len(items)):
                if written == count:
                    return
                file.write(json.dumps({"session": items[:end], "id": written}) + "\n")
                written += 1
    raise SystemExit(f"the dataset has only {written} test samples; ask for fewer with --sessions")


def least(items: int, d: int, sessions: int) -> float:
    """Seconds."""
    table, vectors = torch.randn(items, d), torch.randn(BATCH, d)
    began = time.perf_counter()
    for _ in range(sessions // BATCH):
        (vectors @ table.T).topk(K)
    return time.perf_counter() - began


def main() -> None:
    parser = parser_for(__doc__, "results/score.json")
    parser.add_argument("--data", type=Path, default=Path("prepared/diginetica"))
    parser.add_argument("--sessions", type=int, default=10_240)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    data = load(arguments.data)
    model = PosRec(data.train_items, PosRecConfig()).eval()
    config, clicks = {"model": "posrec", "items": data.train_items}, torch.ones(data.train_items).numpy()
    run = Run(arguments.data, model, data.vocabulary, config, clicks)
    recommender, rates, ratios = Recommender(run, "cpu"), {".jsonl": [], ".parquet": []}, []
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        source = Path(folder) / "sessions.jsonl"
        write_sessions(source, data, arguments.sessions)
        for _ in range(arguments.rounds):
            for ending in rates:
                out = Path(folder) / f"answers{ending}"
                totals = score_file(recommender, source, out, K, overwrite=True, progress=SilentProgress())
                rates[ending].append(totals.sessions / totals.seconds)
            bare = arguments.sessions / least(data.train_items, model.config.d, arguments.sessions)
            ratios.append(bare / rates[".jsonl"][-1])
    report = {
        "seed": 0,
        "dataset": data.fingerprint,
        "items": data.train_items,
        "sessions": arguments.sessions,
        "k": K,
        "sessions_per_second": {ending: round(statistics.median(values)) for ending, values in rates.items()},
        "times_the_least": round(statistics.median(ratios), 2),
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }
    write_result(arguments.out, report)


if __name__ == "__main__":
    main()
