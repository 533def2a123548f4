"""What `diversify` costs: recall@20 and MRR@20 of a run with more and more diverse lists.

    python -m benchmarks.quality.diversify --run RUN --data DATASET

The sessions are evenly spread test samples. Similarity is the mean cosine of all pairs of a list's
items; categories is the mean number of different categories in a list.
"""

import statistics
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness.inputs import sessions_of
from benchmarks.harness.results import options, write_result
from posrec.data.dataset import load
from posrec.recommend.recommender import Recommender

DIVERSIFY = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, "category")


def main() -> None:
    arguments = options(
        __doc__,
        "results/diversify.json",
        run=Path("run"),
        data=Path("shop"),
        sessions=1000,
    )
    torch.set_num_threads(1)
    recommender = Recommender.load(arguments.run, "cpu")
    data = load(arguments.data)
    samples = [
        clicks[:end]
        for clicks in sessions_of(data, data.test)
        for end in range(2, len(clicks) + 1)
    ]
    indices = np.linspace(0, len(samples) - 1, arguments.sessions).astype(int)
    chosen = [samples[index] for index in indices]
    rows = {
        str(diversify): row_of(recommender, chosen, diversify)
        for diversify in DIVERSIFY
    }
    report = {
        "dataset": arguments.data.name,
        "model": recommender.run.config["model"],
        "items": recommender.items,
        "samples": len(chosen),
        "diversify": rows,
    }
    write_result(arguments.out, report)


def row_of(
    recommender: Recommender, samples: list[list[str]], diversify: float | str
) -> dict[str, float]:
    similarity = recommender.similarity
    assert similarity is not None, "the model has no item vectors"
    gains = []
    cosines = []
    categories = []
    answers = recommender.recommend(
        [clicks[:-1] for clicks in samples],
        20,
        diversify=diversify,
        fields=["category"],
    )
    for answer, (*_, target) in zip(answers, samples, strict=True):
        items = [recommended.item for recommended in answer]
        gains.append(1 / (items.index(target) + 1) if target in items else 0.0)
        columns_of_items = [recommender.known_number(item) - 1 for item in items]
        vectors = similarity.vectors[columns_of_items]
        units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        # The diagonal, of every item with itself, adds up to the number of items.
        cosine_sum = float((units @ units.T).sum() - len(items))
        cosines.append(cosine_sum / (len(items) * (len(items) - 1)))
        columns = [recommended.fields for recommended in answer if recommended.fields]
        categories.append(len({values["category"] for values in columns}))
    return {
        "recall@20": round(100 * statistics.fmean(gain > 0 for gain in gains), 2),
        "mrr@20": round(100 * statistics.fmean(gains), 2),
        "similarity": round(statistics.fmean(cosines), 4),
        "categories": round(statistics.fmean(categories), 2),
    }


if __name__ == "__main__":
    main()
