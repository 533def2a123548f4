"""The whole `posrec train` command, from start to exit: importing, compiling, all epochs, ranking the test part.

    python benchmarks/command.py --data prepared/diginetica --model posrec --times 3 --out results/command.json
    python benchmarks/command.py --data prepared/diginetica --times 3 --out results/command_plus.json

Every run is a process of its own. The first may have to compile; those after it find the compile cache filled.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import parser_for, write_result


def main() -> None:
    parser = parser_for(__doc__, "results/command.json")
    parser.add_argument("--data", type=Path, default=Path("prepared/diginetica"))
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--model", default="posrec-plus")
    parser.add_argument("--set", nargs="*", default=[], help="key=value, as posrec train takes them")
    arguments = parser.parse_args()
    settings = [part for pair in arguments.set for part in ("--set", pair)]
    seconds = []
    for number in range(arguments.times):
        with tempfile.TemporaryDirectory() as folder:
            line = ["train", str(arguments.data), "--model", arguments.model, "--out", f"{folder}/run", *settings]
            began = time.perf_counter()
            subprocess.run([sys.executable, "-m", "posrec", *line], check=True, stdout=subprocess.DEVNULL)
            seconds.append(round(time.perf_counter() - began, 1))
        print(f"{number + 1}: {seconds[-1]} s", flush=True)
    report = {
        "timed": "posrec train " + " ".join([str(arguments.data), "--model", arguments.model, *settings]),
        "seconds": seconds,
        "byte_code_kept": not sys.dont_write_bytecode,  # where not, every start compiles all of torch's modules anew
    }
    write_result(arguments.out, report)


if __name__ == "__main__":
    main()
