"""A file of items that the training did not see, read by a server under load.

    python -m benchmarks.reliability.added_items

A run of posrec-plus with random weights and attributes is served by two workers, and asked 1,000
times a second. Meanwhile its items file grows by new rows: how long it takes until the last of them
is recommended for, how many requests fail, the latencies before and then, and the memory of the
server and its workers afterwards.
"""

import json
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness.inputs import shoppers
from benchmarks.harness.results import options, write_result
from benchmarks.reliability.paced_client import paced, post
from benchmarks.reliability.served import Server, memory_mb, serving, wait_for_workers
from posrec.data.item_attributes import chosen_columns, encode_attributes
from posrec.data.vocabulary import Vocabulary
from posrec.models.registry import MODELS
from posrec.recommend.export.writing import write_export
from posrec.recommend.recommender import Recommender
from posrec.runs.attributes import Attributes
from posrec.runs.folder import Run
from posrec.runs.run import load_run

WORKERS = 2
COLUMNS = "category,price,title"


def main() -> None:
    arguments = options(
        __doc__, "results/added_items.json", items=8200, rate=1000, seconds=20
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = described_rows(arguments.items + 100_000)
        run = described_run(rows[: arguments.items], folder / "run")
        figures = {
            str(added): measure(run, rows, arguments.items + added, folder, arguments)
            for added in (0, 10_000, 100_000)
        }
    write_result(arguments.out, {"items": arguments.items, "added": figures})


def described_rows(number: int) -> list[dict[str, Any]]:
    draw = np.random.default_rng(0)
    words = [f"word{n}" for n in range(2000)]
    return [
        {
            "id": f"i{row}",
            "category": f"c{draw.integers(80)}",
            "price": round(float(draw.lognormal(3)), 2),
            "title": " ".join(draw.choice(words, 5)),
        }
        for row in range(number)
    ]


def described_run(rows: list[dict[str, Any]], folder: Path) -> Path:
    torch.manual_seed(0)
    spec = MODELS["posrec-plus"]
    config = spec.config(attributes=COLUMNS)
    ids = [row["id"] for row in rows]
    columns = {name: [row[name] for row in rows] for name in COLUMNS.split(",")}
    vocabulary = Vocabulary(ids, columns)
    trained: Any = spec.build(len(ids), config)
    kinds = chosen_columns(COLUMNS, vocabulary)
    trained.describe(encode_attributes(vocabulary, kinds, len(ids)))
    weights, about = trained.attribute_parts()
    arrays = {name: tensor.detach().numpy() for name, tensor in weights.items()}
    attributes = Attributes.of(arrays, about, config.d)
    network = spec.build(len(ids), config).eval()
    network.load_state_dict(trained.saved_weights())
    about_run = {
        "model": "posrec-plus",
        "items": len(ids),
        **asdict(config),
        "training": {},
    }
    popularity = 10_000 // np.arange(1, len(ids) + 1) + 1
    run = Run(
        folder,
        lambda: network,
        vocabulary,
        about_run,
        popularity,
        attributes=attributes,
    )
    Recommender(run, "cpu").save(folder, export=False)
    write_export(load_run(folder))
    return folder


def measure(
    run: Path, rows: list[dict[str, Any]], items: int, folder: Path, arguments: Any
) -> dict[str, Any]:
    path = folder / "items.jsonl"
    write_rows(path, rows[: arguments.items])
    requests = [
        post("/v1/recommend", json.dumps({"session": session, "k": 20}).encode())
        for session in shoppers(run, "", 1000)
    ]
    options = ("--workers", WORKERS, "--items", path)
    with serving(run, *options, onnx=True, forked=False) as server:
        server.recommend("i1")
        wait_for_workers(server, WORKERS)
        seconds: list[float] = []
        change = threading.Thread(
            target=change_file, args=(server, path, rows[:items], seconds)
        )
        before = paced(server.port, requests, arguments.rate, arguments.seconds, 64)
        change.start()
        beside = paced(server.port, requests, arguments.rate, arguments.seconds, 64)
        change.join()
        memory = memory_mb(server)
    return {
        "seconds_until_recommended": seconds[0],
        "memory_mb": memory,
        "before": before,
        "beside": beside,
    }


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    unfinished = path.with_suffix(".new")
    lines = (json.dumps(row) + "\n" for row in rows)
    unfinished.write_text("".join(lines), encoding="utf-8")
    unfinished.replace(path)


def change_file(
    server: Server, path: Path, rows: list[dict[str, Any]], seconds: list[float]
) -> None:
    time.sleep(2)
    write_rows(path, rows)
    began = time.monotonic()
    known = 0
    # Both workers have read it if several answers in a row know the last row.
    while known < 20:
        answer = server.recommend(rows[-1]["id"]).json()
        known = 0 if answer["unknown"] else known + 1
        time.sleep(0.02)
    seconds.append(round(time.monotonic() - began, 2))


if __name__ == "__main__":
    main()
