"""Whether rounding the softmax's products to bf16 on a CPU changes the metrics: PosRec, three seeds, both ways.

    python benchmarks/rounded_softmax.py --data prepared/yoochoose1_64 --out results/rounded_softmax.json

The latest training sessions are cut into a small training part and a part to rank (a thirtieth of all), so that six
trainings take minutes on a CPU. The test part is not read.
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from harness import parser_for, write_result
from posrec.data.dataset import PreparedDataset, load
from posrec.data.prepare.writer import save_dataset
from posrec.data.vocabulary import Vocabulary
from posrec.fitting.fit import fit_run
from posrec.progress import SilentProgress

METRICS = ("recall@20", "mrr@20", "recall@10", "mrr@10")


def cut(data: PreparedDataset, folder: Path, trained: int, ranked: int) -> PreparedDataset:
    """The latest `trained + ranked` training sessions, the last `ranked` of them as the test part."""
    part = data.train.part(data.train.sessions - trained - ranked, data.train.sessions)
    offsets = (part.offsets - part.offsets[0]).numpy()
    items = part.items[part.offsets[0] : part.offsets[-1]].numpy()
    kept, number = np.unique(items[: offsets[trained]], return_inverse=True)
    place = np.searchsorted(kept, items).clip(max=len(kept) - 1)
    known = kept[place] == items
    numbers = np.where(known, place + 1, len(kept) + 1)
    numbers[: offsets[trained]] = number + 1
    times, split = part.times.numpy(), offsets[trained]
    arrays = {
        "train_items": numbers[:split], "train_offsets": offsets[: trained + 1], "train_times": times[:trained],
        "test_items": numbers[split:], "test_offsets": offsets[trained:] - split, "test_times": times[trained:],
    }  # fmt: skip
    names = [str(item) for item in kept] + ["items that are not trained"]
    save_dataset(folder, arrays, Vocabulary(names), {"schema": 1, "steps": []})
    return load(folder)


def main() -> None:
    parser = parser_for(__doc__, "results/rounded_softmax.json")
    parser.add_argument("--data", type=Path, default=Path("prepared/yoochoose1_64"))
    parser.add_argument("--share", type=int, default=16, help="train on one of so many sessions")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    data = load(arguments.data)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        sessions = data.train.sessions
        small = cut(data, Path(name) / "small", sessions // arguments.share, sessions // 30)
        for seed in range(arguments.seeds):
            for precision in ("fp32", "bf16"):
                settings = {"precision": precision, "seed": seed}
                run = Path(name) / f"{precision}-{seed}"
                _, found = fit_run(small, "posrec", run, settings, "cpu", progress=SilentProgress(), resumable=False,
                                   export=False)  # fmt: skip
                rows.append({**settings, **{one: round(100 * found.metrics[one], 2) for one in METRICS}})
                print(rows[-1], flush=True)
        means = {
            precision: {one: round(float(np.mean([row[one] for row in rows if row["precision"] == precision])), 2)
                        for one in METRICS}
            for precision in ("fp32", "bf16")
        }  # fmt: skip
        report = {
            "dataset": data.fingerprint, "samples": len(small.train), "items": small.train_items,
            "ranked": len(small.test), "means": means, "runs": rows,
        }  # fmt: skip
    write_result(arguments.out, report)


if __name__ == "__main__":
    main()
