"""What `diversify` costs in recall: recall@20 and MRR@20 of a run with more and more diverse lists.

    python benchmarks/diversify.py --run RUN --data DATASET

Evenly spread test samples are recommended for. Similarity is the mean cosine of all pairs of a
list's items; categories is the mean number of different categories in a list."""

import statistics
from pathlib import Path

import numpy as np
import torch

from harness import options, sessions_of, write_result
from posrec.data.dataset import load
from posrec.recommend.recommender import Recommender

DIVERSIFY = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, "category")


def main() -> None:
    given = options(
        __doc__,
        "results/diversify.json",
        run=Path("run"),
        data=Path("shop"),
        sessions=1000,
    )
    torch.set_num_threads(1)
    rec = Recommender.load(given.run, "cpu")
    data = load(given.data)
    samples = [
        clicks[:end]
        for clicks in sessions_of(data, data.test)
        for end in range(2, len(clicks) + 1)
    ]
    chosen = [
        samples[place]
        for place in np.linspace(0, len(samples) - 1, given.sessions).astype(int)
    ]
    rows = {str(diversify): row_of(rec, chosen, diversify) for diversify in DIVERSIFY}
    about = {
        "dataset": given.data.name,
        "model": rec.run.config["model"],
        "items": rec.items,
    }
    write_result(given.out, {**about, "samples": len(chosen), "diversify": rows})


def row_of(
    rec: Recommender, samples: list[list[str]], diversify: float | str
) -> dict[str, float]:
    gains = []
    cosines = []
    categories = []
    answers = rec.recommend(
        [clicks[:-1] for clicks in samples],
        20,
        diversify=diversify,
        fields=["category"],
    )
    for answer, (*_, target) in zip(answers, samples, strict=True):
        items = [one.item for one in answer]
        gains.append(1 / (items.index(target) + 1) if target in items else 0.0)
        columns = [rec.known_number(item) - 1 for item in items]
        vectors = rec.similarity.vectors[columns]  # type: ignore[union-attr]
        units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        cosines.append(
            float((units @ units.T).sum() - len(items))
            / (len(items) * (len(items) - 1))
        )
        categories.append(len({one.fields["category"] for one in answer if one.fields}))
    return {
        "recall@20": round(100 * statistics.fmean(gain > 0 for gain in gains), 2),
        "mrr@20": round(100 * statistics.fmean(gains), 2),
        "similarity": round(statistics.fmean(cosines), 4),
        "categories": round(statistics.fmean(categories), 2),
    }


if __name__ == "__main__":
    main()
