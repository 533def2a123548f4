"""The counting models' accuracy on the real test parts, through the command: one `posrec train` for each row.

    python benchmarks/counting.py --data prepared --out results/counting.json

Nothing is chosen here: settings are the models' defaults and those of OTHER_SETTINGS, tuned on the validation part.
"""

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import parser_for, write_result
from posrec.io import read_json
from posrec.models.registry import MODELS

DATASETS = ("diginetica", "yoochoose1_64")
COUNTING = ("pop", "spop", "itemknn", "vsknn", "stan", "coclick")
# Where the validation part of one dataset prefers others than the defaults, which serve both.
OTHER_SETTINGS = [("yoochoose1_64", "vsknn", ("weighting=harmonic", "k=500"))]
# What the paper's table has for them (x100).
PAPER: dict[tuple[str, str], dict[str, float]] = {
    ("diginetica", "itemknn"): {"recall@5": 11.75, "recall@10": 24.09, "mrr@5": 8.34, "mrr@10": 10.63},
    ("yoochoose1_64", "itemknn"): {"recall@5": 28.35, "recall@10": 41.82, "mrr@5": 19.37, "mrr@10": 21.24},
}


def row(folder: Path, dataset: str, model: str, settings: tuple[str, ...] = ()) -> dict[str, Any]:
    options = "".join(f" --set {setting}" for setting in settings)
    command = f"posrec train prepared/{dataset} --model {model}{options} --out runs/{dataset}-{model}"
    with tempfile.TemporaryDirectory() as scratch:
        run = Path(scratch) / "run"
        words = shlex.split(command)[1:]
        words[1], words[-1] = str(folder / dataset), str(run)
        subprocess.run([sys.executable, "-m", "posrec", *words], check=True, stdout=subprocess.DEVNULL)
        config, metrics = read_json(run / "config.json"), read_json(run / "metrics.json")
    return {
        "dataset": dataset,
        "fingerprint": config["dataset"],
        "model": model,
        "command": command,
        "settings": {name: config[name] for name in MODELS[model].config.__dataclass_fields__},  # type: ignore[attr-defined]
        "samples": metrics.pop("samples"),
        "metrics": {name: round(100 * value, 4) for name, value in metrics.items()},
        "paper": PAPER.get((dataset, model), {}),
    }


def main() -> None:
    parser = parser_for(__doc__, "results/counting.json")
    parser.add_argument("--data", type=Path, default=Path("prepared"), help="holds the prepared datasets, by name")
    arguments = parser.parse_args()
    rows = []
    wanted: list[tuple[str, str, tuple[str, ...]]] = [(name, model, ()) for name in DATASETS for model in COUNTING]
    for dataset, model, settings in [*wanted, *OTHER_SETTINGS]:
        rows.append(row(arguments.data, dataset, model, settings))
        print(json.dumps({key: rows[-1][key] for key in ("command", "metrics", "paper")}), flush=True)
    write_result(arguments.out, {"rows": rows})


if __name__ == "__main__":
    main()
