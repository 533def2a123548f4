"""What `diversify` costs in recall: recall@20 and MRR@20 of a run with more and more diverse lists.

    python benchmarks/diversify.py RUN DATASET --sessions 1000 --out results/diversify.json

Evenly spread test samples are recommended for. Similarity is the mean cosine of all pairs of a list's items; categories
is the mean number of different values of `--column` in a list.
"""

import statistics
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness import parser_for, test_samples, write_result
from posrec.data.dataset import load
from posrec.recommend.recommender import Recommender

WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7)


def main() -> None:
    parser = parser_for(__doc__, "results/diversify.json")
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--column", default="category")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rec, data = Recommender.load(arguments.run, "cpu"), load(arguments.data)
    wanted = np.linspace(0, len(data.test) - 1, min(arguments.sessions, len(data.test))).astype(int)
    samples = test_samples(data)
    chosen = [samples[place] for place in wanted]
    sessions, targets = [clicks[:-1] for clicks in chosen], [clicks[-1] for clicks in chosen]
    grouped = arguments.column in data.vocabulary.columns
    rows = {}
    for diversify in (*WEIGHTS, *([arguments.column] if grouped else [])):
        rows[str(diversify)] = row_of(rec, sessions, targets, diversify, arguments.column if grouped else None)
    about = {"dataset": arguments.data.name, "model": rec.run.config["model"], "items": rec.items}
    write_result(arguments.out, {**about, "samples": len(sessions), "diversify": rows})


def row_of(
    rec: Recommender, sessions: list[list[str]], targets: list[str], diversify: Any, column: str | None
) -> dict[str, float]:
    ranks, cosines, values = [], [], []
    answers = rec.recommend(sessions, 20, diversify=diversify, fields=[column] if column else None)
    for answer, target in zip(answers, targets, strict=True):
        items = [one.item for one in answer]
        ranks.append(items.index(target) + 1 if target in items else 0)
        vectors = rec.similarity.vectors_of([rec.known(item) for item in items])  # type: ignore[union-attr]
        units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        n = len(items)
        cosines.append(float((units @ units.T).sum() - n) / (n * (n - 1)) if n > 1 else 0.0)
        values.append(len({one.fields[column] for one in answer if one.fields and column}))
    found = {
        "recall@20": round(100 * statistics.fmean(rank > 0 for rank in ranks), 2),
        "mrr@20": round(100 * statistics.fmean(1 / rank if rank else 0.0 for rank in ranks), 2),
        "similarity": round(statistics.fmean(cosines), 4),
    }
    return {**found, "categories": round(statistics.fmean(values), 2)} if column else found


if __name__ == "__main__":
    main()
