"""Items without a click: how well posrec-plus recommends them by their attributes, and what that costs the others.

    python benchmarks/new_items.py --work new-items-work --out results/new_items.json

In the demo shop (or a prepared dataset with columns, --data) the rarest tenth of the items is treated as new: their
clicks are removed from the training part, and the test part is left as it is. Test samples are split by their target:
a new item or a known one. The models are compared on both, each with the mean over --seeds seeds:

    pop            the most clicked items; a new item has no clicks
    without        posrec-plus without attributes, which does not know the new items
    with           posrec-plus with attributes, which may recommend every item
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import command, conditions, parser_for
from posrec.config import parse_pairs
from posrec.data.arrays import SCHEMA
from posrec.data.dataset import PreparedDataset, load
from posrec.data.prepare.writer import save_dataset
from posrec.data.vocabulary import Vocabulary
from posrec.demo.shop import make_demo
from posrec.evaluation.metrics import rank_metrics
from posrec.fitting.fit import fit_run
from posrec.io import write_json
from posrec.progress import TerminalProgress

METRICS = ("recall@20", "mrr@20")


def main() -> None:
    parser = parser_for(__doc__, "results/new_items.json")
    parser.add_argument("--data", type=Path, help="a prepared dataset with columns [default: the demo shop]")
    parser.add_argument("--share", type=float, default=0.1, help="of the items, the rarest, that are treated as new")
    parser.add_argument("--attributes", default="auto")
    parser.add_argument("--set", action="append", default=[], dest="pairs", help="key=value of posrec-plus")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("new-items-work"))
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    shutil.rmtree(options.work, ignore_errors=True)
    whole = load(options.data) if options.data else make_demo(options.work / "demo")
    data = without_clicks_on_rare_items(whole, options.share, options.work / "data")
    settings = parse_pairs(options.pairs)
    models = {
        "pop": ("pop", {}, 1),
        "without": ("posrec-plus", settings, options.seeds),
        "with": ("posrec-plus", {**settings, "attributes": options.attributes}, options.seeds),
    }
    targets = data.test.items[data.test.locate(torch.arange(len(data.test)))[1]]
    is_new = targets > data.train_items
    results: dict[str, Any] = {
        "command": command(),
        "conditions": conditions(),
        "known_items": data.train_items,
        "new_items": data.recommendable_items - data.train_items,
        "samples": {"new": int(is_new.sum()), "known": int((~is_new).sum())},
        "models": {},
    }
    with TerminalProgress() as progress:
        for name, (model, chosen, seeds) in models.items():
            found = []
            for seed in range(seeds):
                run, settings = options.work / f"{name}-{seed}", {**chosen, "seed": seed}
                found.append(fit_run(data, model, run, settings, options.device, progress=progress, export=False)[1])
            results["models"][name] = {
                part: {metric: spread([rank_metrics(one.ranks[rows])[metric] for one in found]) for metric in METRICS}
                for part, rows in (("new", is_new), ("known", ~is_new))
            }
            write_json(options.out, {**results, "about": "mean and standard deviation over seeds, x100"})
            print(name, json.dumps(results["models"][name]))


def spread(values: list[float]) -> list[float]:
    """Mean and standard deviation, x100."""
    return [round(100 * float(np.mean(values)), 2), round(100 * float(np.std(values)), 2)]


def without_clicks_on_rare_items(data: PreparedDataset, share: float, folder: Path) -> PreparedDataset:
    """The same test part; the training part without the clicks on the rarest items, which come after the others."""
    items, offsets = data.train.items.numpy(), data.train.offsets.numpy()
    clicks = np.bincount(items, minlength=data.train_items + 1)[1:]
    rare = np.argsort(clicks, kind="stable")[: round(share * data.train_items)] + 1
    session = np.repeat(np.arange(data.train.sessions), np.diff(offsets))
    kept = ~np.isin(items, rare)
    lengths = np.bincount(session[kept], minlength=data.train.sessions)
    kept &= (lengths >= 2)[session]
    lengths = lengths[lengths >= 2]
    train = items[kept]
    order = [*dict.fromkeys(train.tolist())]
    recommendable = [*order, *sorted(set(range(1, data.train_items + 1)) - set(order))]
    names = [*recommendable, *range(data.train_items + 1, len(data.vocabulary) + 1)]
    numbers = np.zeros(len(data.vocabulary) + 1, dtype=np.int32)
    numbers[names] = np.arange(1, len(names) + 1)
    arrays = {
        "train_items": numbers[train],
        "train_offsets": np.concatenate([[0], np.cumsum(lengths)]),
        "train_times": data.train.times.numpy()[np.unique(session[kept])],
        "test_items": numbers[data.test.items.numpy()],
        "test_offsets": data.test.offsets.numpy(),
        "test_times": data.test.times.numpy(),
    }
    vocabulary = Vocabulary(
        [data.vocabulary.item(item) for item in names],
        {name: [values[item - 1] for item in names] for name, values in data.vocabulary.columns.items()},
    )
    manifest = {"schema": SCHEMA, "steps": []}
    save_dataset(folder, arrays, vocabulary, manifest, recommendable_items=len(recommendable))
    return load(folder)


if __name__ == "__main__":
    main()
