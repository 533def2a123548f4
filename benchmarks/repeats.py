"""What counting models gain from how often a log repeats its items (`models/baselines/counting/neighbours.py`).

    python benchmarks/repeats.py prepared/diginetica prepared/yoochoose1_64 shop shop-without-repeats --samples 4000

Models are fitted without the validation part of each dataset, and evaluated on samples of it, with their factors for
the session's own items and without them. The last two datasets are the demo's log, prepared as it is and with
`--drop-repeats`.
"""

from pathlib import Path
from typing import Any

import torch

from harness import parser_for, write_result
from posrec.data.dataset import PreparedDataset, load
from posrec.evaluation.evaluate import evaluate
from posrec.models.registry import MODELS

NAMES = ("spop", "itemknn", "vsknn", "stan", "coclick")


def main() -> None:
    parser = parser_for(__doc__, "results/repeats.json")
    parser.add_argument("data", type=Path, nargs="+", help="prepared datasets")
    parser.add_argument("--samples", type=int, default=4000, help="of each validation part, the latest sessions")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row(load(path), path.name, name, arguments.samples) for path in arguments.data for name in NAMES]
    write_result(arguments.out, {"rows": rows})


def row(data: PreparedDataset, dataset: str, name: str, samples: int) -> dict[str, Any]:
    model: Any = MODELS[name].build(data.train_items, MODELS[name].config())
    model.count(data.fitting.items, data.fitting.offsets)
    factors = [round(factor, 3) for factor in model.own_factors.tolist()]
    validation = data.validation
    first = int(torch.searchsorted(validation.sample_offsets, len(validation) - samples))
    part = validation.part(max(0, first), validation.sessions)

    def figures() -> list[float]:
        metrics = evaluate(model, part, model.items, model.config.max_length, torch.zeros(model.items + 1)).metrics
        return [round(100 * metrics[metric], 2) for metric in ("recall@20", "mrr@20")]

    with_factors = figures()
    without = with_factors
    if factors != [1, 1]:
        model.own_factors.fill_(1)
        without = figures()
    return {
        "dataset": dataset,
        "model": name,
        "samples": len(part),
        "factors": factors,
        "recall@20, mrr@20": with_factors,
        "without factors": without,
    }


if __name__ == "__main__":
    main()
