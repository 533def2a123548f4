"""A marketplace whose listings live for days: what models find of the next day's clicks.

    python -m benchmarks.quality.marketplace

The last of 21 days is the test part. Co-clicks, posrec-plus, and posrec-plus with attributes are
trained on the days before, and judged on targets with many, few and no training clicks; the last
one also with the items file of the next day, as it would be served.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import posrec
from benchmarks.harness.results import options, write_result
from posrec.data.dataset import PreparedDataset
from posrec.fitting.fit import fit_run
from posrec.progress import TerminalProgress
from posrec.recommend.recommender import Recommender
from tests.marketplace import COLUMNS, Marketplace

ATTRIBUTES = "category,kind,price,title"
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "coclick": ("coclick", {}),
    "posrec-plus": ("posrec-plus", {}),
    "with attributes": ("posrec-plus", {"attributes": ATTRIBUTES}),
}


def main() -> None:
    arguments = options(
        __doc__, "results/marketplace.json", days=21, listings=300, visits=4600
    )
    market = Marketplace(arguments.days, arguments.listings, arguments.visits)
    with tempfile.TemporaryDirectory() as name, TerminalProgress() as progress:
        folder = Path(name)
        log = market.write_log(folder / "log.jsonl", arguments.days)
        before = market.write_items(folder / "before.jsonl", arguments.days - 1)
        items = market.write_items(folder / "items.jsonl", arguments.days)
        columns: dict[str, Any] = dict(pair.split("=") for pair in COLUMNS)
        data = posrec.prepare(
            log,
            out=folder / "data",
            items=before,
            test_days=1,
            progress=progress,
            **columns,
        )
        figures: dict[str, Any] = {}
        for kind, (model, settings) in MODELS.items():
            out = folder / kind
            began = time.perf_counter()
            fit_run(data, model, out, settings, "cpu", progress=progress)
            seconds = round(time.perf_counter() - began)
            figures[kind] = judged(Recommender.load(out, "cpu"), data)
            figures[kind]["training_seconds"] = seconds
            print(kind, figures[kind], flush=True)
        served = Recommender.load(folder / "with attributes", "cpu").with_items(items)
        figures["with attributes and --items"] = judged(served, data)
    write_result(
        arguments.out,
        {
            "seed": 0,
            "events": len(market.events),
            "listings": len(market.listings),
            "samples": data.manifest["counts"],
            "models": figures,
        },
    )


def judged(recommender: Recommender, data: PreparedDataset) -> dict[str, Any]:
    evaluation = posrec.evaluate(recommender, data)
    return {"usual": evaluation.metrics, "by_novelty": evaluation.by_novelty}


if __name__ == "__main__":
    main()
