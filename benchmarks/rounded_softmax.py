"""Whether rounding the softmax's products to bf16 on a CPU changes the metrics: PosRec, three seeds, both ways.

    python benchmarks/rounded_softmax.py --data prepared/yoochoose1_64 --out results/rounded_softmax.json

The latest training sessions are cut into a small training part and a part to rank (a thirtieth of all), so that six
trainings take minutes on a CPU. The test part is not read.
"""

import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

from harness import parser_for, write_result, write_split
from posrec.data.dataset import PreparedDataset, load
from posrec.fitting.fit import fit_run
from posrec.progress import SilentProgress

METRICS = ("recall@20", "mrr@20", "recall@10", "mrr@10")


def cut(data: PreparedDataset, folder: Path, trained: int, ranked: int) -> PreparedDataset:
    """The latest `trained + ranked` training sessions, the last `ranked` of them as the test part."""
    end = data.train.sessions
    arrays = (data.train.items.numpy(), data.train.offsets.numpy(), data.train.times.numpy())
    return write_split(folder, data.vocabulary, *arrays, end - trained - ranked, end - ranked, end)


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
                _, found = fit_run(small, "posrec", run, settings, "cpu", progress=SilentProgress(), export=False)
                rows.append({**settings, **{one: round(100 * found.metrics[one], 2) for one in METRICS}})
                print(rows[-1], flush=True)
    means = {}
    for precision in ("fp32", "bf16"):
        of = [row for row in rows if row["precision"] == precision]
        means[precision] = {one: round(fmean(row[one] for row in of), 2) for one in METRICS}
    sizes = {"samples": len(small.train), "items": small.train_items, "ranked": len(small.test)}
    write_result(arguments.out, {"dataset": data.fingerprint, **sizes, "means": means, "runs": rows})


if __name__ == "__main__":
    main()
