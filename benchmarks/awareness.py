"""How long `analyse` takes for max_length 70 and d 100; the claim is under 2 seconds for any scheme.

    python benchmarks/awareness.py [--out results/awareness.json]

Times every scheme, and two that are made to be slow. One has a single collision, in the longest session, so that the
literal reading of the definition tries every two lengths. In the other, each length changes a dimension of its own, so
that each two lengths share another set of dimensions. For comparison, it also times a plain comparison of every two of
the 2,485 rows, which the analysis avoids.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from posrec.encodings.awareness import analyse
from posrec.encodings.schemes import Scheme, make_encoding
from posrec.encodings.table import build, examined_names, tabulate

MAX_LENGTH, D, REPEATS = 70, 100, 5
SPE = make_encoding("spe", D, MAX_LENGTH).double()


def collides_at_the_end(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
    wrong = (length.unsqueeze(1) == MAX_LENGTH) & (forward == 40)
    encoded: Tensor = SPE(torch.where(wrong, 41, forward), backward, length)
    return encoded


def spoiled_in_turn(forward: Tensor, backward: Tensor, length: Tensor) -> Tensor:
    spoiled = torch.arange(D) % MAX_LENGTH + 1 == length[:, None, None]
    return torch.where(spoiled, 100.0 + length[:, None, None], forward.unsqueeze(-1).double())


def compare_every_two() -> None:
    rows = tabulate(build("dpe", MAX_LENGTH, D), MAX_LENGTH).rows
    torch.cdist(rows, rows, p=torch.inf).min()


def seconds(work: Callable[[], object]) -> float:
    """The median of a few runs, after one that is not counted; a median, since the machine may be shared."""
    work()
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return sorted(taken)[REPEATS // 2]


def cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith(("model name", "CPU part"))]
    return names[0] if names and not names[0].startswith("0x") else platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the analysis of every encoding.")
    parser.add_argument("--out", type=Path, help="also write the figures as JSON")
    out: Path | None = parser.parse_args().out
    schemes: dict[str, str | Scheme] = {name: name for name in examined_names()}
    schemes |= {"collides_at_the_end": collides_at_the_end, "spoiled_in_turn": spoiled_in_turn}
    taken = {name: seconds(partial(analyse, scheme, MAX_LENGTH, D)) for name, scheme in schemes.items()}
    every_two = seconds(compare_every_two)
    worst = max(taken.values())
    for name, value in taken.items():
        print(f"{name:20} {value:7.3f} s")
    print(f"slowest {worst:.3f} s: {2 / worst:.0f} times under the 2 seconds claimed")
    print(f"every two rows compared, for uniqueness alone: {every_two:.3f} s, {every_two / taken['dpe']:.1f} times dpe")
    if out:
        result = {
            "claim": f"analyse takes under 2 seconds for max_length {MAX_LENGTH}, d {D}",
            "command": f"python benchmarks/awareness.py --out {out.as_posix()}",
            "seed": 0,
            "seconds": {name: round(value, 4) for name, value in taken.items()},
            "slowest_seconds": round(worst, 4),
            "every_two_rows_seconds": round(every_two, 4),
            "repeats": REPEATS,
            "versions": {"python": platform.python_version(), "torch": torch.__version__},
            "machine": {"cpus": os.cpu_count(), "cpu": cpu_model()},
        }
        out.write_text(json.dumps(result, indent=2) + "\n")
    sys.exit(worst >= 2)


if __name__ == "__main__":
    main()
